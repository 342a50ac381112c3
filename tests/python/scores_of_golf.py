# SPDX-License-Identifier: Apache-2.0
"""The scores of golf's answers that are files: those that are handed out, par, and the best known ones. And answers that
cheat. CTest runs the tests of one task at a time (-k). Those of the tasks that are code are in tests/chapters/golf.cpp."""

import dataclasses
import os

import pytest
from conftest import ROOT

from workshop import context, golf

BUILD = os.environ.get("WORKSHOP_BUILD_FOLDER", os.path.join(ROOT, "build", "cpu"))
TASKS = {task.name: task for task in golf.TASKS}


@pytest.fixture(autouse=True)
def in_the_clone(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(context.Context, "build", lambda *_: None)  # CTest has built everything


def judged(task, which="mine"):
    return task.judge(context.Context("cpu", BUILD), which)


@pytest.mark.parametrize(
    "task", [task for task in golf.TASKS if not isinstance(task, golf.Code)], ids=lambda task: task.name
)
def test_scores(task):
    assert judged(task, "par").score == pytest.approx(task.par, abs=6e-4)
    assert judged(task, "best").score == pytest.approx(task.best, abs=6e-4)
    assert judged(task).score > task.par  # what is handed out works, and leaves something to do


def with_answer(name, answer, tmp_path):
    """The task with this answer in place of the participant's."""

    @dataclasses.dataclass(frozen=True)
    class WithAnswer(type(TASKS[name])):
        def path(self, which):
            return str(tmp_path / self.file)

    (tmp_path / TASKS[name].file).write_text(answer, encoding="utf-8")
    fields = {field.name: getattr(TASKS[name], field.name) for field in dataclasses.fields(TASKS[name])}
    return WithAnswer(**fields)


def schedule(stages, micro_batches, order):
    ops = " ".join(op.format(m=m) for m in range(micro_batches) for op in order)
    return "".join(f"stage {stage} | {ops}\n" for stage in range(stages))


CHEATS = [
    # half of the micro-batches
    ("schedule", schedule(4, 4, ["F{m}", "B{m}", "W{m}"]), "micro-batches"),
    # no gradients of weights
    ("schedule", schedule(4, 8, ["F{m}", "B{m}"]).replace("B7", "B7 W7"), "weights 0 is missing"),
    # all micro-batches at once
    ("schedule", "".join(f"stage {s} | " + " ".join(f"{k}{m}" for k in "FBW" for m in range(8)) + "\n"
                         for s in range(4)), "in flight"),  # fmt: skip
    # two stages do the work of four
    ("schedule", schedule(2, 8, ["F{m}", "B{m}", "W{m}"]), "stages"),
    # two chunks per stage
    ("schedule", "".join(f"stage {s} | " + " ".join(f"F{m}a F{m}b B{m}b W{m}b B{m}a W{m}a" for m in range(8)) + "\n"
                         for s in range(4)), "one chunk"),  # fmt: skip
    # nothing at all
    ("schedule", "", "schedule"),
    ("buckets", "--bucket-mb 25 --max-steps 0", "not for you to choose"),
    ("buckets", "--bucket-layers 1,2,3", "whose sum"),
    ("buckets", "--bucket-layers 12 --batch-size=1", "not for you to choose"),
    ("buckets", "--bucket-layers=12", "not for you to choose"),
    ("buckets", "--bucket-mb 25 --bucket-mb 0.2", "there twice"),
    ("buckets", "--bucket-mb 25 --bucket-layers 12", "either"),
    ("buckets", "", "either"),
    ("buckets", "--bucket-mb '25 --precision bf16'", "no value"),
    ("fsdp", "--no-reshard-after-forward", "Too much memory"),
    ("fsdp", "--cpu-offload", "not for you to choose"),
    ("fsdp", "--hybrid 1", "not for you to choose"),
    ("fsdp", "--precision bf16", "not for you to choose"),
    ("fsdp", "--unit-layers 1 --unit-layers 12", "there twice"),
    ("mesh", "--dp 16 --pp 8 --tp 4 --zero 1", "--micro-batches is missing"),
    ("mesh", "--dp 16 --pp 8 --tp 4 --zero 1 --micro-batches 0", "."),
    ("mesh", "--dp 16 --pp 8 --tp 4 --zero 1 --micro-batches 16 --efficiency 99", "not for you to choose"),
    ("mesh", "--dp 1 --pp 1 --tp 1 --zero 0 --micro-batches 256", "."),
    ("mesh", "--dp 128 --pp 1 --tp 4 --zero 3 --micro-batches 2 --memory 9999", "not for you to choose"),
    ("mixture", "--dp 64 --pp 4 --tp 1 --ep 16 --zero 1 --micro-batches 8 --imbalance 1", "not for you to choose"),
    ("mixture", "--dp 64 --pp 4 --tp 1 --zero 1 --micro-batches 8", "--ep is missing"),
    ("mixture", "--dp 0 --pp 0 --tp 0 --ep 0 --zero 1 --micro-batches 8", "."),
    ("compression", "local_sgd --sync-every 1000", "has not learned enough"),
    ("compression", "ddp_compressed --compress none --max-steps 1", "not for you to choose"),
    ("compression", "ddp --epochs 1", "begins with"),
    ("compression", "local_sgd --sync-every 24 --words 1000", "not for you to choose"),
    ("compression", "", "begins with"),
    ("compression", "local_sgd --sync-every 8 --outer-lr 900000", "validation loss is nan"),
    ("compression", "local_sgd \x1b[2J", r"'\\x1b\[2J' is not for you to choose"),
    ("compression", "local_sgd " + "x" * 9999, "xxx...' is not for you to choose"),
]


@pytest.mark.parametrize("name,answer,why", CHEATS, ids=[f"{cheat[0]}-{i}" for i, cheat in enumerate(CHEATS)])
def test_cheats_get_no_score(name, answer, why, tmp_path):
    with pytest.raises(golf.Wrong, match=why):
        judged(with_answer(name, answer, tmp_path))

# SPDX-License-Identifier: Apache-2.0
"""What tools/bench/large_batches takes from records, and its table."""
import math
import os
import re

import pytest
from conftest import ROOT
from workshop import large_batches
from workshop.large_batches import Outcome


def record(*losses):
    return "".join(f'{{"type":"step","global_loss":{loss},"step":1}}\n' for loss in losses)


def test_steps_to_target():
    losses = [4, 2, 1, 1, 1]
    assert large_batches.steps_to_target(record(*losses), 2048, 1.5) == 3
    assert large_batches.steps_to_target(record(*losses), 1024, 1.5) == 3  # the mean of two steps
    assert large_batches.steps_to_target(record(*losses), 512, 1.5) == 5
    assert large_batches.steps_to_target(record(*losses), 512, 1.2) is None
    assert large_batches.steps_to_target(record(*losses), 256, 9) is None  # eight steps are needed
    assert large_batches.steps_to_target(record("nan", 1), 4096, 1.5) == 2
    assert large_batches.steps_to_target("", 16, 1.5) is None


def test_rows():
    outcomes = [Outcome(1.0, 10), Outcome(1.5, 20)]
    assert large_batches.row(2, 391, "linear", "0.008", outcomes, 0.002) == (
        "    2     32    391  linear 0.008   1.250 ± 0.250      15 ± 5             30 ms")
    assert large_batches.row(2, 391, "linear", "0.008", outcomes, None).endswith("15 ± 5             -")
    assert large_batches.row(2, 391, "same", "0.004", [*outcomes, Outcome(3, None)], 1).endswith("  2 of 3 seeds")
    for loss in (math.nan, math.inf):
        assert large_batches.row(2, 391, "same", "0.004", [*outcomes, Outcome(loss, 1)], 1) == (
            "    2     32    391  same   0.004   diverges")


def test_settings():
    default = large_batches.settings({}, "b")
    assert (default.seeds, default.ranks) == (list("123456"), [1, 2, 4, 8, 16, 32])
    assert (default.lr, default.target) == ("0.004", 1.5)
    environment = {"SEEDS": "7", "RANKS": "2 4", "LR": "0.1", "TARGET": "2", "OPTIMIZER": "sgd"}
    changed = large_batches.settings(environment, "b")
    assert (changed.seeds, changed.ranks, changed.lr, changed.target) == (["7"], [2, 4], "0.1", 2.0)
    assert changed.model[-2:] == ["--optimizer", "sgd"]


def test_the_table_of_the_page():
    """The page's columns are where the tool puts them."""
    with open(os.path.join(ROOT, "02_ddp", "experiments.md"), encoding="utf-8") as file:
        page = file.read()
    assert large_batches.heading("1.5") in page.split("\n")
    rows = re.findall(r"^ +\d+ +\d+ +\d+  (?:same|linear) .*", page, re.M)
    assert rows
    for line in rows:
        assert re.fullmatch(r".{36}\S+ ± \S+ {6}(\d+ of \d+ seeds|\S.{17} (\d+ ms|-))", line), line


# ---- with programs that say something ----

PROGRAM = """#!/bin/bash
echo "${0##*/} ${WORKSHOP_SIMULATE-none} $*" >>"$(dirname "$0")/started"
while [[ $1 != --record ]]; do
  [[ $1 != --batch-size ]] || batch=$2
  [[ $1 != --seed ]] || seed=$2
  shift
done
for step in {1..200}; do echo '{"global_loss":1.'$seed',"step":1}'; done >"$2"
echo '{"seconds_per_step":0.25,"x":1}' >>"$2"
echo "test loss 1.$seed, accuracy 0.5"
"""


@pytest.fixture
def build(tmp_path, monkeypatch):
    folder = tmp_path / "solutions" / "02_ddp"
    folder.mkdir(parents=True)
    for name in ("ddp", "ddp_overlap"):
        (folder / name).write_text(PROGRAM)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("SEEDS", "1 2")
    monkeypatch.delenv("WORKSHOP_SIMULATE", raising=False)
    monkeypatch.setenv("RANKS", "1 16")
    return tmp_path


def test_an_experiment(build, capfd):
    assert large_batches.main([str(build)]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "ranks  batch  steps  rule   lr      test loss          steps to 1.5       time to it",
        "    1     16    782  same   0.004   1.150 ± 0.050      128 ± 0            32000 ms",
        "    1     16    782  linear 0.004   1.150 ± 0.050      128 ± 0            32000 ms",
        "   16    256     49  same   0.004   1.150 ± 0.050      8 ± 0              -",
        "   16    256     49  linear 0.064   1.150 ± 0.050      8 ± 0              -"]
    started = (build / "solutions" / "02_ddp" / "started").read_text().splitlines()
    assert [line.split()[:2] for line in started] == [["ddp_overlap", large_batches.MACHINE]] + 8 * [["ddp", "none"]]
    assert "--batch-size 256 --lr 0.064 --warmup-steps 4 --seed 2 --model-seed 2" in started[-1]


def test_a_run_that_fails_ends_it(build, capfd):
    (build / "solutions" / "02_ddp" / "ddp").write_text("#!/bin/sh\necho no >&2\nexit 3\n")
    assert large_batches.main([str(build)]) == 1
    assert "large_batches: ddp ended with status 3" in capfd.readouterr().err

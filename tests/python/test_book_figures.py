# SPDX-License-Identifier: Apache-2.0
"""The interactive figures of ./workshop book show what the programs compute."""

import json
import os
import re
import shutil
import subprocess

import pytest
from conftest import ROOT

BUILD = os.environ.get("WORKSHOP_BUILD_FOLDER", os.path.join(ROOT, "build", "cpu"))
ENGINE = shutil.which("node") or shutil.which("qjs")


def evaluate(tmp_path, expression):
    """The value of an expression of JavaScript, with the functions of models.js."""
    if ENGINE is None:
        pytest.skip("neither node nor qjs is installed")
    with open(os.path.join(ROOT, "tools", "book", "models.js"), encoding="utf-8") as file:
        models = file.read()
    script = tmp_path / "script.js"
    script.write_text(f"{models}\nconsole.log(JSON.stringify({expression}));\n", encoding="utf-8")
    return json.loads(subprocess.run([ENGINE, script], check=True, capture_output=True, text=True).stdout)


def program(*words):
    path = os.path.join(BUILD, "solutions", words[0])
    return subprocess.run([path, *words[1:]], check=True, capture_output=True, text=True).stdout


SCHEDULES = [
    *((name, stages, M) for name in ("gpipe", "1f1b", "zb-h1") for stages in (2, 3, 4, 8) for M in (1, 2, 5, 8, 32)),
    *(("interleaved", stages, M) for stages, M in [(p, p * k) for p in (2, 3, 4, 5, 8) for k in (1, 2, 3, 4)]),
    *(("zb-v", stages, M) for stages, M in ((2, 4), (2, 9), (3, 6), (4, 8), (4, 32), (5, 13), (8, 16))),
]


def test_schedules(tmp_path):
    grid = json.dumps(SCHEDULES)
    shown = evaluate(tmp_path, f"{grid}.map(([name, stages, M]) => simulate(name, stages, M))")
    for (name, stages, micro_batches), found in zip(SCHEDULES, shown):
        chunks = 2 if name in ("interleaved", "zb-v") else 1
        text = program(
            "04_pipeline/pipeline", "--print", "--schedule", name, "--stages", str(stages),
            "--micro-batches", str(micro_batches), "--chunks", str(chunks),
        )  # fmt: skip
        rows = [["."] * found["length"] for _ in range(stages)]
        for slot in found["slots"]:
            chunk = "ab"[slot["chunk"]] if chunks == 2 else ""
            rows[slot["stage"]][slot["begin"]] = f"{slot['kind']}{slot['batch']}{chunk}"
        printed = [row.split() for row in re.findall(r"^stage \d+ +\|(.*)$", text, re.M)]
        padded = [row + ["."] * (found["length"] - len(row)) for row in printed]
        if name == "interleaved":  # the program's messages travel in groups, so some wait a slot that costs nothing
            padded, rows = ([[one for one in row if one != "."] for row in of] for of in (padded, rows))
        assert padded == rows, (name, stages, micro_batches)
        says = re.search(r"^(\d+) slots; each stage computes in (\d+) of them", text, re.M)
        assert says and (found["length"], found["busy"]) == (int(says[1]), int(says[2]))
        held = [int(count) for count in re.findall(r"^stage \d+ has at most (\d+) in flight", text, re.M)]
        assert found["inFlight"] == held, (name, stages, micro_batches)


GPT = {"blocks": 6, "width": 512, "heads": 8, "context": 256, "vocabulary": 1000}
MESHES = [
    {"dp": dp, "pp": pp, "tp": tp, "zero": zero, "samples": samples, "microBatches": 4, "recompute": recompute}
    for dp, pp, tp, zero in ((1, 1, 1, 0), (2, 1, 1, 1), (4, 1, 2, 2), (4, 1, 2, 3), (2, 2, 2, 1), (1, 4, 2, 0), (2, 6, 1, 1))
    for samples in (1, 3)
    for recompute in (False, True)
]


@pytest.mark.parametrize("attention", ["whole", "blockwise"])
def test_memory_of_a_mesh(tmp_path, attention):
    model = {**GPT, "blockwise": attention == "blockwise"}
    shown = evaluate(tmp_path, f"{json.dumps(MESHES)}.map((mesh) => meshMemory({json.dumps(model)}, mesh))")
    count = evaluate(tmp_path, f"gptParameters({json.dumps(model)})")
    for mesh, found in zip(MESHES, shown):
        options = {name: GPT[name] for name in GPT}
        options |= {name: mesh[name] for name in ("dp", "pp", "tp", "zero")}
        options |= {"micro-batches": mesh["microBatches"], "chunks": 1, "attention": attention}
        options |= {"global-batch": mesh["dp"] * mesh["samples"] * mesh["microBatches"]}
        options |= {"gpus": mesh["dp"] * mesh["pp"] * mesh["tp"], "gpus-per-node": 48, "model": "gpt"}
        options |= {"recompute": "blocks" if mesh["recompute"] else "none", "json": tmp_path / "plan.json"}
        program("07_3d/plan", *(str(word) for name in options for word in (f"--{name}", options[name])))
        plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
        assert count == plan["parameters"]
        assert len(plan["plans"]) == 1
        for stage, expected in zip(found, plan["plans"][0]["stages"]):
            assert stage == pytest.approx(expected["memory"], rel=1e-12), mesh


@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_memory_of_zero(tmp_path, precision):
    options = ["--parameters", "7e9", "--gpus", "8", "--dp", "8", "--pp", "1", "--tp", "1", "--optimizer", "adamw"]
    for stage in range(4):
        expression = f"modelStates(7e9, 8, {stage}, {json.dumps(precision == 'mixed')})"
        file = tmp_path / "plan.json"
        program("07_3d/plan", *options, "--precision", precision, "--zero", str(stage), "--json", str(file))
        memory = json.loads(file.read_text(encoding="utf-8"))["plans"][0]["stages"][0]["memory"]
        assert evaluate(tmp_path, expression) == {
            name: memory[name] for name in ("parameters", "gradients", "optimizer")
        }


# What chapter 00's texts say of the ring: chunk r is sent first by rank r, and is complete on rank r - 1 after P - 1
# steps; the sums arrive everywhere.
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ring(tmp_path, ranks):
    steps = evaluate(tmp_path, f"ringAllReduce({ranks})")
    assert [step["reduces"] for step in steps] == [True] * (ranks - 1) + [False] * (ranks - 1)
    assert steps[0]["sent"] == list(range(ranks))
    everyone = list(range(ranks))
    for rank in everyone:
        whole = [chunk for chunk in everyone if steps[ranks - 2]["parts"][rank][chunk] == everyone]
        assert whole == [(rank + 1) % ranks]
        assert steps[ranks - 1]["sent"][rank] == (rank + 1) % ranks
        assert steps[-1]["parts"][rank] == [everyone] * ranks

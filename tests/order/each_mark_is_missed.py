# SPDX-License-Identifier: Apache-2.0
"""Whether the order checker misses each record and each wait: each_mark_is_missed.py SOLUTIONS CHAPTER/FILE

With each record and each wait of the file ignored, one at a time, the order checker must speak in at least one of the
runs below, and name two places. SOLUTIONS has the programs.
"""
from __future__ import annotations

import os
import re
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from support import LAUNCH, ROOT, run, run_main

MLP = "--log-every 0 --max-steps 5"
# The runs that make use of a file, or of those of a chapter: ranks, program, options.
RUNS = {
    "10_less_communication/decentralized.cu": [f"3 10_less_communication/decentralized {MLP} --layers 6,5,4,2"],
    "10_less_communication/ddp_compressed.cu": [
        f"2 10_less_communication/ddp_compressed {MLP} --layers 6,5,4,2 --bucket-mb 0.0001 --error-feedback"],
    "10_less_communication/parameter_server.h": [f"3 10_less_communication/parameter_server {MLP}"],
    "02_ddp/long_run.cu": [f"2 02_ddp/long_run {MLP} --checkpoints saved --save-every 1"],
    "02_ddp": [f"2 02_ddp/ddp_overlap {MLP} --layers 6,5,4,2 --bucket-mb 0.0001"],
    # A checkpoint reads what other streams have written.
    "03_model_parallel": [
        f"1 03_model_parallel/one_process {MLP} --layers 6,5,4,2 --devices 3 --checkpoints saved --save-every 2"],
    "04_pipeline": [
        f"3 04_pipeline/pipeline {MLP} --layers 6,5,5,4,4,3,3,2,2 --micro-batches 8",
        f"2 04_pipeline/pipeline {MLP} --layers 6,5,5,4,4,3,3,2,2 --schedule interleaved"],
    "05_tensor_parallel": [f"2 05_tensor_parallel/tensor_parallel {MLP} --layers 6,8,4,8,3 --overlap"],
    "08_context_parallel": [
        f"{ranks} 08_context_parallel/ring_attention --log-every 0 --max-steps 3 --words 2000 --context 12"
        for ranks in (2, 3)],
    "09_expert_parallel": [
        "2 09_expert_parallel/moe_parallel --log-every 0 --max-steps 3 --words 2000 --experts 4 --overlap"],
    "06_fsdp": [
        f"2 06_fsdp/fsdp {MLP} --layers 6,5,4,4,2",
        f"2 06_fsdp/fsdp {MLP} --layers 6,5,4,4,2 --no-prefetch"],
}
PATIENCE = 60  # seconds for a run


def runs_of(file: str) -> list[list[str]]:
    return [words.split() for words in RUNS.get(file) or RUNS.get(file.partition("/")[0], [])]


def lines_with_marks(source: str) -> list[int]:
    return [number for number, line in enumerate(source.split("\n"), 1)
            if re.search(r"CUDA_CHECK\(cuda(EventRecord|StreamWaitEvent)", line)]


def finding(output: str) -> str:
    """The first line in which the order checker names two places; empty if there is none."""
    found = re.search(r"^order: .*:[0-9]+ .* and .*:[0-9]+ .*", output, re.M)
    return found[0] if found else ""


def said_without(solutions: str, file: str, line: int) -> str:
    """What the order checker finds in a run in which it ignores what stands in that line; empty if it finds nothing."""
    environment = dict(os.environ, WORKSHOP_ORDER="1", WORKSHOP_ORDER_IGNORE=f"{file}:{line}")
    for ranks, program, *options in runs_of(file):
        shutil.rmtree("saved", ignore_errors=True)
        training = [f"{solutions}/{program}", *options, "--record", "run.jsonl"]
        _, output = run([LAUNCH, "-n", ranks, "-t", str(PATIENCE), "--", *training], 2 * PATIENCE, env=environment)
        said = finding(output)
        if said:
            return said
    return ""


def main(words: list[str]) -> int:
    solutions, file = words
    with open(os.path.join(ROOT, "solutions", file), encoding="utf-8") as source:
        lines = lines_with_marks(source.read())
    if not lines or not runs_of(file):
        print(f"{file}: {len(lines)} records and waits, {len(runs_of(file))} runs")
        return 1
    status = 0
    for line in lines:
        print(f"without {file}:{line}", flush=True)
        said = said_without(solutions, file, line)
        print(said or "  nothing is found", flush=True)
        status = status if said else 1
    return status


if __name__ == "__main__":
    run_main(main)

# SPDX-License-Identifier: Apache-2.0
"""Whether a training on several nodes learns what one on this machine does: same_on_nodes.py COMPARE BOUND NODES RANKS
PROGRAM [OPTION]...

Trains on NODES nodes of RANKS ranks each, and with as many ranks on this machine; COMPARE judges the two run records,
with BOUND. Skipped where there are no nodes (with_nodes).
"""
from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from support import LAUNCH, run, run_main

WITH_NODES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "with_nodes")
PATIENCE = 60  # seconds for a training


def main(words: list[str]) -> int:
    compare, bound, nodes, ranks, *program = words
    training = [LAUNCH, "-n", str(int(nodes) * int(ranks)), "-t", str(PATIENCE), "--", *program, "--record"]
    for command in ([WITH_NODES, nodes, ranks, *training, "nodes.jsonl"], [*training, "here.jsonl"],
                    [compare, "--compare", "here.jsonl", "nodes.jsonl", bound]):
        status, output = run(command, 2 * PATIENCE)
        print(output, end="", flush=True)
        if status:
            return status
    return 0


if __name__ == "__main__":
    run_main(main)

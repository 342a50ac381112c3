# SPDX-License-Identifier: Apache-2.0
"""Starts a program with torchrun on several nodes: with_torchrun.py NODES RANKS PROGRAM

On so many nodes, one torchrun each, which meet on the first (c10d) and start RANKS ranks each. Says why not where there
is no torchrun, in PATH or as $TORCHRUN.
"""
from __future__ import annotations

import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from support import LAUNCH
from workshop import processes

WITH_NODES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "with_nodes")
PATIENCE = 150  # seconds for all; importing torch takes some
SKIPPED = 77


def main(words: list[str]) -> int:
    nodes, ranks, program = words
    torchrun = processes.which(os.environ.get("TORCHRUN") or "torchrun")
    if not torchrun:
        print("with_nodes: no torchrun here; TORCHRUN may name one")
        return SKIPPED
    command = [WITH_NODES, nodes, "1", LAUNCH, "-n", nodes, "-t", str(PATIENCE), "--", torchrun, "--nnodes", nodes,
               "--nproc-per-node", ranks, "--rdzv-backend", "c10d", "--rdzv-id", str(random.randrange(1 << 30)),
               "--rdzv-endpoint", "node0:29400", "--no-python", program]
    sys.stdout.flush()
    os.execve(command[0], command, dict(os.environ, OMP_NUM_THREADS="1"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

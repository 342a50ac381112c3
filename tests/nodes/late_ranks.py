# SPDX-License-Identifier: Apache-2.0
"""Starts three ranks one after the other: late_ranks.py PROGRAM

This launcher does not end the others when a rank fails. MASTER_PORT is wrong, so each of them does. The first says why;
the others find out that it has, if they start within the second for which it stays. Ends as the last rank does.
"""
from __future__ import annotations

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from support import end_all, end_by_exception, status_of

PATIENCE = 60  # seconds for a rank


def start(program: str, rank: int) -> subprocess.Popen:
    variables = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "http", "RANK": str(rank),
                 "LOCAL_RANK": str(rank)}
    return subprocess.Popen([program], env=dict(os.environ, **variables), stderr=subprocess.PIPE)


def main(words: list[str]) -> int:
    end_by_exception()
    ranks: list[subprocess.Popen] = []
    said = b""
    try:
        ranks.append(start(words[0], 0))
        said = ranks[0].stderr.readline()  # now it has failed, and stays for a second
        for rank in (1, 2):
            ranks.append(start(words[0], rank))
            said += ranks[rank].communicate(timeout=PATIENCE)[1]
        said += ranks[0].communicate(timeout=PATIENCE)[1]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                end_all(rank)
    sys.stderr.write(said.decode("utf-8", "replace"))
    return status_of(ranks[-1].returncode)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""Passes if a command ends with a given status and prints exactly one line, which matches:
one_line.py STATUS REGEX COMMAND...

That ranks share a GPU, or GPUs stay idle, is said in a line of its own.
"""
from __future__ import annotations

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from support import run, run_main, without_notes

PATIENCE = 600  # seconds; the commands end themselves, and CTest has limits of its own


def is_right(status: int, output: str, expected: int, pattern: str) -> bool:
    return status == expected and "\n" not in output and re.search(pattern, output) is not None


def main(words: list[str]) -> int:
    expected, pattern, *command = words
    status, output = run(command, PATIENCE, stdin=None)
    output = without_notes(output.replace("\0", ""))  # mpirun of Open MPI 5 puts zeros beside what it says of an abort
    if is_right(status, output, int(expected), pattern):
        return 0
    print(f"{output}\none_line: status {status}, expected {expected} and one line that matches: {pattern}")
    return 1


if __name__ == "__main__":
    run_main(main)

# SPDX-License-Identifier: Apache-2.0
"""Runs a check as a test: judge_exercise.py CHECK_EXERCISE [ARGUMENT]...

Ends as the check does. Where the exercise ended with status 77 at a TODO that is open, it must have said which one
comes first, once: its number, its whole text, and the file and line of its todo(). So an exercise as handed out is
tested too, and counts as skipped.
"""
from __future__ import annotations

import glob
import os
import re
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
OPEN = 77


def read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def place_of(todo: str, root: str) -> tuple[str, int]:
    """File and line of its todo(), in the exercise."""
    for end in ("cu", "h"):
        for path in sorted(glob.glob(f"{glob.escape(root)}/{todo.partition('.')[0]}_*/*.{end}")):
            for number, line in enumerate(read(path).split("\n"), 1):
                if f'todo("{todo}");' in line:
                    return os.path.relpath(path, root), number
    return "", 0


def text_of(todo: str, file: str, line: int, root: str) -> list[str]:
    """The lines of a TODO's comment, which ends above `line`."""
    lines = read(os.path.join(root, file)).split("\n")[:line - 1]
    start = next(i for i, text in enumerate(lines) if re.search(rf"// (TODO|WRITE) {re.escape(todo)}: ", text))
    return [text.partition("// ")[2].lstrip(" ") for text in lines[start:]]


def complaint(output: str, root: str) -> str:
    """What is wrong with what an exercise said when it came to an open TODO; empty if nothing is."""
    todos = re.findall(r"^ *(?:TODO|WRITE) ([0-9]+\.[0-9A-Z]+): ", output, re.M)
    if len(todos) != 1:
        return f"names {len(todos)} TODOs, expected one"
    file, line = place_of(todos[0], root)
    if not file:
        return f"names TODO {todos[0]}, which is not open"
    lines = output.split("\n")
    if sum(f"{file}:{line}" in said for said in lines) != 1:
        return f"does not name {file}:{line} once"
    for text in text_of(todos[0], file, line, root):
        if not any(text in said for said in lines):
            return f"leaves out '{text}'"
    return ""


def main(words: list[str]) -> int:
    status = subprocess.run(words, check=False).returncode
    if status != OPEN:
        return status if status >= 0 else 128 - status
    output = read("mine.jsonl.out")
    wrong = complaint(output, ROOT)
    if wrong:
        print(f"{output.rstrip()}\njudge_exercise: {wrong}")
        return 1
    return OPEN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

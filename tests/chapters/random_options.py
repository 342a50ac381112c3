# SPDX-License-Identifier: Apache-2.0
"""Starts the programs in a folder with random sets of options, on one rank and on two: random_options.py BIN COUNT

Each must end with status 0, 1, 2 or, if it was told to stop (long_run --warned-ranks), 75, by itself and soon, and a
refusal (2) is one line on stderr. The sets are always the same ones, unless WORKSHOP_TEST_SEED names others.
"""
from __future__ import annotations

import collections
import glob
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from support import LAUNCH, expect, run, run_main

PATIENCE = 60  # seconds for a run
FILES = ("out.jsonl", "other.json", "pipe", "saved", "other")  # that the options below may name
FINDING = re.compile("runtime error:|Sanitizer|order: |bounds: ")
KNOWN_TYPE = re.compile(r"N|X|N,N,.*|FILE|FOLDER|TEXT|[^ ]*\|[^ ]*")

# What a run takes time from, whatever its type says.
OF_OPTION = {
    "--max-steps": "1 2 3 -1 2147483648 x".split(),
    "--iterations": "1 2 0 99999999999 x".split(),
    "--simulate-compute": "0.5 1 -1 0 1e7 nan".split(),
    "--slow-disk": "0 1 -1 10001 x".split(),
    "--schedule": "gpipe 1f1b interleaved zb-h1 zb-v pipe /dev/null x".split(),
    "--slots": "1,1,1 2,2,1 0,1,1 1,1 x".split(),
}
# By type: values that make a program run, and those that are near a limit or make no sense.
OF_TYPE = {
    "N": ("1 2 3 4 8 16".split(),
          ("0 -1 1.5 x 7 100 1000 32768 65536 1000000 1073741823 1073741824 2147483647 2147483648 "
           "99999999999999999999").split()),
    "N,N": ("6,4,2 6,8,4,2 8,8,8,8,8 4,8,4,8,4".split(),
            [*"1,1 6 6,0,2 x,1 6, 65537,65536 46341,46341 1,2147483647 2147483648,1 64,1000000,1".split(),
             "4," * 500 + "4"]),
    "X": ("0.001 0.5 1 25".split(), "0 -1 1e-300 1e15 1e16 1e300 1e999 inf nan x".split()),
    "FOLDER": ("saved other".split(), "pipe out.jsonl /proc/saved nowhere".split()),
}
WITHOUT_GOOD_ONES = {
    "FILE": "out.jsonl other.json pipe . /nowhere/file /dev/null".split(),
    "TEXT": ["out.jsonl", "pipe", "", "/nowhere/file", "x" * 300],
}


class Random:
    """Random choices, the same for a seed in all versions of Python: these only promise it of random()."""

    def __init__(self, seed: str):
        self._random = random.Random(seed)

    def below(self, limit: int) -> int:
        return int(self._random.random() * limit)

    def choice(self, values):
        return values[self.below(len(values))]


def options_in(help_text: str) -> dict[str, str]:
    """The options of a program and their types, from its help: "--lr X" in a line; the type of a flag is empty."""
    found = {}
    for name, rest in re.findall(r"^ +(--[a-z0-9-]+)[^ \n]* *(.*)$", help_text, re.M):
        word = (rest.split() or [""])[0].partition("=")[0]
        found[name] = word if KNOWN_TYPE.fullmatch(word) else ""
    return found


def values_of(option: str, kind: str, good: bool) -> list[str]:
    if option in OF_OPTION:
        return OF_OPTION[option]
    if kind in WITHOUT_GOOD_ONES:
        return WITHOUT_GOOD_ONES[kind]
    if "|" in kind:
        return kind.split("|") if good else ["x", "", "all"]
    return OF_TYPE["N,N" if kind.startswith("N,N") else kind][0 if good else 1]


@dataclass
class Set:
    """A program with options."""

    program: str
    ranks: int
    options: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"on {self.ranks} ranks: {self.program} {' '.join(self.options)}"


def draw(numbers: Random, programs: dict[str, dict[str, str]]) -> Set:
    program = numbers.choice(list(programs))
    known = programs[program]
    options = []
    for _ in range(1 + numbers.below(6)):
        option = numbers.choice(list(known))
        if known[option]:
            option += "=" + numbers.choice(values_of(option, known[option], numbers.below(8) > 0))
        options.append(option)
    # In front, so that a random one is the one that counts.
    if "--model" in known and numbers.below(5) == 0:
        options.insert(0, "--model=alexnet")
    if "--model=alexnet" in options:  # one that fits
        options = ["--image-size=32", "--shrink=32", "--batch-size=4", "--samples=40", *options]
    if "--max-steps" in known:
        options.insert(0, "--max-steps=2")
    if "--words" in known:  # the evaluation goes through the whole text
        options.insert(0, "--words=2000")
    return Set(program, 1 + numbers.below(2), options)


def is_right(status: int, said: str) -> bool:
    """Whether a program may end with this status when it has said this on stderr."""
    said = said.rstrip("\n")
    if status not in (0, 1, 2, 75) or FINDING.search(said):
        return False
    return status != 2 or (said != "" and "\n" not in said)


def try_all(solutions: str, count: int, numbers: Random) -> None:
    paths = sorted(path for path in glob.glob(f"{glob.escape(solutions)}/*/*")
                   if os.path.isfile(path) and os.access(path, os.X_OK))
    expect(len(paths) > 10, f"there are just {len(paths)} programs in {solutions}")
    programs = {os.path.relpath(path, solutions): options_in(run([path, "--help"], PATIENCE)[1]) for path in paths}
    for program, options in programs.items():
        expect(options, f"{program} --help shows no options")
    environment = dict(os.environ)
    # Little memory: what does not fit is refused before it takes time.
    environment["WORKSHOP_DEVICE_MEMORY"] = "32M"
    environment["WORKSHOP_ORDER"] = "1"  # a finding ends a program with status 1, as a sanitizer's does
    seen: collections.Counter[int] = collections.Counter()
    for number in range(count):
        one = draw(numbers, programs)
        command = [LAUNCH, "-n", str(one.ranks), "-t", str(PATIENCE), "--", f"{solutions}/{one.program}", *one.options]
        status, said = run(command, 2 * PATIENCE, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        expect(is_right(status, said),
               f"{said[-2000:]}\nset {number} {one}: status {status}, expected 0, 1, 75, or 2 with one line")
        seen[status] += 1
    for status, times in sorted(seen.items()):
        print(f"status {status}: {times} of {count}")
    expect(seen[0] + seen[75] > count // 10 and seen[2] > count // 10, "hardly any run, or hardly any refusal")


def main(words: list[str]) -> int:
    solutions, count = words
    for name in FILES:
        shutil.rmtree(name) if os.path.isdir(name) else os.path.lexists(name) and os.unlink(name)
    os.mkfifo("pipe")
    try_all(solutions, int(count), Random(os.environ.get("WORKSHOP_TEST_SEED", "1")))
    return 0


if __name__ == "__main__":
    run_main(main)

# SPDX-License-Identifier: Apache-2.0
"""Starts programs on two ranks that differ in one option, once for each option: same_options.py BIN

They must refuse, with one line that names the option, unless the option is one of those that may differ. An option that
several programs have is tried in the first of them, because they share the code.
"""

from __future__ import annotations

import glob
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from support import LAUNCH, expect, run, run_main

PATIENCE = 60
MAY_DIFFER = {"--log-every", "--peak-tflops", "--record", "--text", "--images", "--timeline", "--verbose", "--workers"}
ENDS_EARLY = {"--print"}  # a rank with it ends before it meets the others, who then wait in vain
ALONE = ("one_process", "mlp", "gpt", "plan", "hello")  # one rank, or none


def other_value(kind: str, default: str) -> str:
    """A value that is not the default."""
    if "|" in kind:
        return next(choice for choice in kind.split("|") if choice != default)
    if kind.startswith("N,N"):
        return "6,8,2"
    if kind == "X":
        return "0.25"
    if kind == "N":
        return "4" if default in ("2", "0", "1") else "2"
    return "saved"


def options_of(program: str) -> list[tuple[str, str]]:
    """The options of a program, each with a value that is not its default; "" for a flag."""
    _, output = run([program, "--help"], PATIENCE)
    found = []
    for line in output.splitlines():
        match = re.match(r"  (--[a-z0-9-]+)(?:,(--no-[a-z-]+)\{false\})?(?: ([A-Za-z0-9,|…_]+)(?:=([^; ]*))?)?(?:  |$)", line)
        if match:
            name, negation, kind, default = match.groups()
            name = negation or name  # such options are on by default
            found.append((name, other_value(kind, default or "") if kind else ""))
    return found


def check(program: str, name: str, value: str) -> None:
    word = name + (f" {value}" if value else "")
    script = f'[ "$OMPI_COMM_WORLD_RANK" = 1 ] && set -- "$@" {word}; exec "$0" "$@"'
    status, output = run([LAUNCH, "-n", "2", "-t", "30", "--", "sh", "-c", script, program], PATIENCE)
    named = name[2:].removeprefix("no-") in output
    expect(status == 2 and named, f"{program} with {word} on rank 1: status {status}\n{output}")


def main(words: list[str]) -> int:
    programs = [p for p in sorted(glob.glob(os.path.join(os.path.abspath(words[0]), "[01]*", "*"))) if os.access(p, os.X_OK)]
    programs = [p for p in programs if os.path.basename(p) not in ALONE and not p.endswith("_bf16") and os.path.isfile(p)]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        checks: dict[str, tuple[str, str]] = {}
        for program in programs:
            for name, value in options_of(program):
                if name not in MAY_DIFFER | ENDS_EARLY:
                    checks.setdefault(name, (program, value))
        # A refused job ends only when its launcher has given up on the other ranks, which takes time but no processor.
        with ThreadPoolExecutor(6) as pool:
            for done in [pool.submit(check, program, name, value) for name, (program, value) in checks.items()]:
                done.result()
        os.chdir("/")
    print(f"{len(programs)} programs, {len(checks)} options")
    return 0


if __name__ == "__main__":
    run_main(main)

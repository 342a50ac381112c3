# SPDX-License-Identifier: Apache-2.0
"""What all verbs of ./workshop share: the backend, the build folder, and building."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile

from . import building, machine
from .chapters import Chapter, read
from .errors import Failed, Refused

LAUNCH = "tools/launch"
# The machine that is simulated where there is no GPU: that of 02_ddp/experiments.md.
COURSE_MACHINE = "compute=1T,link=2us+10G/s,node=4,between=5us+5G/s"


class Context:
    def __init__(self, backend: str, folder: str):
        self.backend = backend
        self.folder = folder  # what is built
        self.builder = building.Builder(backend, folder)

    def build(self, *targets: str, tests: bool = False) -> None:
        self.builder.build(*targets, tests=tests)

    def path(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)

    def program(self, chapter: Chapter, program: str, solution: bool) -> str:
        return self.path(*(["solutions"] if solution else []), chapter.name, program)

    def build_program(self, chapter: Chapter, program: str, solution: bool, options: list[str], *more: str) -> None:
        self.build(*targets_of(chapter, program, solution, options), *more)

    def simulate(self) -> None:
        """Makes the cpu backend simulate a machine, unless the user has chosen one or none."""
        if self.backend == "cpu":
            simulated = os.environ.setdefault("WORKSHOP_SIMULATE", COURSE_MACHINE)
            if simulated:
                print(f"Simulated: {simulated}", flush=True)


def targets_of(chapter: Chapter, program: str, solution: bool, options: list[str]) -> list[str]:
    """What is built for a run. A program that offers --precision is built once for each."""
    target = f"{'solution_' if solution else ''}{chapter.name}_{program}"
    in_bf16 = "--precision bf16" in " ".join(options) and "with_precision" in read(
        f"solutions/{chapter.name}/{program}.cu"
    )
    return [target, target + "_bf16"] if in_bf16 else [target]


def parse_ranks(text: str) -> list[int] | None:
    """The numbers of "1,2,4", or None."""
    return [int(part) for part in text.split(",")] if re.fullmatch("[1-9][0-9]*(,[1-9][0-9]*)*", text) else None


def is_number(text: str) -> bool:
    return bool(re.fullmatch("[1-9][0-9]*", text))


def run(command: list[str], **options) -> None:
    """Runs a command; the verb fails as it does."""
    status = subprocess.run(command, check=False, **options).returncode
    if status:
        raise Failed(status if status > 0 else 128 - status)


def recorded_run(
    program: str, ranks: int, options: list[str], environment: dict[str, str]
) -> tuple[int, list[dict], str]:
    """Runs a program with a record. Returns its status, the lines of the record if it is 0, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "record.jsonl")
        done = subprocess.run(
            [LAUNCH, "-n", str(ranks), "-t", "120", "--", program, *options, "--record", record],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        lines = [] if done.returncode else [json.loads(line) for line in read(record).splitlines()]
    return done.returncode, lines, done.stdout.decode("utf-8", "replace")


def output_of(command: list[str], **options) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, **options)
    if done.returncode:
        raise Failed(done.returncode if done.returncode > 0 else 128 - done.returncode)
    return done.stdout.decode("utf-8", "replace")


class Words:
    """The words of a verb, read one by one."""

    def __init__(self, words: list[str]):
        self._rest = list(words)

    def __bool__(self) -> bool:
        return bool(self._rest)

    def next(self, default: str = "") -> str:
        return self._rest.pop(0) if self._rest else default

    def peek(self) -> str:
        return self._rest[0] if self._rest else ""

    def rest(self) -> list[str]:
        rest, self._rest = self._rest, []
        return rest


def default_ranks(chapter: Chapter, program: str) -> int:
    """How many ranks a program gets if none are asked for: 2, or 1 if it is one process, as its main() says."""
    source = read(f"solutions/{chapter.name}/{program}.cu")
    return 1 if re.search(r"for_one_rank\(\)|options\.devices = |job\.emplace\(", source) else 2


def require(condition: object, message: str) -> None:
    if not condition:
        raise Refused(message)


def in_slurm_job() -> bool:
    return machine.in_slurm_job()

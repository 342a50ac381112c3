# SPDX-License-Identifier: Apache-2.0
"""Runs mutants of a chapter's TODOs through its checks, as ./workshop check would: each must be found wrong, unless
checker/mutants/equivalent.txt says why nothing can tell it from the solution.

  soak [--todos NN.k,…] [--sample K] [--seed S] [--jobs N] [--keep N] BUILD CHAPTER

It takes K mutants per TODO that compile (8; 0: all), drawn by the seed; with --todos, only those of these TODOs.
BUILD/mutants/CHAPTER.results says what became of each: name, "caught", "survived", "equivalent" or "not equivalent",
the TODO that the verdict named, how to run it, and the lines before and after. With --keep, N that were caught, of
different TODOs, become the chapter's list in checker/mutants, which the tests run. Status: 0; 1 if a mutant survived,
or one was caught that equivalent.txt lists; 2 if something prevents the soak.
"""
from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Callable, Iterable

from . import mistakes, processes

ROOT = mistakes.ROOT
CHECK_CHAPTER = os.path.join(ROOT, "checker", "check_chapter")
ADDRESS_SPACE = 8_000_000 * 1024  # bytes per process
PATIENCE = 3600  # seconds for the checks of one program, which end their runs themselves after a minute each


class Refused(Exception):
    """What prevents a soak."""


@dataclass
class Arguments:
    todos: list[str]  # empty: all
    sample: int
    seed: str
    jobs: int
    keep: int
    build: str
    chapter: str


def parse(words: list[str]) -> Arguments:
    values = {"--todos": "", "--sample": "8", "--seed": "1", "--jobs": "1", "--keep": "0"}
    rest = list(words)
    while rest and rest[0].startswith("--"):
        option = rest.pop(0)
        if option not in values:
            raise Refused(f"unknown option '{option}'")
        if not rest:
            raise Refused(f"{option} lacks its value")
        values[option] = rest.pop(0)
    numbers = {}
    for option in ("--sample", "--jobs", "--keep"):
        if not re.fullmatch("[0-9]+", values[option]):
            raise Refused(f"{option} expects a number, not '{values[option]}'")
        numbers[option[2:]] = int(values[option])
    if len(rest) != 2:
        raise Refused("expected BUILD CHAPTER")
    return Arguments(values["--todos"].split(",") if values["--todos"] else [], seed=values["--seed"],
                     build=os.path.realpath(rest[0]), chapter=rest[1], **numbers)


# ---- mutants -------------------------------------------------------------------------------------------------------


@dataclass
class Mutant:
    """A line of what make_mutants prints."""

    name: str  # "02.1-mb01e8a"
    before: str
    after: str

    @property
    def todo(self) -> str:
        return self.name.partition("-")[0]


def parse_list(text: str) -> list[Mutant]:
    return [Mutant(*line.split("\t", 2)) for line in text.splitlines()]


def first(mutants: Iterable[Mutant], most: int) -> list[Mutant]:
    """The first `most` of each TODO; all for 0."""
    count: dict[str, int] = {}
    found = []
    for mutant in mutants:
        count[mutant.todo] = count.get(mutant.todo, 0) + 1
        if not most or count[mutant.todo] <= most:
            found.append(mutant)
    return found


def shuffled(mutants: list[Mutant], seed: str) -> list[Mutant]:
    """In an order that the seed decides. It is the order of shuf(1), so that a seed draws what it has always drawn."""
    with tempfile.NamedTemporaryFile("w") as random:
        random.write(f"{seed}\n" * (64 * len(mutants) + 64))
        random.flush()
        done = subprocess.run(["shuf", f"--random-source={random.name}"], check=True, stdout=subprocess.PIPE, text=True,
                              input="".join(f"{number}\n" for number in range(len(mutants))), timeout=60)
    return [mutants[int(number)] for number in done.stdout.split()]


def draw(mutants: list[Mutant], todos: list[str], sample: int, seed: str) -> list[Mutant]:
    """More than the sample, because some do not compile."""
    of_todos = [mutant for mutant in mutants if not todos or mutant.todo in todos]
    return first(shuffled(of_todos, seed), 2 * sample + 4 if sample else 0)


def places_of_errors(output: str, chapter: str) -> list[tuple[str, int]]:
    """Files below the build folder, and their lines, in which the compiler has found an error."""
    lines = [line for line in output.splitlines() if "error:" in line or "required from" in line]
    found = re.findall(rf"(mutants/{re.escape(chapter)}/[^:\n]+):([0-9]+)", "\n".join(lines))
    return sorted({(file, int(line)) for file, line in found})


def filling_at(source: str, line: int) -> str:
    """The name of the filling to which a line of a source belongs; empty if there is none."""
    names = re.findall(r'workshop::filling\("([^"]*)', "\n".join(source.split("\n")[:line]))
    return names[-1] if names else ""


# ---- results -------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What became of a mutant: a line of CHAPTER.results."""

    mutant: Mutant
    what: str = "survived"
    named: str = ""  # the TODO that the verdict names
    how: str = ""  # to run it

    @property
    def is_named(self) -> bool:
        """Whether the checks have named the right TODO."""
        return self.what == "caught" and self.named == self.mutant.todo

    @property
    def is_failure(self) -> bool:
        return self.what in ("survived", "not equivalent")

    def line(self) -> str:
        mutant = self.mutant
        return "\t".join([mutant.name, self.what, self.named, self.how, mutant.before, mutant.after]) + "\n"


def listed_names(text: str) -> set[str]:
    """The mutants that equivalent.txt lists."""
    return {line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith("#")}


def mark_listed(results: list[Result], listed: set[str]) -> None:
    for result in results:
        if result.mutant.name in listed:
            result.what = "equivalent" if result.what == "survived" else "not equivalent"


def summary(chapter: str, made: int, drawn: int, compiled: int, results: list[Result]) -> str:
    def count(*whats: str) -> int:
        return sum(result.what in whats for result in results)

    return (f"{chapter}: {made} mutants, {drawn} drawn, {compiled} of them compile; of {len(results)} run "
            f"{count('caught')} caught, {sum(result.is_named for result in results)} with the right TODO named; "
            f"{count('equivalent')} equivalent, {count('survived', 'not equivalent')} survived\n")


def kept(results: list[Result], most: int) -> list[Result]:
    """Those for the tests: caught by a run at full speed, with the right TODO named, at most one per TODO, and spread
    over the chapter."""
    of_todo: dict[str, Result] = {}
    for result in results:
        if result.is_named and re.match(r"(WORKSHOP_SIMULATE=\S+ )?\./workshop", result.how):
            of_todo.setdefault(result.named, result)
    found = sorted(of_todo.values(), key=lambda result: int(result.named.partition(".")[2]))
    count = min(most, len(found))
    return [found[i * len(found) // count] for i in range(count)]


def kept_list(results: list[Result], code: Callable[[Mutant], str]) -> str:
    """The list of a chapter in the format of checker/mistakes."""
    text = "# Mutants that the checks have caught, of many: checker/mutants/soak --keep writes these.\n"
    for result in results:
        # WORKSHOP_SIMULATE=… ./workshop run 02 ddp -n 2 -- …
        before, _, command = result.how.rpartition("./workshop ")
        _, _, program, _, ranks, *options = command.split(" ", 5)
        machine = ["on", before.partition("=")[2].strip()] * bool(before)
        run = " ".join([ranks, *machine, *options])
        text += f"program {program}\nrun {run}\n{result.mutant.name}\n{code(result.mutant)}"
    return text


# ---- the soak ------------------------------------------------------------------------------------------------------


class Soak:
    def __init__(self, arguments: Arguments):
        self.arguments = arguments
        self.chapter, self.build = arguments.chapter, arguments.build
        self.folder = os.path.join(self.build, "mutants")  # its folder CHAPTER gets sources and programs
        self.checks = os.path.join(self.build, "checks", self.chapter)

    def path(self, end: str) -> str:
        return os.path.join(self.folder, self.chapter + end)

    def code_file(self, mutant: Mutant) -> str:
        return os.path.join(self.path(".all"), mutant.name + ".txt")

    # ---- those that compile ----

    def make(self) -> list[Mutant]:
        """All mutants of the chapter; their code goes to CHAPTER.all/."""
        shutil.rmtree(self.path(".all"), ignore_errors=True)
        os.makedirs(self.path(".all"))
        command = [f"{self.build}/tools/make_mutants", f"{ROOT}/solutions", self.chapter, self.path(".all")]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
        text = done.stdout.decode("utf-8", "replace")
        write(self.path(".list"), text)
        return parse_list(text)

    def compile(self, mutants: list[Mutant]) -> bool:
        """Compiles all of them together, in each of the chapter's programs."""
        fillings = [word for mutant in mutants for word in ("--filling", self.code_file(mutant))]
        generate = [f"{self.build}/tools/make_exercises", *fillings, f"{ROOT}/solutions", self.folder, self.chapter]
        build = ["cmake", "--build", self.build, "--target", f"mutants_{self.chapter}", "--", "-k", "0"]
        with open(self.path(".out"), "wb") as output:
            return all(subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode == 0
                       for command in (generate, build))

    def those_that_compile(self, mutants: list[Mutant]) -> list[Mutant]:
        """Compiles, without those in which there are errors, until there are none."""
        while not self.compile(mutants):
            output = read(self.path(".out"))
            wrong = {filling_at(read(os.path.join(self.build, file)), line)
                     for file, line in places_of_errors(output, self.chapter)}
            rest = [mutant for mutant in mutants if mutant.name not in wrong]
            if len(rest) == len(mutants):
                print("\n".join(output.splitlines()[-20:]), file=sys.stderr)
                raise Refused(f"{self.chapter} does not compile")
            mutants = rest
        return mutants

    # ---- what the checks find ----

    def programs(self) -> list[str]:
        return list(dict.fromkeys(line.split("\t")[1] for line in read(self.checks).splitlines()))

    def checks_of_mutants(self) -> str:
        """The checks of the chapter, of the programs with the mutants instead of the participant's."""
        programs = os.path.join(self.folder, self.chapter, "")
        lines = []
        for line in read(self.checks).splitlines():
            line = re.sub(r"(--sources\t)[^\t]*", lambda found: found[1] + self.folder, line, count=1)
            lines.append(re.sub(r"(--mine\t)[^\t]*/", lambda found: found[1] + programs, line, count=1))
        return "\n".join(lines) + "\n"

    def judge(self, mutant: Mutant) -> Result:
        """Checks one program of the chapter after the other, until one is found wrong."""
        result = Result(mutant)
        run = os.path.join(self.folder, "run", mutant.name)
        os.makedirs(os.path.join(run, "checks"), exist_ok=True)
        write(os.path.join(run, "checks", self.chapter), self.checks_of_mutants())
        for program in self.programs():
            done = subprocess.run([CHECK_CHAPTER, "--program", program, "--todo", mutant.todo, run, self.chapter],
                                  env=dict(os.environ, WORKSHOP_FILLING=mutant.name), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE, check=False)
            output = done.stdout.decode("utf-8", "replace")
            if done.returncode == 0 or "has no such check" in output:
                continue
            result.what = "caught"
            result.named = "\n".join(re.findall(r"^Stuck\? .* (.*)$", output, re.M))
            result.how = "\n".join(re.findall(r"^This run: (.*)$", output, re.M))
            break
        shutil.rmtree(run)
        return result

    def judge_all(self, mutants: list[Mutant], jobs: int, file) -> list[Result]:
        """Judges so many at a time; writes each result to the file as soon as there is one."""
        results = []
        with ThreadPoolExecutor(max(jobs, 1)) as pool:
            try:
                for future in as_completed([pool.submit(self.judge, mutant) for mutant in mutants]):
                    results.append(future.result())
                    file.write(results[-1].line())
                    file.flush()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                processes.stop_all(processes.descendants([os.getpid()]))
                raise
        return results

    def results(self, mutants: list[Mutant]) -> list[Result]:
        with open(self.path(".results"), "w", encoding="utf-8") as file:
            results = self.judge_all(mutants, self.arguments.jobs, file)
            # On a busy machine a run may be taken for one that hangs. What was found by another TODO's name is tried
            # again, alone.
            misnamed = [result for result in results if result.what == "caught" and not result.is_named]
            again = self.judge_all([result.mutant for result in misnamed], 1, file)
        results = [result for result in results if result not in misnamed] + again
        mark_listed(results, listed_names(read(os.path.join(mistakes.MUTANTS, "equivalent.txt"))))
        write(self.path(".results"), "".join(result.line() for result in results))
        return results

    def run(self) -> int:
        made = self.make()
        drawn = draw(made, self.arguments.todos, self.arguments.sample, self.arguments.seed)
        if not drawn:
            raise Refused(f"{self.chapter} has no mutants" + " of these TODOs" * bool(self.arguments.todos))
        compiled = self.those_that_compile(drawn)
        limit_address_space()
        results = self.results(first(compiled, self.arguments.sample))
        print(summary(self.chapter, len(made), len(drawn), len(compiled), results), end="")
        if self.arguments.keep:
            write(os.path.join(mistakes.MUTANTS, self.chapter + ".txt"),
                  kept_list(kept(results, self.arguments.keep), lambda mutant: read(self.code_file(mutant))))
        failures = [result for result in results if result.is_failure]
        for result in failures:
            print(f"  {result.mutant.name} {result.what}\n    - {result.mutant.before}\n    + {result.mutant.after}")
        return 1 if failures else 0


def read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def limit_address_space() -> None:
    """Limits that of the processes which are started from now on; an endless loop that appends then ends by itself."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = ADDRESS_SPACE if hard == resource.RLIM_INFINITY else min(hard, ADDRESS_SPACE)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def main(words: list[str]) -> int:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        return Soak(parse(words)).run()
    except (Refused, OSError, subprocess.SubprocessError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 2

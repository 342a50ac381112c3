# SPDX-License-Identifier: Apache-2.0
"""Judges a participant's programs of a chapter: runs the checks that the build lists for it, and makes one verdict of
all.

  check_chapter [--program NAME] [--todo NN.k] [--ranks N] [--verbose] [--jobs N] [--state FILE] [--build COMMAND]
                BUILD CHAPTER

BUILD/checks/CHAPTER has the checks, one per line (checker/Exercises.cmake). A check that finds a known mistake, or does
not end, is the last of its program, unless --verbose. After one that finds something certain, at most two more run:
those in which mistakes of this TODO are known. With --todo, other programs and precisions follow only if the TODO is
wrong and its mistake is not known, and then only with checks in which mistakes of it are known. --state keeps what is
known of each TODO, a line "right 02.1" each. Before the checks of a program, COMMAND CHAPTER PROGRAM runs, and for its
twin of another precision COMMAND CHAPTER PROGRAM_bf16. Status: 0 right, 1 wrong, 77 a TODO is not filled in, 2 not
comparable. """

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from typing import Callable

from . import processes, results
from .chapters import called, inside, order, read

RIGHT, WRONG, NOT_COMPARABLE, OPEN = 0, 1, 2, 77
WORDS = ["unreached", "unchecked", "right", "open", "wrong"]  # what is known of a TODO; later ones count more
WIDTH = 120


def on_ranks(ranks: str) -> str:
    return "on 1 rank" if ranks == "1" else f"on {ranks} ranks"


class Check:
    """A line of BUILD/checks/CHAPTER: folder, program, ranks and a call of check_exercise, behind a tab each."""

    def __init__(self, line: str, build: str):
        self.name, self.program, self.ranks, *self.command = line.rstrip("\t\n").split("\t")
        self.folder = os.path.join(build, "tests", "run", self.name)
        self.options = self.command[self.command.index("--") + 1 :] if "--" in self.command else []

    def values(self, option: str) -> list[str]:
        words = self.command[: len(self.command) - len(self.options)]
        return [words[i + 1] for i in range(len(words) - 1) if words[i] == option]

    @property
    def group(self) -> str:
        """The program that is built for it."""
        return self.program + ("_bf16" if "--precision bf16" in " ".join(self.options) else "")

    @property
    def text(self) -> str:
        return f"{self.program} {on_ranks(self.ranks)}"

    def has(self, todo: str) -> bool:
        """Whether one of the sources of its program has the TODO."""
        return any(re.search(rf"^ *// {re.escape(called(todo))}: ", read(file), re.M) for file in self.values("--todos"))

    def knows(self, todo: str) -> bool:
        """Whether there are fingerprints of the TODO's mistakes in this run."""
        run, here = " ".join(["run", self.program, self.ranks, *self.options]), False
        names = tuple(f"{name}-" for name in [todo, *inside(todo, self.values("--todos"))])
        for file in self.values("--fingerprints"):
            for line in read(file).splitlines():
                if line.startswith("run "):
                    here = line == run
                elif here and line.startswith(names):
                    return True
        return False

    def read(self, name: str) -> str:
        return read(os.path.join(self.folder, name))

    def forget(self) -> None:
        for name in ("status.txt", "verdict.txt", "todos.txt", "environment.txt"):
            try:
                os.unlink(os.path.join(self.folder, name))
            except OSError:
                pass

    def run(self) -> None:
        os.makedirs(self.folder, exist_ok=True)
        with open(os.path.join(self.folder, "messages.txt"), "wb") as messages:
            status = subprocess.run(
                self.command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=messages,
                check=False,
            ).returncode
        with open(os.path.join(self.folder, "status.txt"), "w", encoding="ascii") as file:
            file.write(f"{status}\n")

    @property
    def status(self) -> int | None:
        """The status of its run; None if it did not run."""
        text = self.read("status.txt").strip()
        return int(text) if text else None

    def todos(self) -> list[list[str]]:
        """What is known of each TODO: lines such as "right 02.1" and "blame certain 02.2 known", word by word."""
        lines = [line.split() for line in self.read("todos.txt").splitlines() if line.strip()]
        blame = next((words for words in lines if words[0] == "blame"), [])
        # What differs may belong to other code that the TODO calls, but the mistake is known: "TODO 02.3: You …".
        found = re.search(r"^ *(?:TODO|WRITE) ([0-9]+\.[0-9A-Z]+): ", self.read("verdict.txt"), re.M)
        mistaken = found[1] if found and self.status == WRONG and "certain" not in blame else ""
        if not any(words[1:] == [mistaken] for words in lines):
            return lines
        others = [words for words in lines if words != blame and words[1] not in (mistaken, *blame[2:3])]
        unclear = [["unchecked", todo] for todo in blame[2:3] if todo != mistaken]
        return [*others, *unclear, ["wrong", mistaken], ["blame", "certain", mistaken, "known"]]


# ---- running the checks --------------------------------------------------------------------------------------------


class Progress:
    """Says which check runs."""

    def __init__(self, total: int):
        self._total = total
        self._terminal = sys.stderr.isatty()
        self._lock = threading.Lock()

    def show(self, place: int, check: Check) -> None:
        text = f"[{place}/{self._total}] {check.text}"
        with self._lock:
            print(
                f"\r\x1b[K{text}" if self._terminal else text,
                end="" if self._terminal else "\n",
                file=sys.stderr,
                flush=True,
            )

    def end(self) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Stopping:
    """Decides which checks of a program still run after what those before have found."""

    def __init__(self, todo: str, verbose: bool):
        self._todo, self._verbose = todo, verbose
        self._lock = threading.Lock()
        self._stopped: set[str] = set()
        self._blamed: dict[str, str] = {}  # by program: the TODO that is certainly wrong
        self._more: dict[str, int] = {}  # checks since then

    def runs(self, check: Check) -> bool:
        with self._lock:
            if check.program in self._stopped:
                return False
            blamed = self._blamed.get(check.program)
            if blamed:
                if self._more[check.program] >= 2 or not check.knows(blamed):
                    return False
                self._more[check.program] += 1
            return True

    def found(self, check: Check) -> None:
        if self._verbose:
            return
        todos = check.todos()
        certain = [words for words in todos if words[:2] == ["blame", "certain"]]
        with self._lock:
            if (
                any(words[-1] == "known" for words in certain)
                or (self._todo and ["open", self._todo] in todos)
                or "did not finish" in check.read("verdict.txt")
            ):
                self._stopped.add(check.program)
            elif certain:
                if check.program not in self._blamed:
                    self._blamed[check.program] = certain[0][2]
                    self._more[check.program] = 0


def run_all(checks: list[tuple[int, Check]], jobs: int, stopping: Stopping, progress: Progress) -> None:
    """Raises OSError if a check could not be started."""
    queue, lock, errors = list(checks), threading.Lock(), []

    def work() -> None:
        while True:
            with lock:
                if not queue or processes.ending:
                    return
                place, check = queue.pop(0)
            try:
                if stopping.runs(check):
                    progress.show(place, check)
                    check.run()
                    stopping.found(check)
            except OSError as error:
                errors.append(error)
                queue.clear()

    threads = [threading.Thread(target=work) for _ in range(min(jobs, len(queue)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:  # such as Ctrl-C
        queue.clear()
        while any(thread.is_alive() for thread in threads):  # one may have been about to start a check
            processes.send(signal.SIGTERM, processes.descendants([os.getpid()]))
            time.sleep(0.1)
        raise
    if errors:
        raise errors[0]


# ---- one verdict ---------------------------------------------------------------------------------------------------


def wrapped(text: str) -> str:
    """Breaks long lines; what goes on in the next line is indented by two spaces more."""
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip(" "))] + "  "
        while len(line) > WIDTH:
            end = line[:WIDTH].rfind(" ")
            while end > 0 and line[end - 1] == " ":
                end -= 1
            if end < len(indent):
                break
            lines.append(line[:end])
            line = indent + line[end + 1 :]
        lines.append(line)
    return "".join(line + "\n" for line in lines)


class Verdict:
    """What is known of the TODOs of a chapter, and the check whose verdict is shown."""

    def __init__(self, chapter: str, checks: list[Check], narrowed: bool):
        self.known: dict[str, str] = {}
        self.best: Check | None = None
        self.shown = ""  # the TODO that it blames
        self.status = RIGHT
        self.others = 0  # runs that are wrong
        best_key = None
        for check in checks:
            of_run = check.status
            if of_run is None:
                continue
            certainty, named, blamed, is_known = "", "", (99, 99), False
            for words in check.todos():
                if words[0] == "blame":
                    certainty, named, blamed, is_known = words[1], words[2], order(words[2]), len(words) > 3
                    continue
                word, todo = words[0], words[1]
                # Of earlier chapters only what is in the way: with WORKSHOP_BUILD_ON=mine, theirs are known, too.
                if todo.startswith(chapter.split("_")[0] + ".") or word in ("wrong", "open"):
                    if todo not in self.known or WORDS.index(word) > WORDS.index(self.known[todo]):
                        self.known[todo] = word
            if of_run == RIGHT:
                continue
            self.others += of_run == WRONG
            # A TODO that is certainly wrong, from a run in which its mistake is known if there is one: such a mistake
            # may be why others differ. Of these, the first one; then one that probably is wrong; then a run that blames
            # none; then what did not run; then what is not filled in.
            kind = {"certain": 0, "likely": 1}.get(certainty, {WRONG: 2, OPEN: 4}.get(of_run, 3))
            key = (kind, not is_known, blamed)
            if best_key is None or key < best_key:
                best_key, self.best, self.status, self.shown = key, check, of_run, named
        if self.status not in (RIGHT, WRONG, OPEN):
            self.status = NOT_COMPARABLE
        if narrowed:  # that a part of the chapter does not reach a TODO is no news
            self.known = {todo: word for todo, word in self.known.items() if word != "unreached"}

    @property
    def unplaced(self) -> bool:
        """Whether a run is wrong, but nobody knows which TODO of the chapter is."""
        return self.status == WRONG and not self.those("wrong")

    def those(self, word: str) -> list[str]:
        return sorted((todo for todo, known in self.known.items() if known == word), key=order)

    def state(self) -> str:
        return "".join(
            f"{word} {todo}\n"
            for word in ("right", "wrong", "open", "unreached", "unchecked")
            for todo in self.those(word)
        )

    def summary(self) -> str:
        parts = []
        # A run stops at the first open TODO, and is judged up to the first mistake.
        cut_short = self.unplaced or bool(self.those("open") or self.those("wrong"))
        for word in ("right", "wrong", "open", "unreached", "unchecked"):
            todos = self.those(word)
            if word == "wrong" and self.shown in todos and len(todos) > 1:
                others = " ".join(todo for todo in todos if todo != self.shown)
                parts.append(f"wrong {self.shown}, and perhaps because of that {others}")
            elif todos:
                so_far = " so far" if word == "right" and cut_short else ""
                why = ", because of what is open or wrong" if word == "unchecked" else ""
                parts.append(f"{word.replace('un', 'not ', 1)}{so_far} {' '.join(todos)}{why}")
            elif word == "wrong" and self.unplaced:
                todo = next_todo(self)
                parts.append(f"wrong one of these, in how it uses {called(todo)}" if todo else "wrong one of these")
        return " · ".join(parts)


def shown_check(chapter: str, check: Check, verbose: bool) -> str:
    """The verdict of a check, and how to see it again."""
    text = check.read("verdict.txt") or check.read("messages.txt")
    if not verbose:  # what is right in this run only would be confusing beside what is right in all of them
        text = re.sub(r"^Right so far: .*\n", "", text, flags=re.M)
    text = wrapped(text)
    if check.status == WRONG:
        options = " ".join(check.options)
        machine = "".join(f"WORKSHOP_SIMULATE={value} " for value in check.values("--simulate"))
        text += f"This run: {machine}./workshop run {chapter.split('_')[0]} {check.program} -n {check.ranks}"
        text += f" -- {options}\n" if options else "\n"
    return text


def next_todo(verdict: Verdict) -> str:
    """The TODO to work on next."""
    assert verdict.best
    if verdict.shown:
        return verdict.shown
    for line in verdict.best.read("verdict.txt").splitlines():
        found = re.match(r"(?:Next: )?(?:TODO|WRITE) ([0-9]+\.[0-9A-Z]+)", line)
        if found:
            return found[1]
    return next(iter(verdict.those("wrong") + verdict.those("open")), "")


def notes(checks: list[Check], all_right: bool) -> str:
    """What is right and could be better, such as a host that waits: the notes of the first run that has some."""
    for check in checks:
        text = check.read("verdict.txt")
        if all_right:  # that something was not compared is no news: it was in another run
            text = re.sub(r"^Note: with --precision bf16.*\n", "", text, flags=re.M)
        found = re.search(r"^Note:.*", text, re.M | re.S)
        if found:
            return wrapped(found[0])
    return ""


# ---- command line --------------------------------------------------------------------------------------------------


class Arguments:
    def __init__(self, words: list[str]):
        self.program = self.todo = self.ranks = self.build_command = ""
        self.state = os.devnull
        self.jobs, self.verbose = 1, False
        self.results: results.Results | None = None  # to be filled in
        rest = list(words)
        while rest and rest[0].startswith("--"):
            word = rest.pop(0)
            if word == "--verbose":
                self.verbose = True
            elif word in ("--program", "--todo", "--ranks", "--state") and rest:
                setattr(self, word[2:], rest.pop(0))
            elif word == "--jobs" and rest:
                self.jobs = int(rest.pop(0))
            elif word == "--build" and rest:
                self.build_command = rest.pop(0)
            else:
                raise ValueError(f"unknown option '{word}'")
        self.build, self.chapter = rest

    @property
    def narrowed(self) -> bool:
        return bool(self.program or self.todo or self.ranks)


def chosen(arguments: Arguments, lines: list[str]) -> list[Check]:
    """The checks that are asked for, those of bf16 last."""
    checks = [Check(line, arguments.build) for line in lines]
    checks = [
        check
        for check in checks
        if arguments.program in ("", check.program)
        and arguments.ranks in ("", check.ranks)
        and (not arguments.todo or check.has(arguments.todo))
    ]
    return sorted(checks, key=lambda check: check.group.endswith("_bf16"))


def run_groups(arguments: Arguments, checks: list[Check], build: Callable[[str], bool] | None) -> bool:
    """Runs the checks, program by program. `build`, if any, builds what a program's checks take and returns whether
    that went well. Returns whether what is asked for could be built."""
    stopping, progress = Stopping(arguments.todo, arguments.verbose), Progress(len(checks))
    is_wrong = False  # a program before has found the TODO wrong: others say more only if they know its mistakes
    for group in dict.fromkeys(check.group for check in checks):
        todo = arguments.todo
        of_group = [
            (place, check)
            for place, check in enumerate(checks, 1)
            if check.group == group and (not is_wrong or check.knows(todo))
        ]
        if not of_group:
            continue
        if build and not build(group):
            if is_wrong:
                break
            return False
        run_all(of_group, arguments.jobs, stopping, progress)
        if todo and not arguments.verbose:
            found = [words for _, check in of_group for words in check.todos()]
            if ["open", todo] in found or ["blame", "certain", todo, "known"] in found:
                break
            is_wrong |= ["blame", "certain", todo] in found
    progress.end()
    return True


def right_in(checks: list[Check], todo: str) -> str:
    """The runs in which a TODO is right: "ddp on 2, 3 ranks; ddp_overlap on 2 ranks"."""
    ranks: dict[str, set[int]] = {}
    for check in checks:
        if ["right", todo] in check.todos():
            ranks.setdefault(check.program, set()).add(int(check.ranks))
    return "; ".join(
        f"{program} {on_ranks(', '.join(map(str, sorted(of_it))))}" for program, of_it in ranks.items()
    )


def report(arguments: Arguments, checks: list[Check], verdict: Verdict) -> str:
    text = ""
    if arguments.verbose:
        for check in checks:
            if check.status is not None:
                text += f"== {check.text}\n{shown_check(arguments.chapter, check, True)}\n"
    elif verdict.best:
        text += shown_check(arguments.chapter, verdict.best, False)
    if arguments.todo:
        word = verdict.known.get(arguments.todo, "unreached")
        covered = f" ({right_in(checks, arguments.todo)})" if word == "right" else ""
        if word == "right" and verdict.best and "does not compile for --precision" in text:
            word, covered = "right in float32", covered + ", not checked in another precision:"
        elif word == "right" and verdict.unplaced:
            word = "right so far"
        asked = f"{called(arguments.todo)}: {word.replace('un', 'not ', 1)}{covered}\n"
        # What else is open comes behind what was asked for.
        text = asked + text if word.startswith("right") else text + asked
    if verdict.best:
        todo = next_todo(verdict)
        text += f"Stuck? ./workshop hint {todo}\n" if todo else ""
    else:
        all_right = len(verdict.known) == len(verdict.those("right"))
        if all_right:
            kind = "TODO" if all(todo[-1].isdecimal() for todo in verdict.known) else "region"
            count = len(verdict.known)
            every = "" if arguments.narrowed else "all "  # a part of the chapter does not reach the others
            text += f"the {kind} is right\n" if count == 1 else f"{every}{count} {kind}s right\n"
        if not arguments.verbose:
            text += notes(checks, all_right)
    if verdict.known:
        text += verdict.summary() + "\n"
    if verdict.others > 1 and not arguments.verbose:
        text += f"{verdict.others} runs are wrong in all: --verbose shows them\n"
    return text


def check(arguments: Arguments, build: Callable[[str], bool] | None) -> int:
    """Runs the checks that are asked for, prints the verdict, and returns the status."""
    lines = read(os.path.join(arguments.build, "checks", arguments.chapter)).splitlines()
    checks = chosen(arguments, lines)
    if not checks:
        asked = (
            (f" with TODO {arguments.todo}" if arguments.todo else "")
            + (f" of {arguments.program}" if arguments.program else "")
            + (f" on {arguments.ranks} ranks" if arguments.ranks else "")
        )
        there = sorted({f"  {one.program} on {one.ranks} ranks" for one in (Check(line, "") for line in lines)})
        print("\n".join([f"{arguments.chapter} has no such check{asked}; there are:", *there]))
        return NOT_COMPARABLE
    for one in checks:
        one.forget()
    if not run_groups(arguments, checks, build):
        return WRONG
    verdict = Verdict(arguments.chapter, checks, arguments.narrowed)
    with open(arguments.state, "w", encoding="utf-8") as file:
        file.write(verdict.state())
    said = report(arguments, checks, verdict)
    print(said, end="", flush=True)
    if arguments.results:
        fill_in(arguments.results, checks, verdict, said, bool(arguments.program or arguments.ranks))
    return verdict.status


def fill_in(of: results.Results, checks: list[Check], verdict: Verdict, said: str, only_some: bool) -> None:
    """`only_some`: a part of the chapter need not reach all of its TODOs."""
    of.status, of.said = verdict.status, said
    of.todos = {todo: verdict.known.get(todo, "unreached") for todo in of.todos if todo in verdict.known or not only_some}
    of.runs = [
        results.Run(one.program, int(one.ranks), one.options, one.status, one.read("verdict.txt"))
        for one in checks
        if one.status is not None
    ]


def main(words: list[str]) -> int:
    processes.take_all_along()
    try:
        arguments = Arguments(words)
    except ValueError as error:
        print(f"check_chapter: {error}", file=sys.stderr)
        return NOT_COMPARABLE
    command = shlex.split(arguments.build_command)

    def build(group: str) -> bool:
        return (
            subprocess.run([*command, arguments.chapter, group], stdin=subprocess.DEVNULL, check=False).returncode == 0
        )

    try:
        return check(arguments, build if command else None)
    except OSError as error:
        print(f"check_chapter: {error}", file=sys.stderr)
        return NOT_COMPARABLE

# SPDX-License-Identifier: Apache-2.0
"""Reads checker/mistakes/NN_name.txt: how a chapter's programs are checked, and wrong fillings of its TODOs.

  mistakes cmake BUILD CHAPTER    prints what CMake has to do for a chapter; writes the fillings to BUILD/fillings/
  mistakes checks CHAPTER         prints only what it has to do for ./workshop check

checker/mistakes/README.md describes the format. checker/mutants/NN_name.txt has the same.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass, field, replace

from . import chapters
from .chapters import called, order
from .errors import Refused

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
MISTAKES = os.path.join(ROOT, "checker", "mistakes")
MUTANTS = os.path.join(ROOT, "checker", "mutants")


class Wrong(Refused):
    """A list that does not have the format: "FILE:LINE: what is wrong"."""


@dataclass
class Run:
    """How a program is started: a `check`, or the `run` of wrong fillings."""

    program: str
    ranks: list[int]
    options: list[str] = field(default_factory=list)
    seconds: int | None = None  # within which a wrong filling ends; None: the usual limit
    cpu_only: str = ""  # why only the cpu backend can run it
    machine: str = ""  # that is simulated

    def on(self, ranks: int) -> tuple[str, int, str]:
        return self.program, ranks, " ".join([*([f"on {self.machine}"] if self.machine else []), shlex.join(self.options)])

    @property
    def is_bf16(self) -> bool:
        return "--precision bf16" in " ".join(self.options)


@dataclass
class Use:
    """A filling as one test runs it."""

    name: str
    run: Run
    expects: str  # a regular expression that the verdict must match
    is_right: bool  # unusual, but not wrong
    is_guided: bool = False  # judged at the guided level only

    @property
    def todo(self) -> str:
        return self.name.partition("-")[0]


@dataclass
class Chapter:
    name: str
    checks: list[Run] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    says: dict[str, str] = field(
        default_factory=dict
    )  # by filling: the sentence for a participant who made the mistake
    code: dict[str, str] = field(default_factory=dict)  # by filling
    around: dict[str, str] = field(default_factory=dict)  # by TODO: the WRITE region around it

    def sentences(self) -> dict[str, list[str]]:
        """What the checker says, by TODO, in their order."""
        found: dict[str, list[str]] = {}
        for name, sentence in self.says.items():
            of_todo = found.setdefault(name.partition("-")[0], [])
            if sentence not in of_todo:
                of_todo.append(sentence)
        return dict(sorted(found.items(), key=lambda item: order(item[0])))


class Parser:
    """Reads the lines of a list into a chapter."""

    def __init__(self, chapter: Chapter, path: str):
        self._chapter = chapter
        self._path = path
        self._number = 0
        self._program = ""
        self._run: Run | None = None
        self._filling = ""  # whose lines come now
        self._code: list[str] = []

    def parse(self, text: str) -> None:
        for self._number, line in enumerate(text.split("\n"), 1):
            if line.startswith(" ") or not line.strip():
                if self._filling:
                    self._code.append(line)
                elif line.strip():
                    raise self._wrong("code without a filling above it")
            elif line.startswith("says "):
                if not self._filling or self._code:
                    raise self._wrong("'says' must follow the name of the filling that it is about")
                self._chapter.says[self._filling] = line[5:]
            else:
                self._finish_filling()
                if not line.startswith("#"):
                    self._statement(line)
        self._finish_filling()

    def _wrong(self, message: str) -> Wrong:
        return Wrong(f"{self._path}:{self._number}: {message}")

    def _finish_filling(self) -> None:
        code = "\n".join(self._code).strip("\n")
        if code:
            if self._filling in self._chapter.code:
                raise self._wrong(f"{self._filling} has its code already")
            self._chapter.code[self._filling] = code + "\n"
        self._filling, self._code = "", []

    def _statement(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "program":
            self._program, self._run = rest.strip(), None
        elif word == "check":
            self._chapter.checks.append(self._start(rest))
        elif word == "run":
            self._run = self._start(rest)
            known = {check.on(ranks) for check in self._chapter.checks for ranks in check.ranks}
            for ranks in self._run.ranks:
                if self._run.on(ranks) not in known:
                    raise self._wrong(f"no check is like this run on {ranks} ranks")
        elif word == "cpu_only":
            if not self._run:
                raise self._wrong("'cpu_only' must follow a run")
            self._run = replace(self._run, cpu_only=rest)
        else:
            self._use(line)

    def _start(self, words: str) -> Run:
        before, _, options = words.partition("-- ")
        parts, seconds, machine = before.split(), None, ""
        if len(parts) > 2 and parts[-2] == "on":
            machine, parts = parts[-1], parts[:-2]
        if len(parts) > 2 and parts[-2] == "within" and parts[-1].isdigit():
            seconds, parts = int(parts[-1]), parts[:-2]
        if not self._program:
            raise self._wrong("a line 'program NAME' must come first")
        if not parts or not all(part.isdigit() and int(part) > 0 for part in parts):
            raise self._wrong(f"expected numbers of ranks, and perhaps 'within SECONDS', not '{before.strip()}'")
        return Run(self._program, [int(part) for part in parts], shlex.split(options), seconds, machine=machine)

    def _use(self, line: str) -> None:
        found = re.fullmatch(r"(right |guided )?(\d\d\.(?:\d+|[A-Z])-[^:\s]+)(?:: (.+))?", line)
        if not found:
            raise self._wrong(f"what is '{line}'?")
        if not self._run:
            raise self._wrong(f"no run is above {found[2]}")
        self._filling = found[2]
        is_right = found[1] == "right "
        expects = found[3] or ("right" if is_right else called(found[2].partition("-")[0]))
        self._chapter.uses.append(Use(found[2], self._run, expects, is_right, found[1] == "guided "))


def read_text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def read_chapter(name: str, with_mutants: bool = False) -> Chapter:
    """The list of a chapter, and that of its mutants. Raises Wrong."""
    chapter = Chapter(name)
    for folder in [MISTAKES] + [MUTANTS] * with_mutants:
        path = os.path.join(folder, name + ".txt")
        Parser(chapter, os.path.relpath(path, ROOT)).parse(read_text(path))
    for file in chapters.Chapter(name, []).sources(ROOT):
        for write, todos in chapters.regions_in(file).writes.items():
            chapter.around.update((todo, write) for todo in todos)
    for use in chapter.uses:
        if use.name not in chapter.code:
            raise Wrong(f"checker/mistakes/{name}.txt: {use.name} has no code")
    return chapter


# ---- fillings that are changes of the solution's code --------------------------------------------------------------


def is_edit(code: str) -> bool:
    """Whether a filling says how the solution's code is changed."""
    return all(re.match(r" *([-+=] |\.\.\.$)", line) for line in code.splitlines() if line.strip())


def apply_edits(chapter: Chapter) -> None:
    """Turns the fillings that are changes of the solution's code into code. Raises Wrong."""
    sources = [read_text(file) for file in chapters.Chapter(chapter.name, []).sources(ROOT)]
    for use in chapter.uses:
        if is_edit(chapter.code[use.name]):
            try:
                chapter.code[use.name] = edited(code_of(use.todo, sources), chapter.code[use.name])
            except ValueError as error:
                raise Wrong(f"checker/mistakes/{chapter.name}.txt: {use.name}: {error}") from error


def code_of(todo: str, sources: list[str]) -> str:
    """The code of a region in the solutions, as participants may write it: without the TODOs inside and their probes."""
    begin, end = f"// {chapters.called(todo)}: ", f"// END {chapters.called(todo)}"
    for source in sources:
        lines = source.splitlines()
        first = next((i for i, line in enumerate(lines) if line.lstrip().startswith(begin)), None)
        if first is not None:
            last = next(i for i, line in enumerate(lines) if line.strip() == end)
            comments = re.compile(r" *//(  +| (END )?TODO )")
            code = "".join(line + "\n" for line in lines[first + 1 : last] if not comments.match(line))
            return re.sub(r"^ *probe(_\w+)?\([^;]*;\n", "", code, flags=re.M)
    raise Wrong(f"no solution has {chapters.called(todo)}")


def edited(code: str, edits: str) -> str:
    """Code with edits, separated by lines "...". Each is a few lines as they are, "= …" kept and "- …" removed, with
    lines "+ …" added between them. Raises ValueError unless it fits in one place."""
    lines = code.splitlines()
    for edit in re.split(r"^ *\.\.\.$", edits, flags=re.M):
        words = [line.strip() for line in edit.splitlines() if line.strip()]
        old = [word[2:].strip() for word in words if word[0] != "+"]
        new = [word[2:] for word in words if word[0] != "-"]
        places = [
            at for at in range(len(lines) - len(old) + 1) if [line.strip() for line in lines[at : at + len(old)]] == old
        ]
        if not old or len(places) != 1:
            raise ValueError(f"{len(places) if old else 'no'} places in the solution have the lines {old}")
        lines[places[0] : places[0] + len(old)] = new
    return "".join(line + "\n" for line in lines)


# ---- what CMake has to do ------------------------------------------------------------------------------------------

# Verdicts that the first rank to speak decides, or what lies beyond a buffer: the sentence may be another one.
_SPOKEN_BY_ANY_RANK = ("did not finish", "see TODO", "see WRITE", "same memory", "goes beyond its memory")


def only_by_checkers(fingerprints: str) -> set[str]:
    """The mistakes that nothing but the checkers of the cpu backend (order, bounds, memory) have found."""
    others: set[str] = set()
    found: set[str] = set()
    for line in fingerprints.split("\n"):
        name, bar, sighting = line.partition(" | ")
        if bar:
            (found if re.match("status 1, (order|bounds|memory):", sighting) else others).add(name)
    return found - others


def quoted(words: list[str]) -> str:
    """Arguments of a CMake command. A bracket argument takes every character as it is."""
    return " ".join(word if re.fullmatch(r"[\w./,+-]+", word) else f"[==[{word}]==]" for word in words)


def escaped(text: str) -> str:
    """A regular expression of bash that matches the text. CMake takes a semicolon for the end of an argument."""
    return re.sub(r"([][+.*()^?{}|])", r"\\\1", text).replace(";", ".")


def for_cmake(chapter: Chapter, fingerprints: str) -> str:
    """Calls of the functions in checker/Exercises.cmake: a check per line, and a test per wrong filling."""
    return checks_for_cmake(chapter) + fillings_for_cmake(chapter, fingerprints)


def checks_for_cmake(chapter: Chapter) -> str:
    lines = []
    for check in chapter.checks:
        lines.append(
            quoted(
                [
                    "workshop_check",
                    chapter.name,
                    check.program,
                    "RANKS",
                    *map(str, check.ranks),
                    *(["MACHINE", check.machine] if check.machine else []),
                    "OPTIONS",
                    *check.options,
                ]
            ).replace(" ", "(", 1)
            + ")"
        )
        if check.is_bf16:
            lines.append(f"_workshop_needs_bf16({chapter.name} {check.program})")
    return "\n".join(lines) + "\n"


def fillings_for_cmake(chapter: Chapter, fingerprints: str) -> str:
    by_checkers = only_by_checkers(fingerprints)
    lines = []
    for use in chapter.uses:
        levels, expects = levels_of(chapter, use)
        words = [chapter.name, use.run.program, use.name, "RANKS", *map(str, use.run.ranks)]
        words += ["LEVELS", levels, "EXPECT", *expects]
        if use.is_right:
            words.append("RIGHT")
        sentence = chapter.says.get(use.name, "")
        if sentence and not any(text in use.expects for text in _SPOKEN_BY_ANY_RANK):
            words += ["SAYS", escaped(sentence)]
        if use.run.machine:
            words += ["MACHINE", use.run.machine]
        if use.run.seconds:
            words += ["TIMEOUT", str(use.run.seconds)]
        reason = use.run.cpu_only or (
            "the order and bounds checkers, of the cpu backend, find it" if use.name in by_checkers else ""
        )
        if reason:
            words += ["CPU_ONLY", reason]
        lines.append(f"workshop_filling({quoted(words + ['OPTIONS', *use.run.options])})")
    programs = list(dict.fromkeys(use.run.program for use in chapter.uses))
    bf16 = list(dict.fromkeys(use.run.program for use in chapter.uses if use.run.is_bf16))
    names = list(dict.fromkeys(use.name for use in chapter.uses))
    lines.append(f"set(_fillings {quoted(names)})")
    lines.append(f"set(_programs {quoted(programs)})")
    lines.append(f"set(_programs_in_bf16 {quoted(bf16)})")
    return "\n".join(lines) + "\n"


def levels_of(chapter: Chapter, use: Use) -> tuple[str, list[str]]:
    """The levels at which a filling is judged, and what the verdicts must match. A mistake in a TODO inside a WRITE
    region is one of the region at the blank level."""
    if not use.todo[-1].isdecimal():
        return chapters.BLANK, [use.expects]
    write = chapter.around.get(use.todo)
    if not write or use.is_guided:
        return chapters.GUIDED, [use.expects]
    return f"{chapters.GUIDED},{chapters.BLANK}", [use.expects] + [called(write)] * (not use.is_right)


def write_fillings(chapter: Chapter, folder: str) -> None:
    """Writes the code of each filling to FOLDER/NAME.txt, but leaves files that are up to date."""
    os.makedirs(folder, exist_ok=True)
    for use in chapter.uses:
        path = os.path.join(folder, use.name + ".txt")
        code = chapter.code[use.name]
        if not os.path.exists(path) or read_text(path) != code:
            with open(path, "w", encoding="utf-8") as file:
                file.write(code)


def main(words: list[str]) -> int:
    only_checks = words[:1] == ["checks"]
    if len(words) != (2 if only_checks else 3) or words[0] not in ("checks", "cmake"):
        print(__doc__, file=sys.stderr)
        return 2
    name = words[-1]
    try:
        chapter = read_chapter(name, with_mutants=not only_checks)
        if only_checks:
            sys.stdout.write(checks_for_cmake(chapter))
            return 0
        apply_edits(chapter)
    except (Wrong, OSError) as error:
        print(f"mistakes: {error}", file=sys.stderr)
        return 1
    write_fillings(chapter, os.path.join(words[1], "fillings"))
    path = os.path.join(MISTAKES, "fingerprints", name + ".txt")
    sys.stdout.write(for_cmake(chapter, read_text(path) if os.path.exists(path) else ""))
    return 0

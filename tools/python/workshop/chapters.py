# SPDX-License-Identifier: Apache-2.0
"""Chapters, their programs and their TODOs, as the files of the clone have them."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass

from .errors import Refused

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))


@dataclass
class Chapter:
    name: str  # "02_ddp"
    programs: list[str]  # the first is the one that runs if none is named

    @property
    def number(self) -> str:
        return self.name.partition("_")[0]

    def program(self, name: str) -> str:
        if name not in self.programs:
            raise Refused(f"no program '{name}' in {self.name}; there is {' '.join(self.programs)}")
        return name

    def pages(self, root: str = ".") -> list[str]:
        """The texts of its README and of the pages of programs that have one of their own, such as one_process.md."""
        texts = (read_if_there(os.path.join(root, self.name, page + ".md")) for page in ["README", *self.programs])
        return [text for text in texts if text]

    def questions(self, root: str = ".") -> str:
        """The sections "Questions" of these pages."""
        return "".join(page.partition("\n## Questions\n")[2].partition("\n## ")[0] for page in self.pages(root))

    def sources(self, root: str = ".") -> list[str]:
        """The files with its solutions; those of this clone if another one has none."""
        folder = os.path.join(root, "solutions", self.name)
        if not os.path.isdir(folder):
            folder = os.path.join(ROOT, "solutions", self.name)
        return sorted(file for end in ("cu", "h") for file in glob.glob(os.path.join(glob.escape(folder), f"*.{end}")))

    def handed_out(self, root: str = ".") -> list[str]:
        """The files of the exercises: those with a TODO, whether they are there or not, and those with nothing but
        WRITE regions, which are there at the blank level. What editors and participants keep beside them does not
        count."""
        files = []
        for source in self.sources(root):
            file, regions = os.path.join(root, self.name, os.path.basename(source)), regions_in(source)
            if regions.todos or (regions.writes and os.path.exists(file)):
                files.append(file)
        return files

    def require_files(self) -> None:
        for file in self.handed_out():
            if not os.path.isfile(file):
                raise Refused(
                    f"{os.path.normpath(file)} is missing: './workshop reset {self.number}' hands it out again"
                )


def read_if_there(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def read(path: str) -> str:
    return read_if_there(path) or ""


def all_chapters(cmake: str = "CMakeLists.txt") -> list[Chapter]:
    """The chapters, as CMakeLists.txt names them."""
    lines = re.findall(r"^workshop_chapter\((.*)\)$", read(cmake), re.M)
    return [Chapter(words[0], words[1:]) for words in (line.split() for line in lines)]


def choose(name: str) -> Chapter:
    """The chapter of a number (2, 02) or a folder (02_ddp)."""
    if not name:
        raise Refused("which chapter? ./workshop list shows them")
    wanted = "0" + name if re.fullmatch("[0-9]", name) else name.rstrip("/")
    chapters = all_chapters()
    for chapter in chapters:
        if wanted in (chapter.name, chapter.number):
            return chapter
    raise Refused(f"no chapter '{wanted}'; there are {' '.join(chapter.name for chapter in chapters)}")


# ---- TODOs ---------------------------------------------------------------------------------------------------------

# What a participant fills in is a region: a TODO or, at the blank level, a WRITE region, which is a whole function and
# may have TODOs inside. Where it says "todo" below, either is meant; their numbers are "02.1" and "02.A".

GUIDED, BLANK = "guided", "blank"


def order(todo: str) -> tuple[int, int]:
    chapter, _, k = todo.partition(".")
    return int(chapter), int(k) if k.isdecimal() else ord(k) - ord("Z") - 1  # WRITE regions come first


def called(todo: str) -> str:
    """ "TODO 02.1" or "WRITE 02.A"."""
    return ("TODO " if todo[-1].isdecimal() else "WRITE ") + todo


def marked(text: str) -> list[tuple[int, str, str]]:
    """Where the regions of a text begin: line, number and title of each."""
    marks = (re.match(r"[ \t]*// (?:TODO|WRITE) ([0-9]+\.(?:[0-9]+|[A-Z])): (.*)", line) for line in text.split("\n"))
    return [(line, mark[1], mark[2]) for line, mark in enumerate(marks, 1) if mark]


@dataclass
class Regions:
    """Those of a source of the solutions, in order."""

    todos: list[str]
    writes: dict[str, list[str]]  # each with the TODOs inside it

    def at(self, level: str) -> list[str]:
        if level == GUIDED:
            return self.todos
        inside = {todo for todos in self.writes.values() for todo in todos}
        return [*self.writes, *(todo for todo in self.todos if todo not in inside)]

    def of(self, text: str | None) -> list[str]:
        """Those of a participant's file with this text; None if there is no such file. A WRITE region is theirs if none
        of the TODOs inside it is (checker/todos.cpp)."""
        if text is None or not self.writes:
            return self.todos
        there = {todo for _, todo, _ in marked(text)}
        writes = {
            write: todos
            for write, todos in self.writes.items()
            if (there.isdisjoint(todos) if todos else write in there)
        }
        return Regions(self.todos, writes).at(BLANK)


def regions_in(file: str) -> Regions:
    regions, write = Regions([], {}), ""
    for end, kind, number in re.findall(r"^ *// (END )?(TODO|WRITE) ([0-9]+\.(?:[0-9]+|[A-Z]))\b", read(file), re.M):
        if kind == "WRITE":
            write = "" if end else number
            if not end:
                regions.writes[number] = []
        elif not end:
            regions.todos.append(number)
            if write:
                regions.writes[write].append(number)
    return regions


def todos(chapter: Chapter, root: str = ".", level: str = "") -> list[str]:
    """What there is to fill in in a chapter, in order: at a level or, without one, in the participant's files."""
    found = set()
    for source in chapter.sources(root):
        regions = regions_in(source)
        if level:
            found.update(regions.at(level))
        elif regions.todos or regions.writes:
            found.update(regions.of(read_if_there(os.path.join(root, chapter.name, os.path.basename(source)))))
    return sorted(found, key=order)


def level_of(chapter: Chapter, root: str = ".") -> str:
    """The level of the participant's files; blank if any WRITE region is theirs."""
    return GUIDED if all(todo[-1].isdecimal() for todo in todos(chapter, root)) else BLANK


def inside(todo: str, files: list[str]) -> list[str]:
    """The TODOs inside a WRITE region of these sources."""
    return [inner for file in files for inner in regions_in(file).writes.get(todo, [])]


@dataclass
class OpenTodo:
    todo: str
    place: str  # "02_ddp/ddp.h:31"


def open_todos(chapter: Chapter, root: str = ".") -> list[OpenTodo]:
    """The TODOs that are not filled in, in order."""
    found = []
    solved = {os.path.basename(file): file for file in chapter.sources(root)}
    for file in chapter.handed_out(root):
        name = os.path.relpath(file, root)
        if not os.path.isfile(file):
            of_file = regions_in(solved[os.path.basename(file)]).todos
            found += [OpenTodo(todo, f"{name}, which is missing") for todo in of_file]
        for number, line in enumerate(read(file).split("\n"), 1):
            todo = re.match(r' *todo\("([0-9]+\.[0-9A-Z]+)"', line)
            if todo:
                found.append(OpenTodo(todo[1], f"{name}:{number}"))
    return sorted(found, key=lambda open_todo: order(open_todo.todo))


# ---- what the last check found -------------------------------------------------------------------------------------


def state_file(folder: str, chapter: Chapter) -> str:
    """Where `check` keeps what it knows of each TODO: a line "right 02.1" each."""
    return os.path.join(folder, "checks", chapter.name + ".state")


def read_state(path: str) -> list[tuple[str, str]]:
    """Word and TODO."""
    return [(words[0], words[1]) for words in (line.split() for line in read(path).splitlines()) if len(words) == 2]


def merge_state(chapter: Chapter, part: str, state: str, todo: str, root: str = ".") -> None:
    """Enters what a check of one TODO found into the state of the last check, and removes `part`."""
    found = [word for word, of in read_state(part) if of == todo]
    if os.path.exists(part):
        os.unlink(part)
    if not found:
        return
    known = {of: word for word, of in read_state(state)} | {todo: found[0]}
    # What is known of the others is as old as it was.
    times = os.stat(state) if os.path.exists(state) and changed_since(chapter, state, root) else None
    with open(state, "w", encoding="utf-8") as file:
        file.writelines(f"{word} {of}\n" for of, word in known.items())
    if times:
        os.utime(state, ns=(times.st_atime_ns, times.st_mtime_ns))


def changed_since(chapter: Chapter, state: str, root: str = ".") -> bool:
    """Whether a file of the chapter is newer than its state."""
    checked = os.stat(state).st_mtime_ns
    return any(not os.path.isfile(file) or os.stat(file).st_mtime_ns > checked for file in chapter.handed_out(root))


# ---- hints ---------------------------------------------------------------------------------------------------------


def hints(text: str, todo: str) -> list[list[str]]:
    """The hints for a TODO in a hints.txt, by line."""
    found: list[list[str]] = []
    here = False
    for line in text.splitlines():
        if line.startswith(("TODO ", "WRITE ")):
            here = line == called(todo)
        elif here and re.match(r"[1-3]\. ", line):
            found.append([line[3:]])
        elif here and line.strip() and found:
            found[-1].append(line[3:])
    return found

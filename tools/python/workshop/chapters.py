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

    def sources(self, root: str = ".") -> list[str]:
        """The files with its solutions; those of this clone if another one has none."""
        folder = os.path.join(root, "solutions", self.name)
        if not os.path.isdir(folder):
            folder = os.path.join(ROOT, "solutions", self.name)
        return sorted(file for end in ("cu", "h") for file in glob.glob(os.path.join(glob.escape(folder), f"*.{end}")))

    def handed_out(self, root: str = ".") -> list[str]:
        """The files of the exercises, which have a TODO, whether they are there or not. What editors and participants
        keep beside them does not count."""
        names = [os.path.basename(file) for file in self.sources(root) if todos_in(file)]
        return [os.path.join(root, self.name, name) for name in names]

    def require_files(self) -> None:
        for file in self.handed_out():
            if not os.path.isfile(file):
                raise Refused(
                    f"{os.path.normpath(file)} is missing: './workshop reset {self.number}' hands it out again"
                )


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


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


def order(todo: str) -> tuple[int, int]:
    chapter, _, k = todo.partition(".")
    return int(chapter), int(k)


def todos(chapter: Chapter, root: str = ".") -> list[str]:
    """All TODOs of a chapter, in order."""
    found = {todo for file in chapter.sources(root) for todo in todos_in(file)}
    return sorted(found, key=order)


def todos_in(file: str) -> list[str]:
    return re.findall(r"^ *// TODO ([0-9]+\.[0-9]+): ", read(file), re.M)


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
            of_file = todos_in(solved[os.path.basename(file)])
            found += [OpenTodo(todo, f"{name}, which is missing") for todo in of_file]
        for number, line in enumerate(read(file).split("\n"), 1):
            todo = re.match(r' *todo\("([0-9.]+)"', line)
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
        if line.startswith("TODO "):
            here = line == f"TODO {todo}"
        elif here and re.match(r"[1-3]\. ", line):
            found.append([line[3:]])
        elif here and line.strip() and found:
            found[-1].append(line[3:])
    return found

# SPDX-License-Identifier: Apache-2.0
"""Every TODO has three hints, no hint is for another TODO, and ./workshop hint shows them one by one."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess

import pytest
from conftest import ROOT
from workshop import chapters

SOLUTIONS = os.path.join(ROOT, "solutions")
CHAPTERS = sorted(os.path.basename(os.path.dirname(folder)) for folder in glob.glob(os.path.join(SOLUTIONS, "*", "")))

# ---- the hints -----------------------------------------------------------------------------------------------------


def mistakes_of_format(text: str) -> list[str]:
    """What is wrong in a hints.txt. It begins with comments; then come the TODOs, each with three hints, whose further
    lines are indented by three spaces."""
    found, counts = [], []  # counts: each TODO and how many hints it has
    for number, line in enumerate(text.splitlines(), 1):
        heading = re.fullmatch(r"(?:TODO|WRITE) ([0-9]{2}\.(?:[0-9]+|[A-Z]))", line)
        todo, count = counts[-1] if counts else ("", 0)
        if heading:
            counts.append((heading[1], 0))
        elif todo and re.match(rf"{count + 1}\. +\S", line):
            counts[-1] = (todo, count + 1)
        elif line.strip() and not (line.startswith("#") and not todo) and not (count and re.match(" {3,}[^ ]", line)):
            expected = "a TODO, its next hint, or, indented by three spaces, more of a hint"
            found.append(f"line {number}: expected {expected}: {line}")
    return found + [f"TODO {todo} has {count} hints, not 3" for todo, count in counts if count != 3]


def hints_of(chapter: str) -> str:
    return chapters.read(os.path.join(SOLUTIONS, chapter, "hints.txt"))


def test_there_are_chapters():
    assert len(CHAPTERS) >= 9


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_format(chapter):
    assert mistakes_of_format(hints_of(chapter)) == []


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_hints_and_todos_belong_together(chapter):
    """In both lists a TODO that is there twice is there twice."""
    todos = [
        todo
        for file in chapters.Chapter(chapter, []).sources(ROOT)
        for todo in re.findall(r"^ *// (?:TODO|WRITE) ([0-9.]+[A-Z]?):", chapters.read(file), re.M)
    ]
    assert sorted(re.findall(r"^(?:TODO|WRITE) (.*)", hints_of(chapter), re.M)) == sorted(todos)


@pytest.mark.parametrize(
    "text,found",
    [
        ("# comment\n\nTODO 02.1\n1. a\n2. b\n   more\n    of it\n\n3. c\nTODO 02.10\n1. a\n2. b\n3. c\n", []),
        ("TODO 02.1\n1. a\n2. b\n", ["TODO 02.1 has 2 hints, not 3"]),
        (
            "TODO 02.1\nTODO 02.2\n1. a\n2. b\n3. c\n4. d\n",
            ["TODO 02.1 has 0 hints, not 3", "TODO 02.2 has 4 hints, not 3"],
        ),
        ("TODO 02.1\n1. a\n3. c\n2. b\n3. c\n", ["line 3"]),
        ("TODO 02.1\n1. a\n2. b\n  more\n3. c\n", ["line 4"]),
        ("TODO 02.1\n   more\n1. a\n2. b\n3. c\n", ["line 2"]),
        ("TODO 02.1\n1. a\n2. \n2. b\n3. c\n", ["line 3"]),
        ("TODO 02.1\n1. a\n2. b\n3. c\n# comment\n", ["line 5"]),
        ("TODO 2.1\n1. a\n", ["line 1", "line 2"]),
    ],
)
def test_mistakes_of_format(text, found):
    said = mistakes_of_format(text)
    assert len(said) == len(found) and all(line.startswith(start) for line, start in zip(said, found))


# ---- the verb ------------------------------------------------------------------------------------------------------


class Clone:
    """A copy without a build: how many hints were shown is kept there, and reset writes exercises."""

    def __init__(self, folder):
        self.folder = folder
        shutil.copytree(
            os.path.join(ROOT, "tools", "python"),
            folder / "tools" / "python",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        shutil.copytree(SOLUTIONS, folder / "solutions")
        for name in ("workshop", "CMakeLists.txt"):
            shutil.copy(os.path.join(ROOT, name), folder)
        (folder / "build" / "cpu" / "tools").mkdir(parents=True)
        (folder / "build" / "cpu" / "build.ninja").touch()
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in ("cmake", "ninja"):  # everything is built already
            (self.bin / name).write_text("#!/bin/sh\necho no work to do\n")
            (self.bin / name).chmod(0o755)

    def workshop(self, *words):
        return subprocess.run(
            [str(self.folder / "workshop"), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
            env=dict(os.environ, PATH=f"{self.bin}:{os.environ['PATH']}", WORKSHOP_BACKEND="cpu"),
        )

    def hint(self, *words):
        done = self.workshop("hint", *words)
        assert done.returncode == 0
        return done.stdout

    def numbers(self, *words):
        """The numbers of the hints that are shown."""
        return [int(number) for number in re.findall(r"^Hint ([1-3]) of 3$", self.hint(*words), re.M)]


@pytest.fixture(name="clone")
def make_clone(tmp_path, monkeypatch):
    for name in ("WORKSHOP_BUILD", "WORKSHOP_PREBUILT"):
        monkeypatch.delenv(name, raising=False)
    return Clone(tmp_path / "clone")


def test_hints_are_shown_one_by_one(clone):
    assert clone.numbers("02.4") == [1]
    assert clone.numbers("2.4") == [2]
    assert clone.numbers("02.5") == [1]
    assert clone.numbers("02.04") == [3]
    assert clone.numbers("02.4") == [1, 2, 3]


def test_all_hints_at_once(clone):
    assert clone.numbers("07.10", "--all") == [1, 2, 3]


def test_the_todo_is_shown_with_its_hint(clone):
    todo, _, hint = clone.hint("02.8").partition("Hint 1 of 3")
    assert "TODO 02.8 in 02_ddp/ddp_overlap.h: Average the bucket" in todo and "  Do what TODO 02.2 does, but for a whole" in hint


def test_todos_whose_numbers_begin_alike_have_their_own_hints(clone):
    ten, one = clone.hint("10.10"), clone.hint("10.1")
    assert "no rank has picked anything" in ten and "communication stream" not in ten
    assert "communication stream is about to read" in one and "has picked" not in one


def test_reset_forgets_which_hints_of_the_chapter_were_shown(clone):
    folder = os.environ.get("WORKSHOP_BUILD_FOLDER")
    if not folder:
        pytest.skip("WORKSHOP_BUILD_FOLDER names no build folder, which has make_exercises")
    shutil.copy(os.path.join(folder, "tools", "make_exercises"), clone.folder / "build" / "cpu" / "tools")
    assert clone.numbers("02.4") == [1]
    assert clone.numbers("07.10", "--all") == [1, 2, 3]
    done = clone.workshop("reset", "02", "-y")
    assert done.returncode == 0, done.stdout
    assert clone.numbers("2.4") == [1]
    assert clone.numbers("07.10") == [1, 2, 3]


def with_exercises(clone, *words):
    folder = os.environ.get("WORKSHOP_BUILD_FOLDER")
    if not folder:
        pytest.skip("WORKSHOP_BUILD_FOLDER names no build folder, which has make_exercises")
    shutil.copy(os.path.join(folder, "tools", "make_exercises"), clone.folder / "build" / "cpu" / "tools")
    assert clone.workshop("reset", "02", "-y", *words).returncode == 0
    return clone.folder / "02_ddp" / "ddp.h"


def test_reset_of_one_todo(clone):
    file = with_exercises(clone)
    handed_out = file.read_text()
    changed = handed_out.replace('todo("02.2");', "two();").replace('todo("02.1");', "one();")
    assert changed != handed_out.replace('todo("02.2");', "two();") != handed_out
    file.write_text(changed)
    done = clone.workshop("reset", "2.1")
    assert done.returncode == 0 and "TODO 02.1 is as handed out, in 02_ddp/ddp.h" in done.stdout, done.stdout
    assert file.read_text() == handed_out.replace('todo("02.2");', "two();")
    assert file.with_name("ddp.h.mine").read_text() == changed
    assert clone.workshop("reset", "02.1").stdout == "TODO 02.1 is as handed out\n"
    file.write_text(file.read_text().replace("// END TODO 02.2", ""))
    done = clone.workshop("reset", "02.2")
    assert done.returncode == 2 and "02_ddp/ddp.h has no whole TODO 02.2 any more: ./workshop reset 02" in done.stdout
    assert clone.workshop("reset", "02.99").returncode == 2
    assert clone.workshop("reset", "02.2", "--level", "blank").returncode == 2


def test_reset_of_one_region(clone):
    file = with_exercises(clone, "--level", "blank")
    handed_out = file.read_text()
    file.write_text(handed_out.replace('todo("02.A");', "all();"))
    assert clone.workshop("reset", "02.A").returncode == 0
    assert file.read_text() == handed_out
    assert "at the blank level, TODO 02.1 is inside WRITE 02.A" in clone.workshop("reset", "02.1").stdout


@pytest.mark.parametrize(
    "words,text",
    [
        ("", "expects the number of a TODO, such as 02.4, not ''"),
        ("02", "expects the number of a TODO, such as 02.4, not '02'"),
        ("02.4a", "expects the number of a TODO, such as 02.4, not '02.4a'"),
        ("02.77", "there is no TODO 02.77; 02_ddp/README.md"),
        ("06.99", "there is no TODO 06.99"),
        ("99.1", "no chapter '99'"),
        ("02.4 -n", "hint knows --all, not '-n'"),
        ("02.4 02.5", "hint takes one TODO, not '02.5' too"),
    ],
)
def test_refusals(clone, words, text):
    done = clone.workshop("hint", *words.split())
    assert done.returncode == 2 and done.stdout.count("\n") == 1 and text in done.stdout

# SPDX-License-Identifier: Apache-2.0
"""Every TODO has mutants, each with a name of its own, and equivalent.txt lists none that is not made any more."""
from __future__ import annotations

import os
import re
import subprocess

import pytest
from conftest import ROOT
from workshop import chapters

BUILD = os.environ.get("WORKSHOP_BUILD_FOLDER", os.path.join(ROOT, "build", "cpu"))
MAKE_MUTANTS = os.path.join(BUILD, "tools", "make_mutants")
CHAPTERS = chapters.all_chapters(os.path.join(ROOT, "CMakeLists.txt"))


def names_of_mutants(chapter: str) -> list[str]:
    done = subprocess.run([MAKE_MUTANTS, os.path.join(ROOT, "solutions"), chapter], stdout=subprocess.PIPE, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0, f"{chapter}: make_mutants failed"
    return [line.split("\t")[0] for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def made() -> dict[str, list[str]]:
    if not os.path.exists(MAKE_MUTANTS):
        pytest.skip(f"{MAKE_MUTANTS} is not built")
    return {chapter.name: names_of_mutants(chapter.name) for chapter in CHAPTERS}


def too_few(todos: list[str], names: list[str]) -> list[str]:
    """The TODOs that have hardly any mutants."""
    return [todo for todo in todos if sum(name.startswith(todo + "-") for name in names) < 5]


def wrong_lines(text: str, names: set[str]) -> list[str]:
    """What is wrong in equivalent.txt."""
    found = []
    for line in text.splitlines():
        name, _, reason = line.strip().partition(" ")
        if not name or name == "#":
            continue
        if name not in names:
            found.append(f"equivalent.txt: there is no mutant {name} any more; run the soak of its chapter")
        if ": " not in reason:
            found.append(f"equivalent.txt: {name} has no reason")
    return found


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_every_todo_has_mutants(made, chapter):
    todos = chapters.todos(chapter, ROOT)
    assert todos
    assert not too_few(todos, made[chapter.name])


def test_each_has_a_name_of_its_own(made):
    names = [name for of_chapter in made.values() for name in of_chapter]
    assert sorted(names) == sorted(set(names))


def test_what_is_listed_as_equivalent(made):
    with open(os.path.join(ROOT, "checker", "mutants", "equivalent.txt"), encoding="utf-8") as file:
        text = file.read()
    assert re.search("^[0-9]", text, re.M)
    assert not wrong_lines(text, {name for of_chapter in made.values() for name in of_chapter})


def test_that_would_be_noticed():
    assert too_few(["02.1", "02.10"], [f"02.1-{k}" for k in range(5)] + [f"02.10-{k}" for k in range(4)]) == ["02.10"]
    assert wrong_lines("# head\n\n02.1-a x: y\n", {"02.1-a"}) == []
    assert wrong_lines("02.1-a x: y\n02.1-b z\n", {"02.1-b"}) == [
        "equivalent.txt: there is no mutant 02.1-a any more; run the soak of its chapter",
        "equivalent.txt: 02.1-b has no reason"]

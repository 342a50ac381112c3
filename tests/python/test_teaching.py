# SPDX-License-Identifier: Apache-2.0
"""docs/teaching.md gives every TODO its minutes, once, and names no TODO that does not exist."""

from __future__ import annotations

import os
import re

import pytest
from conftest import ROOT
from workshop import chapters


def numbers(text: str) -> list[str]:
    """The TODOs that a text names, such as "02.16–02.19, 02.25", one by one."""
    found = []
    for first, last in re.findall(r"([0-9]{2}\.[0-9]+)(?:–([0-9]{2}\.[0-9]+))?", text):
        (chapter, begin), (other, end) = chapters.order(first), chapters.order(last or first)
        assert chapter == other and begin <= end, f"{first}–{last}: expected TODOs of one chapter, in order"
        found += [f"{chapter:02}.{number}" for number in range(begin, end + 1)]
    return found


def blocks(text: str) -> list[tuple[str, list[str], int, int]]:
    """The rows of the table of blocks: name, TODOs, minutes per TODO, and minutes of all of them."""
    rows = re.findall(r"^\| ([^|]*) \| ([0-9.–, ]*) \| ([0-9]+) \| ([0-9]+) \|$", text, re.M)
    return [(name, numbers(todos), int(each), int(total)) for name, todos, each, total in rows]


def regions() -> list[str]:
    """The TODOs of the solutions, in order; one that is there twice is in the list twice."""
    found = []
    for chapter in os.listdir(os.path.join(ROOT, "solutions")):
        for file in chapters.Chapter(chapter, []).sources(ROOT):
            found += re.findall(r"^ *// TODO ([0-9]+\.[0-9]+): ", chapters.read(file), re.M)
    return sorted(found, key=chapters.order)


@pytest.fixture(scope="module", name="teaching")
def read_teaching():
    return chapters.read(os.path.join(ROOT, "docs", "teaching.md"))


def test_every_todo_has_minutes_once(teaching):
    given = [todo for _, todos, _, _ in blocks(teaching) for todo in todos]
    assert given and sorted(given, key=chapters.order) == regions()


def test_no_other_todo_is_named(teaching):
    assert set(numbers(teaching)) - set(regions()) == set()


def test_minutes_of_a_block_are_those_of_its_todos(teaching):
    """They are rounded to five."""
    wrong = [
        f"{name}: {len(todos)} times {each} minutes are not {total}"
        for name, todos, each, total in blocks(teaching)
        if abs(len(todos) * each - total) > 5
    ]
    assert wrong == []


def test_numbers():
    assert numbers("02.16–02.19, 02.25 and `07.1`; 9:00, 1.5") == ["02.16", "02.17", "02.18", "02.19", "02.25", "07.1"]
    with pytest.raises(AssertionError, match="of one chapter"):
        numbers("02.3–03.1")


def test_blocks():
    assert blocks(
        "| block | TODOs | minutes each | in all |\n|---|---|---|---|\n| a, b | 01.17–01.18, 01.20 | 8 | 25 |\n"
        "| 9:00 | what | 30 |\n"
    ) == [("a, b", ["01.17", "01.18", "01.20"], 8, 25)]

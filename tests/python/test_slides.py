# SPDX-License-Identifier: Apache-2.0
"""The decks of ./workshop slides: a block for each row of docs/teaching.md, slides that fit, questions with answers."""

import os
import re

import pytest
from conftest import ROOT

from workshop import slides
from workshop.chapters import all_chapters

CHAPTERS = all_chapters(os.path.join(ROOT, "CMakeLists.txt"))


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def blocks_of_teaching(number):
    """TODOs and minutes of the chapter's rows in the table of docs/teaching.md."""
    rows = re.findall(r"^\|[^|]+\| ([0-9]{2}\.[^|]+?) \| [0-9]+ \| ([0-9]+) \|$", read(ROOT, "docs", "teaching.md"), re.M)
    return [f"{todos} · {minutes} minutes" for todos, minutes in rows if todos.startswith(number)]


@pytest.fixture(name="deck", params=CHAPTERS, ids=lambda chapter: chapter.name)
def make_deck(request):
    return request.param, read(ROOT, slides.FOLDER, request.param.name + ".md")


def test_blocks_are_those_of_the_teaching_table(deck):
    chapter, text = deck
    blocks = re.findall(r"^## .*\n\n(.*)$", text, re.M)
    assert blocks == blocks_of_teaching(chapter.name[:2])


def test_title_is_the_chapters(deck):
    chapter, text = deck
    assert text.split("\n")[0] == read(ROOT, chapter.name, "README.md").split("\n")[0]


def test_slides_fit(deck):
    _, text = deck
    for slide in re.split(r"^### ", text, flags=re.M)[1:]:
        shown = slide.partition("\n## ")[0].partition("\nNotes: ")[0]
        lines = [line for line in shown.split("\n")[1:] if line.strip()]
        words = [word for word in shown.split() if re.search(r"\w", word)]
        assert len(words) <= 60 and len(lines) <= 9, slide
        assert "\nNotes: " in slide, "nothing to say: " + slide


def test_figures_are_those_of_the_pages(deck):
    chapter, text = deck
    figures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    for figure in figures:
        assert os.path.isfile(os.path.join(ROOT, slides.FOLDER, figure)), figure
    of_pages = re.findall(r"!\[[^\]]*\]\(([^)/]+\.svg)\)", "".join(chapter.pages(ROOT)))
    assert {f"../../{chapter.name}/{figure}" for figure in of_pages} <= set(figures)


def test_questions_have_their_answers_in_the_notes(deck):
    chapter, _ = deck
    made = slides.deck(ROOT, chapter)
    own = made.partition("\n## Predict, then measure\n")[2]
    asked = re.split(r"^### ", own, flags=re.M)[1:]
    assert len(asked) >= 6
    for slide in asked:
        question, _, answer = slide.partition("````{revealjs-notes}")
        assert question.strip() and len(answer.split()) > 8 and "<details>" not in slide, slide
    assert "](" not in made.replace("![", "").split("\n## Predict")[1]


def test_notes_end_at_the_next_heading():
    text = "### A\n\n- x\n\nNotes: Say\nthis.\n\nAsk that.\n\n### B\n\nNotes: More.\n"
    assert slides.with_notes(text) == (
        "### A\n\n- x\n\n\n````{revealjs-notes}\nSay\nthis.\n\nAsk that.\n````\n\n"
        "### B\n\n\n````{revealjs-notes}\nMore.\n````\n\n"
    )


def test_times_are_those_of_a_timetable(deck):
    _, text = deck
    known = re.findall(r"^\| ([0-9]+:[0-9]{2}) \|", read(ROOT, "docs", "teaching.md"), re.M)
    for time in re.findall(r"\bat ([0-9]{1,2}:[0-9]{2})\b", text):
        assert time in known, time


def test_a_block_says_which_files_to_open():
    text = slides.with_files("## A\n\n02.1–02.3 · 15 minutes\n", {"02.1": "a.h", "02.3": "b.h", "02.10": "c.h"})
    assert text == "## A\n\n02.1–02.3 · 15 minutes\n\n`a.h`, `b.h`\n\n`./workshop check 02.1`\n"

# SPDX-License-Identifier: Apache-2.0
"""The files that ./workshop book gives to Sphinx: every link leads to a file of the book."""

import os
import posixpath
import re

import pytest
from conftest import ROOT

from workshop import book


@pytest.fixture(name="source", scope="module")
def make_source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("book")
    made = book.Book(ROOT, str(folder / "source"))
    made.write()
    return made


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def without_code(text):
    return re.sub(r"^ *```.*?^ *```[^\n]*$|``.+?``|`[^`\n]+`|<!--.*?-->", "", text, flags=re.M | re.S)


def test_links_lead_somewhere(source):
    count = 0
    for page in sorted(source.pages):
        for target in re.findall(r"\]\(([^)\s]+)\)", without_code(read(source.folder, page))):
            path = target.partition("#")[0]
            if path and not re.match(r"[a-z]+:", path):
                count += 1
                assert os.path.isfile(os.path.join(source.folder, posixpath.dirname(page), path)), (page, target)
    assert count > 500 and len(source.sources) > 10


def test_every_page_is_in_a_table_of_contents(source):
    listed = {"README"}
    for page in source.pages:
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```", read(source.folder, page), re.M | re.S):
            for entry in re.findall(r"^(?!:)(\S+)$", tree, re.M):
                listed.add(posixpath.normpath(posixpath.join(posixpath.dirname(page), entry)))
    assert {page[: -len(".md")] for page in source.pages} == listed


def test_a_chapter_has_a_quiz_of_six_with_numbers_first(source):
    quizzes = [page for page in source.made if page.endswith("/quiz.md")]
    assert len(quizzes) == 11
    for page in quizzes:
        numbers, _, others = read(source.folder, page).partition("## Why is it so?")
        assert numbers.count("<details>") == numbers.count("./workshop predict ") == 3, page
        assert others.count("<details>") >= 3 and others.count("<details>") == others.count("</details>"), page


def test_links_of_a_page(source):
    link = source.link
    assert link("02_ddp/README.md", "math.md#the-cost") == "](math.md#the-cost)"
    assert link("02_ddp/README.md", "../docs/calls.md") == "](../docs/calls.md)"
    assert link("02_ddp/README.md", "../04_pipeline/") == "](../04_pipeline/README.md)"
    assert link("02_ddp/README.md", "ddp.h") == "](../source/02_ddp/ddp.h.md)"
    assert link("README.md", "https://example.org/x.md") == "](https://example.org/x.md)"
    assert link("README.md", "#here") == "](#here)"


def test_code_is_left_alone(source):
    text = "`[a](ddp.h)` [b](ddp.h)\n```\n[c](ddp.h)\n```\n[`d`](ddp.h) `e`\n"
    to = "../source/02_ddp/ddp.h.md"
    assert source.with_links("02_ddp/README.md", text) == (
        f"`[a](ddp.h)` [b]({to})\n```\n[c](ddp.h)\n```\n[`d`]({to}) `e`\n"
    )

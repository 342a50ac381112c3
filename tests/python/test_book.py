# SPDX-License-Identifier: Apache-2.0
"""The files that ./workshop book gives to Sphinx: every link leads to a file of the book."""

import html
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
    assert link("02_ddp/README.md", "math.md#the-cost") == "math.md#the-cost"
    assert link("02_ddp/README.md", "../docs/calls.md") == "../docs/calls.md"
    assert link("02_ddp/README.md", "../04_pipeline/") == "../04_pipeline/README.md"
    assert link("02_ddp/README.md", "ddp.h") == "../source/02_ddp/ddp.h.md"
    assert link("README.md", "https://example.org/x.md") == "https://example.org/x.md"
    assert link("README.md", "#here") == "#here"


def test_code_is_left_alone(source):
    text = "`[a](ddp.h)` [b](ddp.h)\n```\n[c](ddp.h)\n```\n[`d`](ddp.h) `e`\n"
    to = "../source/02_ddp/ddp.h.md"
    assert source.with_links("02_ddp/notes.md", text) == (
        f"`[a](ddp.h)` [b]({to})\n```\n[c](ddp.h)\n```\n[`d`]({to}) `e`\n"
    )


def test_todos_and_files_lead_to_their_lines(source):
    file, line, _ = source.todos["02.1"]
    assert read(ROOT, file).split("\n")[line - 1].lstrip().startswith("// TODO 02.1: ")
    linked = source.with_links("02_ddp/README.md", "TODO 02.1, 02.1 s, 02.1 %, `02.1`, [02.1](#x) and 01.1 in `ddp.h`")
    assert linked == re.sub(
        "^TODO 02.1, 02.1 s",
        f'TODO <a href="../source/{file}.html#L{line}" title="{html.escape(source.todos["02.1"][2])}">02.1</a>, 02.1 s',
        "TODO 02.1, 02.1 s, 02.1 %, `02.1`, [02.1](#x) and 01.1 in [`ddp.h`](../source/02_ddp/ddp.h.md)",
    )
    links = 0
    for page in sorted(source.pages):
        for target, at in re.findall(r'<a href="([^"#]*)#L([0-9]+)"', read(source.folder, page)):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
            lines = read(ROOT, path[len("source/") : -len(".html")]).split("\n")
            assert "// TODO " in lines[int(at) - 1], (page, target)
            links += 1
    assert links > 200

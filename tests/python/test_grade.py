# SPDX-License-Identifier: Apache-2.0
"""What ./workshop grade takes from a submission, and what it leaves out."""

import os

import pytest
from conftest import ROOT

from workshop import chapters, grade, verbs_learn

CHAPTER = chapters.Chapter("02_ddp", ["ddp"])
FILE = os.path.join("02_ddp", "ddp.h")
HANDED_OUT = """\
#include <vector>
void first() {
  // TODO 02.1: Send it.
  //   To all ranks.
  todo("02.1");
  // END TODO 02.1
}
void second() {
  // TODO 02.2: Average it.
  todo("02.2");
  // END TODO 02.2
}
"""
BLANK = """\
#include <vector>
// WRITE 02.A: All of it.
todo("02.A");
// END WRITE 02.A
"""


@pytest.fixture(name="judge")
def make_judge(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    made = {chapters.GUIDED: tmp_path / "guided", chapters.BLANK: tmp_path / "blank"}
    for level, text in ((chapters.GUIDED, HANDED_OUT), (chapters.BLANK, BLANK)):
        os.makedirs(made[level] / "02_ddp")
        (made[level] / FILE).write_text(text)
    folder = tmp_path / "submission"
    folder.mkdir()

    def judged(text, name="ddp.h"):
        if text is not None:
            os.makedirs((folder / name).parent, exist_ok=True)
            (folder / name).write_text(text)
        return grade.assemble(CHAPTER, str(folder), {level: str(path) for level, path in made.items()})

    judged.folder = folder
    return judged


def filled(first, second="b();"):
    return HANDED_OUT.replace('todo("02.1");', first).replace('todo("02.2");', second)


@pytest.mark.parametrize("name", ["ddp.h", "02_ddp/ddp.h"])
def test_regions_are_taken(judge, name):
    result = judge(filled("a();"), name)
    assert result.files == {FILE: filled("a();")} and result.said == []


def test_blank_level(judge):
    result = judge(BLANK.replace('todo("02.A");', "all();"))
    assert result.files == {FILE: BLANK.replace('todo("02.A");', "all();")} and result.said == []


def test_other_changes_do_not_count(judge):
    result = judge(filled("a();").replace("void second() {", "void second() { forged();"))
    assert result.files == {FILE: filled("a();")}
    assert result.said == [f"{FILE} has changes outside its TODOs, which do not count"]


def test_standard_headers_are_added_once(judge):
    result = judge("#include <algorithm>\n#include <fstream>\n#include <vector>\n" + filled("a();"))
    assert result.files == {FILE: "#include <algorithm>\n" + filled("a();")} and result.said == []


def test_a_region_without_its_end_stays_open(judge):
    result = judge(filled("a();").replace("  // END TODO 02.2\n", ""))
    assert result.files == {FILE: filled("a();", 'todo("02.2");')}
    assert result.said[0] == f"TODO 02.2 stays open: its first or last line is not in {FILE}"


def test_missing_files_and_links(judge):
    assert judge(None).said == [f"{FILE} is missing, so its TODOs are open"]
    os.symlink(os.path.join(ROOT, "solutions", FILE), judge.folder / "ddp.h")
    result = judge(None)
    assert result.said == [f"{FILE} is missing, so its TODOs are open"] and result.files == {FILE: HANDED_OUT}
    os.symlink(os.path.join(ROOT, "solutions", "02_ddp"), judge.folder / "02_ddp")
    assert judge(None).files == {FILE: HANDED_OUT}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ('std::ifstream record("expected.jsonl");', "opens files (ifstream)"),
        ('auto f = ::fopen("x", "r");', "opens files (fopen)"),
        ("namespace f = std::filesystem;", "opens files (filesystem)"),
        ('std :: system("cp a b");', "starts processes or threads (system)"),
        ("kill(getppid(), 9);", "sends signals (kill); it uses the environment or the network (getppid)"),
        ("auto k = &::kill;", "sends signals (kill)"),
        ("std::exit(0);", "ends the program (exit)"),
        ('probe("02.1", "x", y);', "writes to the record (probe)"),
        ('todo("02.1");  probe("02.1", "x", y);', "writes to the record (probe)"),
        ("#define a b", "has preprocessor lines"),
        ('#include "solutions/02_ddp/ddp.h"', "has preprocessor lines"),
        ("%:define a b", "has preprocessor lines"),
        ('asm("syscall");', "has assembly"),
        ("__builtin_trap();", "has names that begin with two underscores; it ends the program (__builtin_trap)"),
        ("// comment \\\n kill_(1);", "has lines that end with a backslash"),
        ('auto text = R"(// )";', "has a raw string"),
        ("} namespace workshop { void evil(); } void f() {", "adds to a namespace; it closes braces that it has not opened"),
        ("} void f() {", "closes braces that it has not opened"),
        ("a(); /*", "begins or ends a comment that it does not end or begin"),
        ("extern int environ_;", "declares something as extern"),
        ("[[gnu::constructor]] int x;", "has attributes"),
        ("reinterpret_cast<void (*)()>(1)();", "has reinterpret_cast"),
    ],
)
def test_rules(judge, code, why):
    result = judge(filled(code))
    assert result.said == [f"TODO 02.1 stays open: it {why}"]
    assert result.files == {FILE: filled('todo("02.1");')}


@pytest.mark.parametrize(
    "code",
    [
        "model.read(3); options->system();  // fopen, and kill",
        'print0("exit");',
        "[[maybe_unused]] int readers = 0;",
        "switch (a) { case 1: b(); [[fallthrough]]; default: c(); }",
    ],
)
def test_no_false_alarms(judge, code):
    result = judge(filled(code))
    assert result.said == [] and result.files == {FILE: filled(code)}


def test_solutions_obey_the_rules(monkeypatch):
    monkeypatch.chdir(ROOT)
    count = 0
    for chapter in chapters.all_chapters():
        for source in chapter.sources():
            text, file = chapters.read(source), os.path.join(chapter.name, os.path.basename(source))
            for _, todo, _ in chapters.marked(text):
                if todo[-1].isdecimal():
                    broken = grade.broken_rules(
                        verbs_learn.region_of(text, todo)[0], grade.names_of_solution(chapter, file)
                    )
                    assert not broken, (todo, broken)
                    count += 1
    assert count > 150

# SPDX-License-Identifier: Apache-2.0
"""The exercises in the repository are those that the solutions make, and solutions/ holds code and hints alone: READMEs
and figures are in the chapters' folders. What a participant has written must not fail this, so the committed file
counts as well as the one on disk."""
from __future__ import annotations

import os
import re
import subprocess

import pytest
from conftest import ROOT
from workshop import chapters

BUILD = os.environ.get("WORKSHOP_BUILD_FOLDER", os.path.join(ROOT, "build", "cpu"))
MAKE_EXERCISES = os.path.join(BUILD, "tools", "make_exercises")
CHAPTERS = [chapter.name for chapter in chapters.all_chapters(os.path.join(ROOT, "CMakeLists.txt"))]


def committed(root: str, *words: str) -> bytes:
    """What git prints; nothing in an unpacked archive."""
    done = subprocess.run(["git", "-C", root, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60,
                          check=False)
    return done.stdout if done.returncode == 0 else b""


def content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def files_below(folder: str) -> list[str]:
    return sorted(os.path.relpath(os.path.join(path, name), folder)
                  for path, _, names in os.walk(folder) for name in names)


def outdated(fresh: str, root: str) -> list[str]:
    """The exercises in `root` that differ from those just made."""
    found = []
    for file in files_below(fresh):
        made = content(os.path.join(fresh, file))
        if made != content(os.path.join(root, file)) and made != committed(root, "show", f"HEAD:./{file}"):
            found.append(f"{file}: ./workshop reset {file.split('/')[0]} makes it from the solution")
    return found


def misplaced(files: list[str], made: set[str]) -> list[str]:
    """The committed files that belong elsewhere, or that no solution makes any more."""
    found = []
    for file in files:
        if file.startswith("solutions/golf/"):
            continue  # answers, and the search that found them
        if file.startswith("solutions/"):
            if not re.search(r"\.(cu|h)$|/(hints|predict)\.txt$", file):
                place = file[len("solutions/"):]
                found.append(f"{file}: solutions/ holds code and hints alone; this belongs in {place}")
        elif re.search(r"\.(cu|h)$", file) and file not in made:
            found.append(f"{file}: the solutions have no such file")
    return found


@pytest.fixture
def fresh(tmp_path) -> str:
    if not os.path.exists(MAKE_EXERCISES):
        pytest.skip(f"{MAKE_EXERCISES} is not built")
    subprocess.run([MAKE_EXERCISES, os.path.join(ROOT, "solutions"), str(tmp_path), *CHAPTERS], timeout=60, check=True)
    return str(tmp_path)


def test_exercises(fresh):
    assert {file.split("/")[0] for file in files_below(fresh)} == set(CHAPTERS)
    assert not outdated(fresh, ROOT)


def test_files(fresh):
    files = committed(ROOT, "ls-files", "--", "solutions", *CHAPTERS).decode().splitlines()
    assert not misplaced(files, set(files_below(fresh)))


# ---- that would be noticed ----


def test_the_committed_file_counts_too(tmp_path):
    for folder, text in (("fresh", "new"), ("root", "old")):
        (tmp_path / folder / "02_x").mkdir(parents=True)
        (tmp_path / folder / "02_x" / "a.cu").write_text(text)
    fresh, root = str(tmp_path / "fresh"), tmp_path / "root"
    said = ["02_x/a.cu: ./workshop reset 02_x makes it from the solution"]
    assert outdated(fresh, str(root)) == said
    (root / "02_x" / "a.cu").write_text("new")
    assert not outdated(fresh, str(root))
    git = ["git", "-C", str(root), "-c", "user.name=x", "-c", "user.email=x@y"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True, timeout=60)
    (root / "02_x" / "a.cu").write_text("what a participant has written")
    assert not outdated(fresh, str(root))
    (tmp_path / "fresh" / "02_x" / "a.cu").write_text("newer")
    assert outdated(fresh, str(root)) == said
    (root / "02_x" / "a.cu").unlink()
    assert outdated(fresh, str(root)) == said


def test_files_that_belong_elsewhere():
    made = {"02_x/a.cu", "02_x/support/b.h"}
    right = ["solutions/02_x/a.cu", "solutions/02_x/support/b.h", "solutions/02_x/hints.txt", "02_x/README.md",
             "02_x/f.svg", *made]
    assert not misplaced(right, made)
    assert misplaced(["solutions/02_x/README.md", "02_x/old.cu", "02_x/old.h"], made) == [
        "solutions/02_x/README.md: solutions/ holds code and hints alone; this belongs in 02_x/README.md",
        "02_x/old.cu: the solutions have no such file", "02_x/old.h: the solutions have no such file"]

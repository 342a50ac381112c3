# SPDX-License-Identifier: Apache-2.0
"""What ./workshop progress --export and --import carry from clone to clone."""

import os
import shutil
import subprocess
import zipfile

import pytest
from conftest import ROOT

from workshop import carry


class Clone:
    def __init__(self, folder):
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", "*.md", "*.svg")
        for name in ("tools/python", "solutions/02_ddp", "02_ddp", "golf"):
            shutil.copytree(os.path.join(ROOT, name), folder / name, ignore=ignored)
        for name in ("workshop", "CMakeLists.txt"):
            shutil.copy(os.path.join(ROOT, name), folder)
        self.file = folder / "02_ddp" / "ddp.h"

    def progress(self, *words):
        return subprocess.run(
            [str(self.folder / "workshop"), "progress", *map(str, words)],
            cwd=self.folder.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def write(self, name, text):
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture(name="clones")
def make_clones(tmp_path):
    return Clone(tmp_path / "here"), Clone(tmp_path / "there")


def test_there_and_back(clones, tmp_path):
    here, there = clones
    handed_out = there.file.read_text()
    here.file.write_text("mine\n")
    here.write("golf/mesh/options.txt", "--dp 1\n")
    here.write("build/cpu/checks/02_ddp.state", "right 02.1\n")
    here.write("build/cpu/checks/golf/mesh.json", '{"score": 16.0}')
    here.write("build/cpu/other", "not carried")
    assert here.progress("--export", tmp_path / "carried.zip").returncode == 0
    done = there.progress("--import", tmp_path / "carried.zip")
    assert done.returncode == 0 and done.stdout.startswith("2 files have changed"), done.stderr
    assert there.file.read_text() == "mine\n" and there.file.with_name("ddp.h.mine").read_text() == handed_out
    assert (there.folder / "golf" / "mesh" / "options.txt").read_text() == "--dp 1\n"
    assert not (there.folder / "build" / "cpu" / "other").exists()
    state = there.folder / "build" / "cpu" / "checks" / "02_ddp.state"
    assert state.read_text() == "right 02.1\n" and state.stat().st_mtime_ns > there.file.stat().st_mtime_ns
    assert there.progress("--import", tmp_path / "carried.zip").stdout.startswith("0 files have changed")


def test_an_outdated_state_stays(clones, tmp_path):
    here, there = clones
    here.write("build/cpu/checks/02_ddp.state", "right 02.1\n")
    os.utime(here.folder / "build" / "cpu" / "checks" / "02_ddp.state", (0, 0))
    here.progress("--export", tmp_path / "carried.zip")
    there.progress("--import", tmp_path / "carried.zip")
    assert not (there.folder / "build").exists()


@pytest.mark.parametrize(
    "name",
    ["../x", "/tmp/x", "02_ddp/../x.h", "workshop", "tools/python/main.py", "99_none/a.h", "solutions/02_ddp/ddp.h",
     "build/cpu/checks/../x", "02_ddp/ddp.h/x", "golf/mesh/options.txt\n"],
)  # fmt: skip
def test_hostile_archives_change_nothing(clones, tmp_path, name):
    there = clones[1]
    before = there.file.read_text()
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr(carry.ABOUT, "")
        archive.writestr("02_ddp/ddp.h", "changed")
        archive.writestr(zipfile.ZipInfo(name), "x")
    done = there.progress("--import", tmp_path / "bad.zip")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "nothing was changed" in done.stderr
    assert there.file.read_text() == before


def test_large_files_are_refused(clones, tmp_path):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(carry.ABOUT, "")
        archive.writestr("02_ddp/ddp.h", " " * (carry.MOST + 1))
    assert clones[1].progress("--import", tmp_path / "bad.zip").returncode == 2


@pytest.mark.parametrize("words", [["--export"], ["--import"], ["--import", "none.zip"], ["--import", "."], ["--export", "no/f"]])
def test_refused(clones, words):
    done = clones[0].progress(*words)
    assert done.returncode == 2 and done.stderr.startswith("progress: ") and done.stderr.count("\n") == 1


def test_other_files_are_refused(clones, tmp_path):
    (tmp_path / "text").write_text("no archive")
    assert clones[0].progress("--import", "text").returncode == 2
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("02_ddp/ddp.h", "changed")
    assert "no archive of './workshop progress --export'" in clones[0].progress("--import", "other.zip").stderr

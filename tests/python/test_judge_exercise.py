# SPDX-License-Identifier: Apache-2.0
"""What checker/tests/judge_exercise.py takes for a good answer of an exercise that is not filled in."""
import subprocess

import pytest
from conftest import ROOT
from support import load

judge_exercise = load("checker/tests/judge_exercise.py")

SOURCE = """int x;
  // TODO 02.1: Add up.
  //   Of all ranks.
  //
  //   In place.
  todo("02.1");
  // TODO 02.2: Wait.
  todo("02.2");
"""
SAID = """start
Not filled in yet, at 02_x/a.cu:6
  TODO 02.1: Add up.
    Of all ranks.

    In place.
"""


@pytest.fixture
def root(tmp_path):
    (tmp_path / "02_x").mkdir()
    (tmp_path / "02_x" / "a.cu").write_text(SOURCE)
    return str(tmp_path)


@pytest.mark.parametrize("said,wrong", [
    (SAID, ""),
    ("start\n", "names 0 TODOs, expected one"),
    (SAID + "  TODO 02.2: Wait.\n", "names 2 TODOs, expected one"),
    (SAID + SAID, "names 2 TODOs, expected one"),
    (SAID.replace("02.1", "02.3"), "names TODO 02.3, which is not open"),
    (SAID.replace("cu:6", "cu:8"), "does not name 02_x/a.cu:6 once"),
    (SAID + "at 02_x/a.cu:6\n", "does not name 02_x/a.cu:6 once"),
    (SAID.replace("    In place.\n", ""), "leaves out 'In place.'"),
    (SAID.replace("Add up.", "Add."), "leaves out 'TODO 02.1: Add up.'")])
def test_what_it_says(root, said, wrong):
    assert judge_exercise.complaint(said, root) == wrong


def test_statuses(tmp_path):
    def judge(status):
        command = [f"{ROOT}/tests/python/with_python", f"{ROOT}/checker/tests/judge_exercise.py", "sh", "-c",
                   f"exit {status}"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert [judge(status).returncode for status in (0, 1, 2)] == [0, 1, 2]
    (tmp_path / "mine.jsonl.out").write_text("nothing\n")
    done = judge(77)
    assert (done.returncode, done.stdout) == (1, "nothing\njudge_exercise: names 0 TODOs, expected one\n")

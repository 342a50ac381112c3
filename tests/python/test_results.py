# SPDX-License-Identifier: Apache-2.0
"""The files that ./workshop check writes for graders."""

import json
import os
import subprocess
import xml.etree.ElementTree as xml

import pytest
from conftest import ROOT

from workshop import check_chapter, errors, results

TODOS = {"02.1": "right", "02.2": "wrong", "02.3": "open", "02.4": "unreached", "02.5": "unchecked", "02.6": "right"}


def some():
    found = results.Results("02_ddp", "guided", "cpu", dict(TODOS), 1, "wrong <&> \x1b[31m\x00\n")
    found.runs = [results.Run("ddp", 2, ["--epochs", "3"], 1, "TODO 02.2 …\n"), results.Run("ddp", 3, [], 124, "")]
    return found


def test_json():
    found = json.loads(some().as_json())
    assert found["version"] == 1 and found["status"] == "wrong" and found["score"] == pytest.approx(2 / 6, abs=1e-4)
    assert found["todos"][1] == {"todo": "02.2", "state": "wrong"}
    assert [run["status"] for run in found["runs"]] == ["wrong", "not comparable"]
    with open(os.path.join(ROOT, "docs", "results.md"), encoding="utf-8") as file:
        page = file.read()
    assert all(f"| `{key}` |" in page for key in found)
    assert all(f'`"{state}"`' in page for state in [*TODOS.values(), *results.STATES.values(), "not comparable"])


def test_junit():
    suite = xml.fromstring(some().as_junit().encode())
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("6", "2", "2")
    assert [case.get("name") for case in suite.iter("testcase")] == [f"TODO {todo}" for todo in TODOS]
    assert len(list(suite.iter("failure"))) == 2 and len(list(suite.iter("skipped"))) == 2
    assert suite.find("system-out").text == "wrong <&> ?[31m?\n"


def test_gradescope():
    found = json.loads(some().as_gradescope())
    assert sum(test["score"] for test in found["tests"]) == 2 and all(test["max_score"] == 1 for test in found["tests"])
    assert {test["status"] for test in found["tests"]} == {"passed", "failed"}


def test_nothing_is_right_before_the_checks():
    found = results.Results("02_ddp", "guided", "cpu", dict.fromkeys(TODOS, "unchecked"))
    assert found.score == 0 and json.loads(found.as_json())["status"] == "not comparable"
    assert results.Results("02_ddp", "guided", "cpu").score == 0


def test_files_are_whole(tmp_path):
    files = {option: str(tmp_path / option) for option in results.FORMATS}
    results.require_writable(files)
    results.write(files, some())
    assert sorted(os.listdir(tmp_path)) == sorted(results.FORMATS)
    for path in ("", str(tmp_path), str(tmp_path / "no" / "folder")):
        with pytest.raises(errors.Refused, match="--json is"):
            results.require_writable({"--json": path})


@pytest.mark.parametrize("narrowed", [False, True])
def test_what_is_known_is_filled_in(narrowed):
    verdict = check_chapter.Verdict("02_ddp", [], False)
    verdict.known, verdict.status = {"02.1": "right", "01.3": "wrong"}, 1
    found = results.Results("02_ddp", "guided", "cpu", dict.fromkeys(["02.1", "02.2"], "unchecked"))
    check_chapter.fill_in(found, [], verdict, "text", narrowed)
    assert found.todos == ({"02.1": "right"} if narrowed else {"02.1": "right", "02.2": "unreached"})
    assert (found.status, found.said) == (1, "text")


def test_refused():
    for words, why in (["--json"], "--json is ''"), (["--xml", "x"], "check knows"):
        done = subprocess.run(
            [os.path.join(ROOT, "workshop"), "check", "02", *words, "--backend", "cpu"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1

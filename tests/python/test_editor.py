# SPDX-License-Identifier: Apache-2.0
"""VS Code's tasks: their commands exist, and their problem matcher finds the places of verdicts."""

import glob
import json
import os
import re

from conftest import ROOT

from workshop import command


def tasks():
    with open(os.path.join(ROOT, ".vscode", "tasks.json"), encoding="utf-8") as file:
        return json.loads(re.sub(r"^ *//.*$", "", file.read(), flags=re.M))


def test_commands_exist():
    found = tasks()
    inputs = {one["id"] for one in found["inputs"]}
    for task in found["tasks"]:
        words = task["command"].split()
        assert words[0] == "./workshop" and words[1] in command.VERBS
        assert set(re.findall(r"\$\{input:(\w+)\}", task["command"])) <= inputs


def matches(lines, patterns):
    """The places that a matcher of several lines finds: file, line and message."""
    first, second = (re.compile(pattern["regexp"]) for pattern in patterns)
    for one, two in zip(lines, lines[1:]):
        message, place = first.match(one), second.match(two)
        if message and place:
            yield place[patterns[1]["file"]], int(place[patterns[1]["line"]]), message[patterns[0]["message"]]


def test_the_matcher_finds_verdicts():
    check = next(task for task in tasks()["tasks"] if task["label"] == "workshop: check")
    patterns = next(one["pattern"] for one in check["problemMatcher"] if isinstance(one, dict))
    found = []
    for page in glob.glob(os.path.join(ROOT, "[01]*", "README.md")):
        with open(page, encoding="utf-8") as file:
            text = file.read()
        for verdict in re.findall(r"^<!-- verdict: .*? -->\n```\w*\n(.*?)^```", text, re.M | re.S):
            places = list(matches(verdict.replace(":…", ":1").split("\n"), patterns))
            assert len(places) == 1, verdict
            found += places
    assert len(found) >= 8
    for file, line, message in found:
        assert os.path.isfile(os.path.join(ROOT, "solutions", file)) and line > 0
        assert re.match(r"(TODO|WRITE) \d\d\.\w+ \(", message)

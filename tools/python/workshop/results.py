# SPDX-License-Identifier: Apache-2.0
"""What a check has found, as files for graders: JSON of our own (docs/results.md), JUnit's XML, and the results.json of
Gradescope. """

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as xml
from dataclasses import dataclass, field

from .chapters import called
from .errors import Refused

VERSION = 1
STATES = {0: "right", 1: "wrong", 77: "open"}
SAID = {
    "right": "right",
    "wrong": "wrong",
    "open": "not filled in",
    "unreached": "not reached by any run",
    "unchecked": "not checked, because of what is open or wrong",
}


@dataclass
class Run:
    program: str
    ranks: int
    options: list[str]
    status: int
    verdict: str


@dataclass
class Results:
    chapter: str  # "02_ddp"
    level: str  # "guided" or "blank"
    backend: str
    todos: dict[str, str] = field(default_factory=dict)  # what is known of each that was asked for
    status: int = 2
    said: str = ""  # what `check` printed
    runs: list[Run] = field(default_factory=list)

    @property
    def right(self) -> int:
        return sum(state == "right" for state in self.todos.values())

    @property
    def score(self) -> float:
        """The share of the TODOs that are right. A program that cannot be compared, or ends early, has not shown that
        any is."""
        return self.right / len(self.todos) if self.todos else 0.0

    def as_json(self) -> str:
        lines = {
            "version": VERSION,
            "chapter": self.chapter,
            "level": self.level,
            "backend": self.backend,
            "status": STATES.get(self.status, "not comparable"),
            "score": round(self.score, 4),
            "todos": [{"todo": todo, "state": state} for todo, state in self.todos.items()],
            "runs": [
                {
                    "program": run.program,
                    "ranks": run.ranks,
                    "options": run.options,
                    "status": STATES.get(run.status, "not comparable"),
                    "verdict": run.verdict,
                }
                for run in self.runs
            ],
            "said": self.said,
        }
        return json.dumps(lines, indent=1, ensure_ascii=False) + "\n"

    def as_junit(self) -> str:
        wrong = sum(state in ("wrong", "open") for state in self.todos.values())
        skipped = len(self.todos) - self.right - wrong
        suite = xml.Element(
            "testsuite", name=self.chapter, tests=str(len(self.todos)), failures=str(wrong), skipped=str(skipped)
        )
        for todo, state in self.todos.items():
            case = xml.SubElement(suite, "testcase", classname=self.chapter, name=called(todo))
            if state != "right":
                xml.SubElement(case, "failure" if state in ("wrong", "open") else "skipped", message=SAID[state])
        xml.SubElement(suite, "system-out").text = printable(self.said)
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(suite, encoding="unicode") + "\n"

    def as_gradescope(self) -> str:
        tests = [
            {
                "name": called(todo),
                "score": int(state == "right"),
                "max_score": 1,
                "status": "passed" if state == "right" else "failed",
                "output": SAID[state],
            }
            for todo, state in self.todos.items()
        ]
        return json.dumps({"output": self.said, "tests": tests}, indent=1, ensure_ascii=False) + "\n"


FORMATS = {"--json": Results.as_json, "--junit": Results.as_junit, "--gradescope": Results.as_gradescope}


def printable(text: str) -> str:
    """XML cannot hold most control characters."""
    return "".join(c if c in "\t\n" or c >= " " and c not in "\ufffe\uffff" else "?" for c in text)


def require_writable(files: dict[str, str]) -> None:
    for option, path in files.items():
        folder = os.path.dirname(os.path.abspath(path))
        if not path or os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            raise Refused(f"{option} is '{path}'; expected a file to write")


def write(files: dict[str, str], results: Results) -> None:
    """`files`: a path for each format. A file is complete, or as it was."""
    for option, path in files.items():
        unfinished = path + ".part"
        with open(unfinished, "w", encoding="utf-8", errors="replace") as file:
            file.write(FORMATS[option](results))
        os.replace(unfinished, path)

# SPDX-License-Identifier: Apache-2.0
"""How far the participants of a course are: what is known of each TODO of each of them, and a board with the best scores
of the golf tasks. Nothing of theirs runs. A TODO is open while its todo() is there; otherwise it is what their last `./workshop check` of the chapter found, unless a
file has changed since.

  progress [--html FILE] FOLDER...     a FOLDER is a participant's clone

Prints a table for each chapter that someone has begun. Names folders that are no clones, and shows the others.
Status: 0, or 2 if a folder is no clone.
"""

from __future__ import annotations

import glob
import html
import os
import sys

from . import chapters, golf

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
SIGNS = {"right": "+", "wrong": "x", "open": ".", "unreached": "-", "unchecked": "?"}
TITLES = {"unreached": "not reached", "unchecked": "not checked as it is"}


def newest_state(clone: str, chapter: chapters.Chapter) -> dict[str, str]:
    """What the last check found, by TODO; nothing if the chapter has changed since."""
    files = [
        file
        for file in glob.glob(os.path.join(glob.escape(clone), "build", "*", "checks", chapter.name + ".state"))
        if os.stat(file).st_size
    ]
    if not files:
        return {}
    newest = max(files, key=lambda file: os.stat(file).st_mtime_ns)
    if chapters.changed_since(chapter, newest, clone):
        return {}
    return {todo: word for word, todo in chapters.read_state(newest)}


def states(clone: str, chapter: chapters.Chapter, todos: list[str]) -> list[str]:
    """What is known of each TODO of a chapter in a clone."""
    if not os.path.isdir(os.path.join(clone, chapter.name)):
        return ["open"] * len(todos)
    open_ones = {found.todo for found in chapters.open_todos(chapter, clone)}
    found = {todo: word for todo, word in newest_state(clone, chapter).items() if word in SIGNS and word != "open"}
    return ["open" if todo in open_ones else found.get(todo, "unchecked") for todo in todos]


class Table:
    """A chapter at a level: its TODOs, and what is known of them for each participant at this level."""

    def __init__(self, chapter: chapters.Chapter, level: str, clones: list[str]):
        clones = [clone for clone in clones if chapters.level_of(chapter, clone) == level]
        self.name = chapter.name + (", blank level" if level == chapters.BLANK else "")
        self.todos = chapters.todos(chapter, ROOT, level)
        self.rows = [(clone.rstrip("/") or clone, states(clone, chapter, self.todos)) for clone in clones]

    def begun(self) -> bool:
        return any(word != "open" for _, words in self.rows for word in words)

    def wrong(self) -> list[str]:
        counts = [sum(words[i] == "wrong" for _, words in self.rows) for i in range(len(self.todos))]
        return [f"{todo} ({count})" for todo, count in zip(self.todos, counts) if count]

    def text(self, width: int) -> str:
        kind = "TODOs" if all(todo[-1].isdecimal() for todo in self.todos) else "regions"
        lines = [f"{self.name}: {len(self.todos)} {kind}"]
        for name, words in self.rows:
            signs = "".join(SIGNS[word] for word in words)
            signs = " ".join(signs[i : i + 5] for i in range(0, len(signs), 5))
            wrong = words.count("wrong")
            lines.append(
                f"  {name:<{width}}  {signs}  {words.count('right')} right{f', {wrong} wrong' if wrong else ''}"
            )
        if self.wrong():
            lines.append("  wrong: " + ", ".join(self.wrong()))
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        lines = [
            f"<h2>{self.name}</h2>\n<table>",
            "<tr><th></th>" + "".join(f"<th>{todo}</th>" for todo in self.todos) + "<th>right</th></tr>",
        ]
        for name, words in self.rows:
            cells = "".join(
                f'<td class="{word}" title="{todo}: {TITLES.get(word, word)}">{SIGNS[word]}</td>'
                for todo, word in zip(self.todos, words)
            )
            lines.append(f"<tr><th>{html.escape(name)}</th>{cells}<td>{words.count('right')}</td></tr>")
        totals = "".join(
            f"<td>{sum(words[i] == 'right' for _, words in self.rows)}</td>" for i in range(len(self.todos))
        )
        return "\n".join([*lines, f"<tr><th>right</th>{totals}<td></td></tr>", "</table>\n"])


class Board:
    """The best scores of golf, the best one of each task first in its column."""

    def __init__(self, clones: list[str]):
        self.rows = [(clone.rstrip("/") or clone, golf.scores_of(clone)) for clone in clones]
        self.rows = [row for row in self.rows if row[1]]
        self.tasks = [task for task in golf.TASKS if any(task.name in scores for _, scores in self.rows)]
        self.first = {
            task.name: min(scores[task.name] for _, scores in self.rows if task.name in scores) for task in self.tasks
        }

    def begun(self) -> bool:
        return bool(self.rows)

    def cell(self, task: golf.Task, scores: dict[str, float]) -> str:
        """A score, with a star for the best of all participants."""
        if task.name not in scores:
            return "-"
        return golf.written(scores[task.name], task.unit) + ("*" if scores[task.name] == self.first[task.name] else " ")

    def text(self, width: int) -> str:
        lines = ["golf: the best scores, * the best of all"]
        for task in self.tasks:
            lines.append(f"  {task.name}: par {golf.written(task.par, task.unit)}, best known "
                         f"{golf.written(task.best, task.unit)}")  # fmt: skip
            of_task = [(scores[task.name], name, self.cell(task, scores)) for name, scores in self.rows
                       if task.name in scores]  # fmt: skip
            lines += [f"    {name:<{width}}  {cell:>14}" for _, name, cell in sorted(of_task)]
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        titles = "".join(f"<th>{task.name}</th>" for task in self.tasks)
        lines = [f"<h2>golf</h2>\n<table>\n<tr><th></th>{titles}</tr>"]
        for title, value in (("par", lambda task: task.par), ("best known", lambda task: task.best)):
            cells = "".join(f"<td>{golf.written(value(task), task.unit)}</td>" for task in self.tasks)
            lines.append(f"<tr><th>{title}</th>{cells}</tr>")
        for name, scores in self.rows:
            cells = "".join(
                f'<td{" class=right" if self.cell(task, scores).endswith("*") else ""}>{self.cell(task, scores)}</td>'
                for task in self.tasks
            )
            lines.append(f"<tr><th>{html.escape(name)}</th>{cells}</tr>")
        return "\n".join([*lines, "</table>\n"])


def page(tables: list) -> str:
    legend = "".join(
        f'<span class="{word}">&nbsp;{sign}&nbsp;</span> {TITLES.get(word, word)} &nbsp; '
        for word, sign in SIGNS.items()
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>Progress</title>
<style>
body {{ font: 14px sans-serif; margin: 2em }} table {{ border-collapse: collapse; margin: 1em 0 }}
th, td {{ padding: 3px 6px; border: 1px solid #ccc; font-weight: normal; text-align: center }}
th:first-child {{ text-align: left }}
.right {{ background: #b7e1b0 }} .wrong {{ background: #f4a39a }} .unreached {{ background: #f5e6b3 }}
.unchecked {{ background: #cfdcf3 }}
@media print {{ body {{ margin: 0 }} * {{ print-color-adjust: exact }} }}
</style>
<h1>Progress</h1>
<p>{legend}</p>
{''.join(table.html() for table in tables)}</html>
"""


def main(words: list[str]) -> int:
    def refused(message: str) -> int:
        print(f"progress: {message}", file=sys.stderr)
        return 2

    rest, file = list(words), None
    if rest and rest[0] == "--html":
        name = rest[1] if len(rest) > 1 else ""
        try:
            file = open(name, "w", encoding="utf-8") if name else None
        except OSError:
            pass
        if not file:
            return refused(f"--html is '{name}'; expected a file to write")
        rest = rest[2:]
    if rest and rest[0].startswith("-"):
        return refused(f"unknown option '{rest[0]}'")
    if not rest:
        return refused("expected folders, each the clone of a participant")
    there = chapters.all_chapters(os.path.join(ROOT, "CMakeLists.txt"))
    status, clones = 0, []
    for folder in rest:
        if os.path.isfile(os.path.join(folder, "workshop")) and os.path.isdir(os.path.join(folder, there[0].name)):
            clones.append(folder)
        else:
            status = refused(f"{folder} is no clone of the workshop: it has no 'workshop' or no {there[0].name}")
    if clones:
        levels = [(chapter, level) for chapter in there for level in (chapters.GUIDED, chapters.BLANK)]
        tables = [table for table in (Table(*level, clones) for level in levels) if table.begun()]
        width = max(len(clone.rstrip("/")) for clone in clones)
        board = Board(clones)
        print("\n".join(table.text(width) for table in tables) if tables else "No one has filled in a TODO yet.")
        if tables:
            print("+ right   x wrong   . open   - not reached   ? not checked as it is")
        if board.begun():
            print("\n" + board.text(width), end="")
        if file:
            file.write(page([*tables, *([board] if board.begun() else [])]))
    if file:
        file.close()
    return status

# SPDX-License-Identifier: Apache-2.0
"""./workshop predict: its questions, and that what is measured is what the formulas say."""

import os

import pytest
from conftest import ROOT
from workshop import chapters, context, errors, predict

BUILD = os.environ.get("WORKSHOP_BUILD_FOLDER", os.path.join(ROOT, "build", "cpu"))
CHAPTERS = chapters.all_chapters(os.path.join(ROOT, "CMakeLists.txt"))
TEXT = """# a comment
02.1
ask How
  many?
run ddp 2 -- --x
measure steps
unit bytes
answer 3
why Because.
"""


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_the_format():
    (question,) = predict.questions(TEXT)
    assert (question.number, question.ask, question.run, question.on) == ("02.1", "How many?", "ddp 2 -- --x", "")


@pytest.mark.parametrize(
    "text,message",
    [
        ("ask x", "line 1: 'ask' is not expected here"),
        ("02.1\nasks x", "line 2: 'asks' is not expected here"),
        ("02.1\nask x\nask y", "line 3: 'ask' is not expected here"),
        (TEXT.replace("unit bytes\n", ""), "02.1 lacks unit"),
    ],
)
def test_what_is_wrong_is_said(text, message):
    with pytest.raises(ValueError, match=message):
        predict.questions(text)


RECORD = [
    {"type": "run"},
    {"type": "probe", "rank": 0, "id": "02.6", "name": "buckets", "values": [1, 2, 35]},
    {"type": "memory", "rank": 0, "peak": {"optimizer": 304}},
    {"type": "memory", "rank": 1, "peak": {"optimizer": 100}},
    {"type": "collective", "rank": 0, "op": "ncclAllReduce", "communicator": "world", "ranks": 4, "calls": 5,
     "bytes": 460, "places": {"02_x/a.h:4": [3, 456], "02_x/a.h:9": [2, 4]}},
    {"type": "collective", "rank": 0, "op": "ncclSend", "communicator": "data", "ranks": 2, "calls": 6, "bytes": 24,
     "places": {"02_x/a.h:9": [6, 24]}},
    {"type": "end", "steps": 3, "seconds_per_step": 0.012},
]


@pytest.mark.parametrize(
    "measure,value",
    [
        ("bytes sent in 02.2", 456 / 3 * 2 * 3 / 4),
        ("calls in 02.2", 1),
        ("calls in 02.2 rank 1", 0),
        ("bytes sent over world", 460 / 3 * 2 * 3 / 4),
        ("bytes sent over data", 8),
        ("calls over data", 2),
        ("calls over data rank 1", 0),
        ("peak optimizer", 304),
        ("peak optimizer rank 1", 100),
        ("milliseconds", 12),
        ("steps", 3),
        ("value 2 of buckets of 02.6", 35),
        ("printed ^time +([0-9.]+)", 1.5),
    ],
)
def test_measures(tmp_path, measure, value):
    folder = tmp_path / "02_x"
    folder.mkdir()
    (folder / "a.h").write_text("void f() {\n  // TODO 02.2: Sum.\n  //   More.\n  sum();\n  // END TODO 02.2\n}\n")
    output = "time   1.5 us\ntime   2.5 us\n"
    assert predict.measured(RECORD, measure, [str(folder / "a.h")], output) == pytest.approx(value)


def test_a_program_without_steps_is_counted_as_a_whole():
    record = [*RECORD[:-1], {"type": "end", "steps": 0, "seconds_per_step": 0}]
    assert predict.measured(record, "calls over data", []) == 6


@pytest.mark.parametrize("measure", ["peak", "calls in 02.3", "value 0 of other of 02.6", "hours", "printed ([0-9]+)"])
def test_what_nothing_measures(measure):
    with pytest.raises(ValueError):
        predict.measured(RECORD, measure, [])


@pytest.mark.parametrize("op,sent", [("ncclSend", 8), ("ncclRecv", 0), ("ncclAllGather", 24), ("ncclBroadcast", 6)])
def test_bytes_sent(op, sent):
    assert predict.bytes_sent({"op": op, "ranks": 4}, 8) == sent


@pytest.mark.parametrize("text,number", [("12", 12), ("1,536", 1536), ("1.5k", 1500), ("2 MB", 2e6), ("3ms", 3)])
def test_numbers(text, number):
    assert predict.number_of(text) == number


@pytest.mark.parametrize("text", ["", "x", "-3", "1 2"])
def test_no_numbers(text):
    with pytest.raises(errors.Refused, match="expected a number as the prediction"):
        predict.number_of(text)


def test_verdicts():
    assert predict.verdict(228, 228, "bytes") == "Right: 228 bytes."
    assert predict.verdict(152, 228, "bytes") == (
        "You predicted 152 bytes. Measured: 228 bytes; yours is smaller by a factor of 1.5."
    )
    assert predict.verdict(1e6, 1000448, "bytes") == "Right: 1,000,448 bytes."
    assert predict.verdict(12, 12.0425532, "ms") == "Right: 12.0426 ms."
    assert predict.verdict(0, 5, "ms") == "You predicted 0 ms. Measured: 5 ms."
    assert predict.verdict(4, 7, "") == "You predicted 4. Measured: 7."


# ---- the questions of the chapters ----


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_questions_of(chapter):
    there = predict.of_chapter(chapter)
    assert [question.number for question in there] == [f"{chapter.number}.{k}" for k in (1, 2, 3)]


@pytest.mark.parametrize(
    "chapter,question",
    [(chapter, question) for chapter in CHAPTERS
     for question in predict.questions(chapters.read(f"{ROOT}/solutions/{chapter.name}/predict.txt"))],
    ids=lambda of: getattr(of, "number", ""),
)
def test_what_is_measured_is_what_the_formula_says(chapter, question, monkeypatch):
    program = question.run.split()[0]
    chapter.program(program)
    for target in context.targets_of(chapter, program, True, question.run.split()):
        built = target.removeprefix(f"solution_{chapter.name}_")
        if not os.path.exists(os.path.join(BUILD, "solutions", chapter.name, built)):
            pytest.skip(f"{chapter.name} {built} is not built")
    monkeypatch.setattr(context.Context, "build", lambda *_: None)
    value = predict.measure(context.Context("cpu", BUILD), chapter, question)
    assert value == pytest.approx(float(question.answer), rel=0.03)

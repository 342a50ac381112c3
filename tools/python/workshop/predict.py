# SPDX-License-Identifier: Apache-2.0
"""predict: questions whose answer is a number. A participant predicts it; then a run of the solution measures it, and
the formula is shown.

solutions/NN_name/predict.txt has the questions of a chapter. A question begins with its number, alone in a line, and
has these lines, in any order; further lines of a text are indented:

  ask TEXT
  run PROGRAM RANKS -- OPTION...     the run of the solution that measures it
  on MACHINE                         on this simulated machine (WORKSHOP_SIMULATE)
  measure WHAT [rank R]              of rank 0, unless said:
          bytes sent in 02.2           by the NCCL calls in this TODO or WRITE region, per step (if there are steps)
          bytes sent over GROUP        by the NCCL calls on this communicator, such as tensor, per step
          calls in 02.2                how often NCCL is called there, per step
          calls over GROUP
          peak KIND                    bytes of device memory of a kind, such as optimizer, at its peak
          milliseconds                 of a step
          steps                        of the run
          value K of PROBE of 02.6     the K-th number, from 0, that the TODO's probe of this name records
          printed PATTERN              the number in the first group of this regular expression, in the program's output
  unit UNIT
  answer NUMBER                      what is measured, to 3 %; the tests compare it
  why TEXT                           the formula, with the numbers
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field

from . import chapters
from .chapters import Chapter, read
from .context import Context, Words, recorded_run, require
from .errors import Failed, Refused


@dataclass
class Question:
    number: str  # "02.1"
    lines: dict[str, str] = field(default_factory=dict)

    def __getattr__(self, word: str) -> str:
        return self.lines.get(word, "")


WORDS = {"ask", "run", "on", "measure", "unit", "answer", "why"}
MUST = WORDS - {"on"}


def questions(text: str) -> list[Question]:
    """Raises ValueError "line N: what is wrong"."""
    found: list[Question] = []
    word = ""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if re.fullmatch(r"[0-9]{2}\.[0-9]", line):
            found.append(Question(line))
        elif line.startswith(" ") and found and word:
            found[-1].lines[word] += " " + line.strip()
        else:
            word, _, rest = line.partition(" ")
            if not found or word not in WORDS or word in found[-1].lines:
                raise ValueError(f"line {number}: '{word}' is not expected here")
            found[-1].lines[word] = rest
    for question in found:
        if lacks := sorted(MUST - set(question.lines)):
            raise ValueError(f"{question.number} lacks {', '.join(lacks)}")
    return found


def of_chapter(chapter: Chapter) -> list[Question]:
    return questions(read(f"solutions/{chapter.name}/predict.txt"))


# ---- measuring -----------------------------------------------------------------------------------------------------


def lines_of(region: str, sources: list[str]) -> tuple[str, int, int]:
    """ "02_ddp/ddp.h" and the first and last line of a region of the solutions."""
    for source in sources:
        lines = read(source).split("\n")
        marks = [i for i, line in enumerate(lines, 1) if re.match(rf" *// (END )?{chapters.called(region)}\b", line)]
        if len(marks) == 2:
            return os.path.join(os.path.basename(os.path.dirname(source)), os.path.basename(source)), *marks
    raise ValueError(f"there is no {chapters.called(region)}")


def bytes_sent(line: dict, sent: float) -> float:
    """Bytes that a rank sends in calls with `sent` bytes in all, by ring algorithms (tools/shared/run_record.h)."""
    others, ranks, op = line["ranks"] - 1, line["ranks"], line["op"]
    if op == "ncclAllReduce":
        return sent * 2 * others / ranks
    if op in ("ncclReduceScatter", "ncclAllGather", "ncclAlltoAll"):
        return sent * others
    if op in ("ncclBroadcast", "ncclBcast", "ncclReduce", "ncclGather", "ncclScatter"):
        return sent * others / ranks
    return 0 if op == "ncclRecv" else sent


def traffic(line: dict, found: re.Match, sources: list[str]) -> list[tuple[int, int]]:
    """Calls and bytes of a ledger line "in" a region or "over" a communicator."""
    if found[2] == "over":
        return [(line["calls"], line["bytes"])] if line["communicator"] == found[3] else []
    file, first, last = lines_of(found[3], sources)
    there = []
    for place, (calls, sent) in line["places"].items():
        name, _, number = place.rpartition(":")
        if name == file and first <= int(number) <= last:
            there.append((calls, sent))
    return there


def measured(record: list[dict], measure: str, sources: list[str], output: str = "") -> float:
    """What a record, or the program's output, says. Raises ValueError if it does not say that."""
    if measure.startswith("printed "):
        if found := re.search(measure.removeprefix("printed "), output):
            return float(found[1])
        raise ValueError(f"the program does not print '{measure.removeprefix('printed ')}'")
    what, _, of_rank = measure.partition(" rank ")
    rank = int(of_rank or 0)
    end = record[-1]
    of = [line for line in record if line.get("rank", 0) == rank]
    if found := re.fullmatch(r"(bytes sent|calls) (in|over) (\S+)", what):
        total = 0.0
        for line in of:
            for calls, sent in traffic(line, found, sources) if line["type"] == "collective" else ():
                total += calls if found[1] == "calls" else bytes_sent(line, sent)
        return total / (end["steps"] or 1)
    if found := re.fullmatch(r"peak (\w+)", what):
        return next(line["peak"][found[1]] for line in of if line["type"] == "memory")
    if what == "milliseconds":
        return end["seconds_per_step"] * 1e3
    if what == "steps":
        return end["steps"]
    if found := re.fullmatch(r"value ([0-9]+) of (.+) of (\S+)", what):
        for line in of:
            if line["type"] == "probe" and (line["id"], line["name"]) == (found[3], found[2]):
                return line.get("values", line.get("floats"))[int(found[1])]
    raise ValueError(f"nothing measures '{measure}'")


def measure(context: Context, chapter: Chapter, question: Question) -> float:
    """Runs the solution."""
    before, _, options = question.run.partition("-- ")
    program, ranks = before.split()
    context.build_program(chapter, program, True, options.split())
    environment = {name: value for name, value in os.environ.items() if name != "WORKSHOP_SIMULATE"}
    if question.on:
        environment["WORKSHOP_SIMULATE"] = question.on
    status, lines, output = recorded_run(
        context.program(chapter, program, True), int(ranks), shlex.split(options), environment
    )
    if status:
        print(output, end="")
        raise Failed(1)
    return measured(lines, question.measure, chapter.sources(), output)


# ---- the verb ------------------------------------------------------------------------------------------------------


def number_of(text: str) -> float:
    """A number as people write it: "1,536", "1.5k", "2 MB"."""
    found = re.fullmatch(r"([0-9][0-9,]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?) *([kKMG]?)(?:i?B|bytes|ms|%)?", text.strip())
    if not found:
        raise Refused(f"expected a number as the prediction, not '{text}'")
    return float(found[1].replace(",", "")) * {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}[found[2]]


def written(value: float, unit: str) -> str:
    return (f"{value:,.0f}" if value == int(value) else f"{value:,.6g}") + (f" {unit}" if unit else "")


def verdict(predicted: float, value: float, unit: str) -> str:
    if abs(predicted - value) <= 0.03 * abs(value):
        return f"Right: {written(value, unit)}."
    off = ""
    if predicted > 0 and value > 0 and unit:  # a rank is no amount
        ratio = predicted / value
        off = f"; yours is {'larger' if ratio > 1 else 'smaller'} by a factor of {max(ratio, 1 / ratio):.3g}"
    return f"You predicted {written(predicted, unit)}. Measured: {written(value, unit)}{off}."


def wrapped(text: str) -> str:
    words, lines = text.split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 100:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return "\n".join("  " + line for line in lines)


def predict(context: Context, words: list[str]) -> int:
    rest = Words(words)
    asked, value = rest.next(), rest.next()
    require(not rest, f"predict takes a question and a number, not '{rest.peek()}' too")
    found = re.fullmatch(r"([0-9]{1,2})\.([0-9])", asked)
    chapter = chapters.choose(found[1] if found else asked)
    there = of_chapter(chapter)
    if not found:
        require(not value, f"which question of {chapter.name}? There are {' '.join(one.number for one in there)}")
        for question in there:
            print(f"{question.number}\n{wrapped(question.ask)}")
        print(f"Your prediction: ./workshop predict {there[0].number} NUMBER")
        return 0
    number = f"{chapter.number}.{found[2]}"
    question = next((one for one in there if one.number == number), None)
    require(question, f"no question {number}; there are {' '.join(one.number for one in there)}")
    assert question
    if not value:
        print(f"{wrapped(question.ask)}\nYour prediction: ./workshop predict {number} NUMBER")
        return 0
    predicted = number_of(value.strip().removesuffix(question.unit))
    require(
        not question.on or context.backend == "cpu", f"{number} needs a simulated machine: add --backend cpu"
    )
    is_value = measure(context, chapter, question)
    before, _, options = question.run.partition(" -- ")
    program, ranks = before.split()
    machine = f"WORKSHOP_SIMULATE={question.on} " if question.on else ""
    print(verdict(predicted, is_value, question.unit))
    print(wrapped(question.why))
    command = f"./workshop run {chapter.number} {program} -n {ranks} --solution -- {options}"
    print(f"Measured by: {machine}{command}".rstrip("- "))
    return 0 if verdict(predicted, is_value, question.unit).startswith("Right") else 1

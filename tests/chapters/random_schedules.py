# SPDX-License-Identifier: Apache-2.0
"""Trains with random schedules (04_pipeline/pipeline --schedule FILE), some of them damaged: random_schedules.py BIN COUNT

A schedule is either refused, with the reason, or it trains what 1F1B trains. Every other schedule comes from a random
order in which the work can be done, so most of these run; some have two chunks per stage, placed in a V. After every
fourth, a damaged copy follows.
"""
from __future__ import annotations

import collections
import os
import random
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from support import LAUNCH, expect, run, run_main

PATIENCE = 60  # seconds for a run
# The last batch of an epoch has one sample, so only one of its micro-batches has any.
NETWORK = "--layers 6,5,4,5,4,5,4,3,2 --samples 49 --batch-size 24 --epochs 2 --log-every 0".split()
TOLERANCE = 2e-5  # as in tests/chapters/04_pipeline.cpp: sums in other orders
FINDING = re.compile("runtime error:|Sanitizer|order: |bounds: ")


def cells(stages: int, orders: list[list[str]]) -> str:
    return "".join(f"stage {s} | {' '.join(orders[s])}\n" for s in range(stages))


def any_order(numbers: random.Random, stages: int, batches: int, split: bool) -> list[list[str]]:
    """For each stage, any order in which a micro-batch's forward comes before its backward, and this before its W."""
    orders = []
    for _ in range(stages):
        kinds = "FBW" if split else "FB"
        order = [m for m in range(batches) for _ in kinds]
        numbers.shuffle(order)
        seen = [0] * batches
        orders.append([])
        for m in order:
            orders[-1].append(f"{kinds[seen[m]]}{m}")
            seen[m] += 1
    return orders


def possible_order(
    numbers: random.Random, stages: int, batches: int, split: bool, placement: list[int]
) -> list[list[str]]:
    """A random order in which all the work can be done: at any time, something that nothing else stands before.
    `placement` has the stage of each part."""
    waiting = [(p, kind, m) for kind in "FBW"[: 2 + split] for p in range(len(placement)) for m in range(batches)]
    done: set[tuple[int, str, int]] = set()
    orders: list[list[str]] = [[] for _ in range(stages)]

    def can_start(p: int, kind: str, m: int) -> bool:
        in_turn = kind == "W" or m == 0 or (p, kind, m - 1) in done  # neighbors need the same order
        if kind == "F":
            return in_turn and (p == 0 or (p - 1, "F", m) in done)
        if kind == "B":
            return in_turn and (p, "F", m) in done and (p == len(placement) - 1 or (p + 1, "B", m) in done)
        return (p, "B", m) in done

    while waiting:
        one = numbers.choice([w for w in waiting if can_start(*w)])
        waiting.remove(one)
        done.add(one)
        part, kind, m = one
        chunk = "ab"[placement[:part].count(placement[part])] if len(placement) > stages else ""
        orders[placement[part]].append(f"{kind}{m}{chunk}")
    return orders


def damaged(numbers: random.Random, text: str) -> str:
    """A copy in which one thing is missing, twice there, exchanged, or no cell."""
    words = text.split(" ")
    at, other = numbers.randrange(len(words)), numbers.randrange(len(words))
    how = numbers.randrange(6)
    if how == 0:
        del words[at]
    elif how == 1:
        words.insert(at, words[other])
    elif how == 2:
        words[at], words[other] = words[other], words[at]
    elif how == 3:
        words[at] = numbers.choice(["X0", "F", "F-1", "B99999", "F0a", "", "W0", "|", "stage", "\0", "F1B1"])
    elif how == 4:
        return text[: numbers.randrange(len(text))]
    else:
        return "\n".join(numbers.sample(text.split("\n"), text.count("\n")))
    return " ".join(words)


def loss_of(said: str) -> float | None:
    found = re.findall(r"loss ([0-9.]+)", said)
    return float(found[-1]) if found else None


def train(solutions: str, stages: int, options: list[str]) -> tuple[int, str]:
    command = [LAUNCH, "-n", str(stages), "-t", str(PATIENCE), "--", f"{solutions}/04_pipeline/pipeline"]
    return run([*command, *NETWORK, *options], 2 * PATIENCE, env={**os.environ, "WORKSHOP_ORDER": "1"},
               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def try_all(solutions: str, count: int, numbers: random.Random) -> None:
    expected: dict[tuple[int, int], float | None] = {}
    seen: collections.Counter[str] = collections.Counter()

    def try_one(text: str, stages: int, batches: int) -> bool:
        with open("schedule.txt", "w", encoding="utf-8") as file:
            file.write(text)
        status, said = train(solutions, stages, ["--schedule", "schedule.txt"])
        refused = status == 1 and "This schedule is wrong, so no rank runs it" in said and "stage " in said
        refused = refused or (status == 2 and said.count("\n") == 1)
        case = f"{text}\n{said[-2000:]}\nstatus {status}"
        expect((status == 0 or refused) and not FINDING.search(said), f"{case}; expected 0, or 1 or 2 with the reason")
        if status == 0:
            if (stages, batches) not in expected:
                expected[stages, batches] = loss_of(train(solutions, stages, ["--micro-batches", str(batches)])[1])
            loss, right = loss_of(said), expected[stages, batches]
            expect(loss is not None and right is not None and abs(loss - right) <= TOLERANCE,
                   f"{case}: loss {loss}, with 1F1B {right}")
        seen["right" if status == 0 else "refused"] += 1
        return status == 0

    for number in range(count):
        stages, batches = numbers.choice([1, 2, 3, 4]), numbers.choice([1, 2, 3, 4, 6])
        split, is_v = numbers.random() < 0.5, number % 8 in (2, 4)
        placement = [*range(stages), *(reversed(range(stages)) if is_v else [])]
        if number % 2 == 0:
            text = cells(stages, possible_order(numbers, stages, batches, split, placement))
        else:
            text = cells(stages, any_order(numbers, stages, batches, split))
        if is_v:
            text = f"parts | {' '.join(map(str, placement))}\n{text}"
        try_one(text, stages, batches)
        if number % 4 == 0:
            try_one(damaged(numbers, text), stages, batches)
    print(f"{seen['right']} schedules are right, {seen['refused']} are refused")
    expect(seen["right"] >= count // 4 and seen["refused"] >= count // 4, "too few of one kind to show anything")


def main(words: list[str]) -> int:
    solutions, count = words
    try_all(os.path.abspath(solutions), int(count), random.Random(os.environ.get("WORKSHOP_TEST_SEED", "1")))
    return 0


if __name__ == "__main__":
    run_main(main)

# SPDX-License-Identifier: Apache-2.0
"""What becomes of a training whose batch grows with the number of ranks (02_ddp/experiments.md).

  large_batches [BUILD]

The language model goes through the same samples once, in batches of 16 from each of 1, 2, 4, … ranks, with the learning
rate of one rank (same), and with one that is so many times as large, after a warm-up of a tenth of the steps (linear).

k ranks with batches of 16 make the steps of one rank with 16k, so the losses are learned on one rank; the time per step
is measured on k of them, up to 8, which without GPUs are those of a simulated machine. The environment may change the
experiment: SEEDS="1 2 3" RANKS="1 2 4 8" LR=0.004 TARGET=1.5 OPTIMIZER=adamw. BUILD is build/cpu unless named.
"""
from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
LAUNCH = os.path.join(ROOT, "tools", "launch")
WORDS, CONTEXT, BATCH = 200000, 16, 16
MOST_RANKS = 8  # of which the time is measured
WINDOW = 2048  # samples of which the mean loss is compared with the target
MACHINE = "compute=100G,link=2us+1G/s,node=4,between=5us+500M/s"
PATIENCE = 3600  # seconds for one training


class Failed(Exception):
    """A run that did not end well, or did not say what is needed."""


@dataclass
class Settings:
    """The experiment, as the environment describes it."""

    seeds: list[str]
    ranks: list[int]
    lr: str
    target: float
    optimizer: str
    build: str

    @property
    def model(self) -> list[str]:
        return ["--model", "gpt", "--words", str(WORDS), "--context", str(CONTEXT), "--width", "16", "--epochs", "1",
                "--lr-schedule", "constant", "--log-every", "0", "--optimizer", self.optimizer]


def settings(environment: dict[str, str], build: str) -> Settings:
    return Settings(seeds=environment.get("SEEDS", "1 2 3 4 5 6").split(),
                    ranks=[int(word) for word in environment.get("RANKS", "1 2 4 8 16 32").split()],
                    lr=environment.get("LR", "0.004"), target=float(environment.get("TARGET", "1.5")),
                    optimizer=environment.get("OPTIMIZER", "adamw"), build=build)


# ---- what records and output say -----------------------------------------------------------------------------------


def steps_to_target(record: str, samples_per_step: int, target: float) -> int | None:
    """The first step after which the mean loss of the last 2,048 samples is at most the target."""
    window = max(WINDOW // samples_per_step, 1)
    losses: list[float] = []
    for text in re.findall(r'"global_loss":([^,}\s]*)', record):
        losses.append(number(text))
        if len(losses) >= window and sum(losses[-window:]) / window <= target:
            return len(losses)
    return None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def only_match(pattern: str, text: str, where: str) -> str:
    found = re.search(pattern, text, re.M)
    if not found:
        raise Failed(f"{where} has nothing like {pattern}")
    return found[1]


# ---- the table -----------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a training with one seed came to."""

    test_loss: float
    steps: int | None  # to the target


def spread(values: list[float], digits: int) -> str:
    """The mean of the seeds, and how far the farthest is from it."""
    mean = sum(values) / len(values)
    return f"{mean:.{digits}f} ± {max(abs(value - mean) for value in values):.{digits}f}"


def heading(target: str) -> str:
    steps = f"steps to {target}"
    return f"ranks  batch  steps  {'rule':<6} {'lr':<6}  {'test loss':<17}  {steps:<18} time to it"


def row(k: int, steps: int, rule: str, rate: str, outcomes: list[Outcome], seconds: float | None) -> str:
    """A line of the table. `seconds`: what a step takes, if it was measured."""
    head = f"{k:5d} {k * BATCH:6d} {steps:6d}  {rule:<6} {rate:<6}"
    if not all(math.isfinite(outcome.test_loss) for outcome in outcomes):
        return f"{head}  diverges"
    head += f"  {spread([outcome.test_loss for outcome in outcomes], 3):<17}"
    reached = [outcome.steps for outcome in outcomes if outcome.steps is not None]
    if len(reached) < len(outcomes):
        return f"{head}  {len(reached)} of {len(outcomes)} seeds"
    time = f"{sum(reached) / len(reached) * seconds * 1e3:.0f} ms" if seconds else "-"
    return f"{head}  {spread(reached, 0):<18} {time}"


# ---- running -------------------------------------------------------------------------------------------------------


class Experiment:
    def __init__(self, chosen: Settings):
        self.settings = chosen
        self.folder = os.path.join(chosen.build, "large_batches")
        os.makedirs(self.folder, exist_ok=True)

    def launch(self, ranks: int, program: str, options: list[str], environment: dict[str, str]) -> str:
        """Returns what a program prints."""
        path = os.path.join(self.settings.build, "solutions", "02_ddp", program)
        command = [LAUNCH, "-n", str(ranks), "-t", str(PATIENCE), "--", path, *self.settings.model, *options]
        done = subprocess.run(command, env=dict(os.environ, **environment), stdin=subprocess.DEVNULL, check=False,
                              stdout=subprocess.PIPE)
        output = done.stdout.decode("utf-8", "replace")
        if done.returncode:
            raise Failed(f"{output}{program} ended with status {done.returncode}")
        return output

    def train(self, k: int, rule: str, rate: str, warmup: int, seed: str) -> Outcome:
        record = os.path.join(self.folder, f"{k}.{rule}.{seed}")
        options = ["--batch-size", str(k * BATCH), "--lr", rate, "--warmup-steps", str(warmup), "--seed", seed,
                   "--model-seed", seed, "--record", record + ".jsonl"]
        output = self.launch(1, "ddp", options, {})
        with open(record + ".txt", "w", encoding="utf-8") as file:
            file.write(output)
        loss = number(only_match("^test loss ([^,]*),", output, record + ".txt"))
        return Outcome(loss, steps_to_target(read(record + ".jsonl"), k * BATCH, self.settings.target))

    def seconds_per_step(self, k: int) -> float | None:
        """None for more ranks than it is measured on."""
        if k > MOST_RANKS:
            return None
        simulate = {} if "cuda" in self.settings.build else {
            "WORKSHOP_SIMULATE": os.environ.get("WORKSHOP_SIMULATE", MACHINE)}
        record = os.path.join(self.folder, "time.jsonl")
        self.launch(k, "ddp_overlap", ["--batch-size", str(BATCH), "--max-steps", "8", "--record", record], simulate)
        return float(only_match(r'"seconds_per_step":([^,}\s]*)', read(record), record))

    def rows(self, k: int):
        steps = math.ceil(WORDS // CONTEXT / (k * BATCH))
        seconds = self.seconds_per_step(k)
        lr = self.settings.lr
        for rule, rate, warmup in (("same", lr, 0), ("linear", f"{float(lr) * k:.6g}", steps // 10)):
            outcomes = [self.train(k, rule, rate, warmup, seed) for seed in self.settings.seeds]
            yield row(k, steps, rule, rate, outcomes, seconds)


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def main(words: list[str]) -> int:
    if len(words) > 1 or words[:1] in (["-h"], ["--help"]):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        experiment = Experiment(settings(dict(os.environ), os.path.abspath(words[0]) if words else f"{ROOT}/build/cpu"))
        print(heading(f"{experiment.settings.target:g}"), flush=True)
        for k in experiment.settings.ranks:
            for line in experiment.rows(k):
                print(line, flush=True)
    except (Failed, OSError, ValueError) as error:
        print(f"large_batches: {error}", file=sys.stderr)
        return 1
    return 0

# SPDX-License-Identifier: Apache-2.0
"""Ends training runs at random moments by random signals, and goes on until they are done:

  stopping.py BIN COUNT           on this machine
  stopping.py BIN COUNT slurm     as steps of a Slurm job, on its nodes, which must all be this machine

After each end, every folder that has the name of a checkpoint must be complete, and none that had its name may be gone.
The run must become, bit by bit, the one that nothing has interrupted. The moments are the same ones as far as time is,
unless WORKSHOP_TEST_SEED names others.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from support import LAUNCH, ROOT, end_all, expect, run_main, status_of

PATIENCE = 90  # seconds for a run
SAVED = 75

# Ranks, program, options. A run takes one to two seconds.
RUNS = [
    (1, "01_single_gpu/mlp", "--batch-size 16 --max-steps 3000"),
    (2, "02_ddp/ddp", "--batch-size 16 --max-steps 1200"),
    (3, "02_ddp/ddp_overlap", "--batch-size 8 --max-steps 600 --accumulation-steps 2 --validation-samples 64"),
    (2, "06_fsdp/zero", "--batch-size 16 --stage 2 --max-steps 600"),
    (3, "06_fsdp/fsdp", "--batch-size 8 --max-steps 300"),
    (2, "04_pipeline/pipeline", "--layers 6,8,5,8,3 --batch-size 32 --schedule interleaved --max-steps 300"),
    (2, "05_tensor_parallel/tensor_parallel", "--batch-size 32 --max-steps 600"),
    (4, "07_3d/train_3d", "--layers 6,8,5,8,3 --batch-size 16 --dp 2 --pp 2 --zero 1 --max-steps 200"),
    (3, "10_less_communication/local_sgd", "--batch-size 8 --sync-every 3 --max-steps 600"),
]
WITHOUT_ASYNC = ("local_sgd",)
SIGNALS = ["TERM", "USR1", "KILL", "STOP"]  # a rank that is stopped goes on a moment later


def has_best(names: set[str]) -> bool:
    return any(name.startswith("best-") for name in names)


class Trial:
    def __init__(self, programs: str, number: int, chance: random.Random, on_slurm: bool):
        self.on_slurm = on_slurm
        self.folder = os.getcwd()
        self.ranks, program, options = RUNS[number % len(RUNS)]
        self.program = os.path.join(programs, program)
        self.chance = chance
        self.options = [*options.split(), "--epochs", "1000", "--log-every", "0", "--optimizer", "adamw"]
        saved = self.path("saved")
        self.saving = ["--checkpoints", saved, "--resume", saved, "--keep", "0", "--save-every", chance.choice(["0", "40", "150"])]
        if not program.endswith(WITHOUT_ASYNC) and chance.random() < 0.5:
            self.saving += ["--checkpoint-mode", "async"]
        self.done: list[str] = []  # what has happened

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def told(self) -> str:
        return f"{self.ranks} ranks, {os.path.basename(self.program)} {' '.join(self.options + self.saving)}: {'; '.join(self.done)}"

    def start(self, options: list[str], record: str) -> subprocess.Popen:
        launch = [LAUNCH, "-n", str(self.ranks)]
        if self.on_slurm:
            launch = ["slurm/step", "-n", str(self.ranks), "-N", str(min(self.ranks, 2))]
        command = [*launch, "--", self.program, *self.options, *options, "--record", self.path(record)]
        with open("output.txt", "ab") as output:
            return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def end(self, process: subprocess.Popen) -> int:
        try:
            return status_of(process.wait(PATIENCE))
        except subprocess.TimeoutExpired:
            end_all(process)
            expect(False, f"a run has not ended\n{self.told()}\n{output()}")
            raise

    def without_interruption(self) -> float:
        begin = time.monotonic()
        status = self.end(self.start([], "expected.jsonl"))
        expect(status == 0, f"status {status}\n{self.told()}\n{output()}")
        return time.monotonic() - begin

    def disturb(self, process: subprocess.Popen, kind: str) -> bool:
        """Sends the signal to a rank, or to all. Returns whether there was one."""
        while True:
            ranks = of_program(self.path("record.jsonl"))
            if process.poll() is not None:
                return False
            if kind in ("KILL", "STOP") or (len(ranks) == self.ranks and all(map(catches, ranks))):
                break
            time.sleep(0.01)
        if not ranks:
            return False
        chosen = ranks if self.chance.random() < 0.3 else [self.chance.choice(ranks)]
        self.done.append(f"{kind} to {len(chosen)} of {len(ranks)}")
        for pid in chosen:
            send(pid, kind)
        if kind == "STOP":
            time.sleep(self.chance.random() * 0.5)
            for pid in chosen:
                send(pid, "CONT")
        return True

    def judge(self) -> None:
        seconds = self.without_interruption()
        named: set[str] = set()
        for attempt in range(6):
            process = self.start(self.saving, "record.jsonl")
            kind = self.chance.choice(list(SIGNALS))
            time.sleep(self.chance.random() * seconds * 1.2)
            sent = self.disturb(process, kind) if attempt < 5 else False
            status = self.end(process)
            self.done.append(f"status {status}")
            allowed = {0} if not sent or kind == "STOP" else {0, SAVED} if kind in ("TERM", "USR1") else set(range(256))
            expect(status in allowed, f"{self.told()}\n{output()}")
            now = checkpoints()
            lost = {name for name in named - now if not name.startswith("best-")}  # of the best ones, only the last stays
            expect(not lost, f"lost {lost}: {self.told()}")
            expect(has_best(now) or not has_best(named), f"lost the best one: {self.told()}")
            expect(status != SAVED or now, f"saved, but there is no checkpoint: {self.told()}")
            named = now
            if status == 0:
                break
        expect(status == 0, f"not done after many runs: {self.told()}")
        expect(results("record.jsonl") == results("expected.jsonl"), f"other results: {self.told()}")


def catches(pid: int) -> bool:
    """Whether a process has a handler for SIGUSR1: before the training, the signal just ends it."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            caught = next(line.split()[1] for line in file if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (signal.SIGUSR1 - 1) & 1)
    except (OSError, StopIteration):
        return False


def output() -> str:
    with open("output.txt", encoding="utf-8", errors="replace") as file:
        return file.read()[-3000:]


def of_program(record: str) -> list[int]:
    """The processes of the ranks: those that have this file as an option, but start no others."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        starts_others = b"--" in words or b"sh" in words or words[0].endswith((b"mpirun", b"setpriv", b"srun"))
        if record.encode() in words and not starts_others:
            found.append(int(name))
    return found


def send(pid: int, kind: str) -> None:
    try:
        os.kill(pid, getattr(signal, "SIG" + kind))
    except ProcessLookupError:
        pass


def checkpoints() -> set[str]:
    """The names of checkpoints; each must be complete."""
    found = set()
    for name in os.listdir("saved") if os.path.isdir("saved") else []:
        if name.startswith("."):
            continue
        with open(os.path.join("saved", name, "index.json"), encoding="utf-8") as file:
            index = json.load(file)
        for part, about in index["files"].items():
            size = os.path.getsize(os.path.join("saved", name, part))
            expect(size == about["bytes"], f"{name}/{part} has {size} bytes, not {about['bytes']}")
        found.add(name)
    return found


def results(record: str) -> list[str]:
    """The final parameters in a record."""
    with open(record, encoding="utf-8") as file:
        return [line for line in file if '"type":"parameter"' in line]


def main(words: list[str]) -> int:
    programs, count, on_slurm = os.path.abspath(words[0]), int(words[1]), words[2:] == ["slurm"]
    seed = os.environ.get("WORKSHOP_TEST_SEED", "1")
    signals = 0
    for number in range(count):
        folder = tempfile.mkdtemp(prefix="stopping.")
        os.chdir(folder)
        trial = Trial(programs, number, random.Random(f"{seed} {number}"), on_slurm)
        trial.judge()
        signals += sum(" to " in what for what in trial.done)
        os.chdir("/")
        shutil.rmtree(folder)
    print(f"{count} runs, with {signals} signals, have become what they would have become")
    return 0


if __name__ == "__main__":
    run_main(main)

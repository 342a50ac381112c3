# SPDX-License-Identifier: Apache-2.0
"""Kills a training run that saves every step, and resumes it: check_kills.py COMPARE KILLS RANKS PROGRAM [OPTION]...

It is killed KILLS times, at random moments, and resumed each time. What it ends with must be what an uninterrupted run
ends with, bit by bit.
"""
from __future__ import annotations

import glob
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
from support import LAUNCH, Failure, end_all, end_by_exception, expect, run, status_of, until
from workshop import processes

PATIENCE = 300  # seconds for a training run, or for its first checkpoint
SAVING = ["--checkpoints", "saved", "--resume", "saved", "--save-every", "1", "--record", "found.jsonl"]


def newest() -> str:
    """The last checkpoint that is complete; empty if there is none."""
    return max(glob.glob("saved/step-*/index.json"), default="")


def kill_all(process: subprocess.Popen) -> None:
    """Kills the launcher, mpirun and the ranks, and waits until they have ended."""
    pids = [process.pid, *processes.descendants([process.pid])]
    processes.send(signal.SIGKILL, pids)
    process.wait(60)
    until(lambda: not any(processes.is_running(pid) for pid in pids), 60, "the end of those that were killed")


class Kills:
    def __init__(self, compare: str, ranks: int, training: list[str]):
        self.compare = compare
        self.command = [LAUNCH, "-t", str(PATIENCE), "-n", str(ranks), "--", *training]
        self.random = random.Random(os.environ.get("WORKSHOP_TEST_SEED", "1"))
        self.killed = self.resumed = 0

    def train(self, options: list[str], failure: str) -> None:
        """Trains to the end."""
        status, output = run([*self.command, *options], PATIENCE + 30)
        expect(status == 0, f"{output}\n{failure}")

    def expect_same(self) -> None:
        status, output = run([self.compare, "--compare", "expected.jsonl", "found.jsonl", "0", "resumed"], 60)
        expect(status == 0, f"{output}\nanother training")

    def wait_for_moment(self, process: subprocess.Popen, before: str) -> None:
        """Every fifth kill may come before the first save, the others while training and saving go on."""
        if self.killed % 5:
            until(lambda: newest() != before or process.poll() is not None, PATIENCE, "a further checkpoint")
            time.sleep(0.3 * self.random.random())
        else:
            time.sleep(0.2 + 0.4 * self.random.random())

    def kill_once(self) -> None:
        """Starts a run that goes on where the last one was killed, and kills it unless it ends before."""
        before = newest()
        with open("output.txt", "wb") as output:
            process = subprocess.Popen([*self.command, *SAVING], stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT)
        try:
            self.wait_for_moment(process, before)
            if process.poll() is None:
                kill_all(process)
                self.killed += 1
                self.resumed += newest() != before
                return
        finally:
            if process.poll() is None:
                end_all(process)
        if status_of(process.returncode) != 0:
            with open("output.txt", encoding="utf-8", errors="replace") as file:
                raise Failure(f"{file.read()}\na resumed run failed")
        self.expect_same()
        shutil.rmtree("saved")  # done: from the beginning

    def check(self, kills: int) -> str:
        self.train(["--record", "expected.jsonl"], "the uninterrupted run failed")
        while self.killed < kills:
            self.kill_once()
        expect(2 * self.resumed > kills, f"just {self.resumed} of {kills} kills came after further checkpoints")
        self.train(SAVING, "the last run failed")
        self.expect_same()
        left = [os.path.join(folder, name) for folder, folders, files in os.walk("saved") for name in folders + files
                if name.startswith(".") and name != ".lock"]
        expect(not left, f"what killed saves began is still there: {' '.join(left)}")
        return f"{self.killed} kills, {self.resumed} of them after further checkpoints"


def main(words: list[str]) -> int:
    compare, kills, ranks, *training = words
    training += "--optimizer adamw --samples 960 --epochs 1000 --max-steps 300 --log-every 0".split()
    end_by_exception()
    shutil.rmtree("saved", ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory() as scratch:  # what killed launchers leave behind goes with it
            os.environ["TMPDIR"] = scratch
            print(Kills(compare, int(ranks), training).check(int(kills)))
    except (Failure, subprocess.TimeoutExpired) as failure:
        print(failure)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

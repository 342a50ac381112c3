# SPDX-License-Identifier: Apache-2.0
"""Stops or kills a rank at a random moment: any_moment.py LAUNCH SIGNAL TRIALS LOAD PROGRAM [OPTION]...

Sends STOP or KILL to a random rank of a job of four at a random moment, its start and its end included, TRIALS times,
while LOAD processes keep cores busy. Each time the job ends within its deadlines and ten seconds, says which rank it
was, and leaves nothing behind.
"""
from __future__ import annotations

import glob
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from support import Failure, end_all, end_by_exception, expect, status_of, until
from workshop import processes

RANKS = 4
PATIENCE = 120  # seconds for a job; the launcher ends it then
# Each rank leaves its process id, and its folder of shared memory if there is one, in a file.
AS_RANK = 'echo $$ "$OMPI_MCA_btl_vader_backing_directory" >"rank-$OMPI_COMM_WORLD_RANK"; exec "$@"'
STATES = "((has|have) not started|is stopped|(does|do) not answer|has not ended|was ended by signal KILL)"


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def names(output: str, rank: int) -> bool:
    """Whether it is said what is wrong with the rank, perhaps among others."""
    return re.search(rf"ranks? ([0-9, ]*, )?{rank}(, [0-9, ]*)? {STATES}", output) is not None


class Job:
    """A job of four ranks. What it leaves can be found by a variable in the environment of its processes, and in the
    folder for temporary files."""

    def __init__(self, launch: str, command: list[str], scratch: str):
        self.scratch = scratch
        for path in glob.glob("rank-*"):
            os.unlink(path)
        with open("output.txt", "wb") as output:
            self.process = subprocess.Popen(
                [launch, "-n", str(RANKS), "-t", str(PATIENCE), "--", "sh", "-c", AS_RANK, "rank", *command],
                env=dict(os.environ, ANY_MOMENT=scratch, TMPDIR=scratch), stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT)

    def wait_for_rank(self, rank: int) -> None:
        """Waits until the rank has started."""
        until(lambda: read(f"rank-{rank}").endswith("\n") or self.process.poll() is not None, PATIENCE, f"rank {rank}")
        expect(read(f"rank-{rank}"), f"rank {rank} has not started")

    def signal_rank(self, rank: int, number: int) -> str:
        """Sends it a signal. Returns its folder of shared memory."""
        process, _, shared = read(f"rank-{rank}").strip().partition(" ")
        processes.send(number, [int(process)])
        return shared

    def wait(self) -> tuple[int, float]:
        """The status, and how long it took from now on."""
        began = time.monotonic()
        status = status_of(self.process.wait(PATIENCE + 30))
        return status, time.monotonic() - began

    def processes(self) -> list[int]:
        """Those that belong to the job."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if processes.environment_of(pid).get("ANY_MOMENT") == self.scratch]

    def left(self, shared: str) -> list[str]:
        """Processes, and folders below `scratch` and in shared memory."""
        found = [f"process {pid}" for pid in self.processes()]
        found += [os.path.join(folder, name)
                  for folder, folders, files in os.walk(self.scratch) for name in folders + files]
        return found + [shared] * bool(shared and os.path.exists(shared))

    def is_clean(self, shared: str) -> bool:
        """Whether nothing is left within five seconds."""
        try:
            until(lambda: not self.left(shared), 5, "what is left")
        except Failure:
            return False
        return True

    def end(self) -> None:
        if self.process.poll() is None:
            end_all(self.process)
        processes.send(signal.SIGKILL, self.processes())  # if it has failed to end them


class Trials:
    def __init__(self, launch: str, number: int, command: list[str], scratch: str):
        self.launch, self.signal, self.command, self.scratch = launch, number, command, scratch
        self.random = random.Random(os.environ.get("WORKSHOP_TEST_SEED", str(os.getpid())))
        deadlines = [int(os.environ[name]) for name in ("WORKSHOP_TIMEOUT", "WORKSHOP_JOIN_TIMEOUT")]
        self.limit = 10 + max(deadlines)
        self.longest = 0

    def duration(self) -> float:
        """How long a job takes that nothing happens to, from its first rank's start."""
        job = Job(self.launch, self.command, self.scratch)
        try:
            job.wait_for_rank(0)
            status, seconds = job.wait()
        finally:
            job.end()
        expect(status == 0, "the job that nothing happens to failed")
        return seconds

    def one(self, rank: int, moment: float) -> bool:
        """A job with a signal to a rank, so many seconds after its start. Returns whether it came before the end."""
        job = Job(self.launch, self.command, self.scratch)
        try:
            job.wait_for_rank(rank)
            time.sleep(moment)
            shared = job.signal_rank(rank, self.signal)
            status, seconds = job.wait()
            expect(job.is_clean(shared), f"left behind: {job.left(shared)}")
        finally:
            job.end()
        if status == 0:
            return False
        expect(int(seconds) <= self.limit, f"took {seconds:.1f} s")
        expect(names(read("output.txt"), rank), "the rank is not named")
        self.longest = max(self.longest, int(seconds))
        return True

    def run(self, count: int) -> str:
        name = signal.Signals(self.signal).name[3:]
        duration = self.duration()
        done = late = 0
        while done < count:
            rank, moment = self.random.randrange(RANKS), self.random.random() * duration
            try:
                if self.one(rank, moment):
                    done += 1
                else:
                    late += 1
                    expect(late <= count + 10, "most jobs end before the signal")
            except (Failure, subprocess.TimeoutExpired) as failure:
                raise Failure(f"trial {done}, {name} to rank {rank} after {moment * 1e6:.0f} us: {failure}") from None
        return (f"{count} times {name}, ended within {self.longest} s of the signal; "
                f"{late} more came when the rank had ended")


def main(words: list[str]) -> int:
    launch, signal_name, trials, load, *command = words
    number = signal.Signals["SIG" + signal_name]
    end_by_exception()
    busy = [subprocess.Popen(processes.dying_with_me([sys.executable, "-IS", "-c", "while True: pass"], "KILL"))
            for _ in range(int(load))]
    try:
        with tempfile.TemporaryDirectory() as scratch:
            print(Trials(launch, number, command, scratch).run(int(trials)))
    except (Failure, subprocess.TimeoutExpired) as failure:
        print(f"{read('output.txt')}\n{failure}")
        return 1
    finally:
        for process in busy:
            process.kill()
            process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""Suspends a job: suspend.py LAUNCH MISBEHAVE

A job of two ranks that is suspended for longer than its deadline (WORKSHOP_TIMEOUT), while one rank waits for the
other, goes on as if nothing had been.
"""
from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from support import Failure, end_all, end_by_exception, expect, status_of, until
from workshop import processes

PATIENCE = 40  # seconds for the job
AS_RANK = 'echo $$ >"rank-${RANK-$OMPI_COMM_WORLD_RANK}"; exec "$0" --fault nap'


def read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def suspend(launcher: subprocess.Popen, seconds: float) -> None:
    until(lambda: "napping" in read("output.txt") or launcher.poll() is not None, PATIENCE, "a rank that takes a nap")
    # The nap takes a second. Meanwhile the other rank begins to wait, which it does not say.
    time.sleep(0.3)
    ranks = [int(read(f"rank-{rank}")) for rank in range(2)]
    expect(all(processes.is_running(rank) for rank in ranks), "a rank has ended before it was suspended")
    processes.send(signal.SIGSTOP, ranks)
    time.sleep(seconds)
    expect(all((processes.state_and_parent(rank) or "-")[0] == "T" for rank in ranks), "the ranks were not suspended")
    processes.send(signal.SIGCONT, ranks)


def main(words: list[str]) -> int:
    launch, misbehave = words
    end_by_exception()
    for path in glob.glob("rank-*"):
        os.unlink(path)
    with open("output.txt", "wb") as output:
        launcher = subprocess.Popen([launch, "-n", "2", "-t", str(PATIENCE), "--", "sh", "-c", AS_RANK, misbehave],
                                    stdin=subprocess.DEVNULL, stdout=output)
    try:
        suspend(launcher, int(os.environ["WORKSHOP_TIMEOUT"]) + 3)
        status = status_of(launcher.wait(PATIENCE + 30))
        expect(status == 0, f"ended with status {status}")
        expect("done\n" in read("output.txt"), "has not come to its end")
    except (Failure, OSError, ValueError, subprocess.TimeoutExpired) as failure:
        print(f"{read('output.txt')}suspend: {failure}")
        return 1
    finally:
        if launcher.poll() is None:
            end_all(launcher)
    print(read("output.txt"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

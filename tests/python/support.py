# SPDX-License-Identifier: Apache-2.0
"""What the tests in Python share, those of pytest and those that CTest starts with with_python."""
from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from typing import Callable, Sequence

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tools", "python"))

from workshop import processes

LAUNCH = os.path.join(ROOT, "tools", "launch")


class Failure(Exception):
    """A promise that was not kept."""


def expect(condition: object, message: str) -> None:
    if not condition:
        raise Failure(message)


def load(path: str):
    """A script below the root as a module, without running its main()."""
    name = os.path.basename(path).partition(".")[0]
    spec = importlib.util.spec_from_file_location(name, os.path.join(ROOT, path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Waits until the condition holds; fails after so many seconds, and says what it has waited for."""
    end = time.monotonic() + seconds
    while not condition():
        expect(time.monotonic() < end, f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.01)


def status_of(returncode: int) -> int:
    """The status as a shell counts: 128 + N for a process that signal N has ended."""
    return returncode if returncode >= 0 else 128 - returncode


def end_all(process: subprocess.Popen) -> None:
    """Ends a process and everything below it."""
    processes.stop_all([process.pid])
    process.wait()


def end_by_exception() -> None:
    """Lets a signal end this process by an exception, so that `finally` ends what it has started."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def run_main(main: Callable[[list[str]], int]) -> None:
    """Ends this process with the status of main(words). A Failure is printed, and the status is 1."""
    end_by_exception()
    try:
        status = main(sys.argv[1:])
    except Failure as failure:
        print(f"{os.path.basename(sys.argv[0])}: {failure}")
        status = 1
    sys.exit(status)


def run(command: Sequence[str], seconds: float, **options) -> tuple[int, str]:
    """Runs a command, without input. Returns its status and what it has printed; fails if it takes longer."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
    process = subprocess.Popen(command, **options)
    try:
        parts = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Failure(f"{' '.join(command)}: did not end within {seconds:g} s") from None
    finally:
        if process.returncode is None:
            end_all(process)
    return status_of(process.returncode), b"".join(part or b"" for part in parts).decode("utf-8", "replace")


def without_notes(output: str) -> str:
    """Without the lines that say that ranks share a GPU, or that GPUs stay idle."""
    lines = output.split("\n")
    return "\n".join(line for line in lines
                     if not re.match(r"note: [0-9]+ (ranks|parts) share |warning: .* stays? idle", line)).rstrip("\n")

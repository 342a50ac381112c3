# SPDX-License-Identifier: Apache-2.0
"""Processes of this machine, as /proc shows them: ps is not installed everywhere."""

from __future__ import annotations

import os
import signal
import time


def state_and_parent(pid: int) -> tuple[str, int] | None:
    """The state letter and the parent of a process, or None if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            after_name = file.read().rpartition(")")[2].split()  # the name may hold anything
        return after_name[0], int(after_name[1])
    except (OSError, IndexError, ValueError):
        return None


def is_running(pid: int) -> bool:
    """Whether a process runs. A zombie has ended: it only waits for its parent to notice."""
    found = state_and_parent(pid)
    return found is not None and found[0] != "Z"


def descendants(pids: list[int]) -> list[int]:
    """All processes below the given ones."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = state_and_parent(int(name))
            if found:
                children.setdefault(found[1], []).append(int(name))
    below, queue = [], list(pids)
    while queue:
        found_children = children.get(queue.pop(), [])
        below += found_children
        queue += found_children
    return below


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty if it has ended or belongs to another user."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().decode("utf-8", "surrogateescape").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def send(signal_number: int, pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal_number)
        except OSError:
            pass  # it has ended


def stop_all(started: list[int], patience: float = 2.0) -> None:
    """Ends these processes and everything below them: politely, and after `patience` seconds for good."""
    pids = started + descendants(started)
    send(signal.SIGTERM, pids)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if not any(is_running(pid) for pid in pids):
            return
        time.sleep(0.02)
    send(signal.SIGKILL, [pid for pid in pids if is_running(pid)])


ending: list[int] = []  # the signal that ends this process, if there is one: nothing new is to be started


def take_all_along() -> None:
    """From now on, what ends this process ends everything below it, too. (Ctrl-C reaches all of them anyway.)"""

    def end(number: int, _frame: object) -> None:
        ending.append(number)
        # Here, because subprocess.run() kills its process at the exception, which leaves no time to clean up.
        stop_all(descendants([os.getpid()]), 5)
        raise SystemExit(128 + number)

    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # under nohup
            signal.signal(number, end)


def dying_with_me(command: list[str], signal_name: str) -> list[str]:
    """The command, changed so that its process gets a signal when the one that starts it ends, however that happens."""
    setpriv = which("setpriv")
    return [setpriv, "--pdeathsig", signal_name, *command] if setpriv else command


def which(program: str) -> str | None:
    """The program as a shell would find it. (To import shutil would cost more time than a shell does.)"""
    folders = [""] if "/" in program else os.environ.get("PATH", os.defpath).split(os.pathsep)
    for folder in folders:
        path = os.path.join(folder, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None

# SPDX-License-Identifier: Apache-2.0
"""Keeps other commands from a file or a folder that one writes, as common/base/run_lock.h does for the programs."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import contextmanager
from typing import Iterator

from .errors import Refused


def start_of(pid: int) -> str:
    """When the process started: field 22 of its stat. Empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def me() -> list[str]:
    """Host, process and its start; job of Slurm, and how often it was requeued."""
    job = [os.environ.get("SLURM_JOB_ID") or "-", os.environ.get("SLURM_RESTART_COUNT") or "0"]
    return [socket.gethostname(), str(os.getpid()), start_of(os.getpid()), *job]


def owner_in(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            owner = file.read(4096).split()
    except OSError:
        return []
    return owner if len(owner) == 5 and owner[1].isdigit() else []


def may_run(owner: list[str]) -> bool:
    """Whether an owner may still be running. One that nothing is known about may have just begun."""
    if not owner:
        return True
    host, _, _, job, restarts = me()
    if job != "-" and owner[3] == job and owner[4] != restarts:
        return False
    return owner[0] != host or start_of(int(owner[1])) == owner[2]


def refusal(path: str, writes: str, instead: str) -> Refused:
    owner = owner_in(path)
    known = owner and may_run(owner)
    return Refused(f"another run{f', process {owner[1]} on {owner[0]},' if known else ''} {writes}: {instead}")


def has_name(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except OSError:
        return False


def create_owner(path: str, writes: str, instead: str) -> None:
    """Where the file system has no locks: a file that only one process can create."""
    for attempt in range(2):
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except FileExistsError:
            if attempt or may_run(owner_in(path)):
                raise refusal(path, writes, f"{instead}, or remove {path} if that run has ended") from None
            os.unlink(path)
        else:
            os.write(file, (" ".join(me()) + "\n").encode())
            os.close(file)
            return


@contextmanager
def run_lock(prefix: str, writes: str, instead: str) -> Iterator[None]:
    """Locks the file PREFIXlock, or is Refused: "another run WRITES: INSTEAD". The lock ends with its process."""
    paths = [f"{prefix}lock"]
    try:
        while True:
            file = os.open(paths[0], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise refusal(paths[0], writes, instead) from None
            except OSError:
                create_owner(f"{prefix}owner", writes, instead)
                paths.append(f"{prefix}owner")
                break
            if has_name(file, paths[0]):
                break
            os.close(file)  # the run that had it has removed it meanwhile
        os.ftruncate(file, 0)
        os.write(file, (" ".join(me()) + "\n").encode())
    except OSError as error:
        raise Refused(f"{error.filename or paths[0]}: cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        for path in paths:
            if os.path.exists(path):
                os.unlink(path)
        os.close(file)

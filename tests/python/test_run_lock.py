# SPDX-License-Identifier: Apache-2.0
"""One owner for what a command writes: run_lock.py."""

import errno
import fcntl
import os
import socket
import subprocess

import pytest
from conftest import ROOT
from workshop import run_lock as module
from workshop.errors import Refused
from workshop.run_lock import run_lock

ME = f"another run, process {os.getpid()} on {socket.gethostname()}, is writing here: go elsewhere"


@pytest.fixture
def prefix(tmp_path):
    return str(tmp_path / ".page.")


def refusal(prefix):
    """The message that refuses a second run; empty if it gets the lock."""
    try:
        with run_lock(prefix, "is writing here", "go elsewhere"):
            return ""
    except Refused as refused:
        return str(refused)


def test_a_second_run_is_refused_and_told_of_the_first(prefix, tmp_path):
    with run_lock(prefix, "is writing here", "go elsewhere"):
        assert refusal(prefix) == ME
    assert not os.listdir(tmp_path)
    assert refusal(prefix) == ""


def test_what_a_killed_run_left_is_taken_over(prefix, tmp_path):
    with open(f"{prefix}lock", "w", encoding="utf-8") as file:
        file.write("elsewhere 7 1 - 0\n")  # its lock has ended with it
    assert refusal(prefix) == ""
    assert not os.listdir(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    said = f"{tmp_path}/missing/.lock: cannot be written: No such file or directory"
    assert refusal(f"{tmp_path}/missing/.") == said


def test_where_there_are_no_locks_a_file_takes_their_place(prefix, tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with run_lock(prefix, "is writing here", "go elsewhere"):
        mine = (tmp_path / ".page.owner").read_text()
        assert refusal(prefix) == f"{ME}, or remove {prefix}owner if that run has ended"
    assert not os.listdir(tmp_path)
    host = mine.split()[0]
    for owner, free in [
        (f"{host} 1073741824 1 - 0", True),
        (f"{host} {os.getpid()} 1 - 0", True),  # another process has the number now
        ("elsewhere 7 1 - 0", False),
        ("", False),  # it has just begun
    ]:
        (tmp_path / ".page.owner").write_text(owner + "\n" if owner else "")
        assert (refusal(prefix) == "") == free, owner


def test_the_owner_reads_as_the_programs_write_it():
    host, pid, start, job, restarts = module.me()
    assert module.may_run([host, pid, start, job, restarts]) and int(start) > 0


def test_two_reports_do_not_write_one_page(tmp_path):
    page = tmp_path / "pages" / "report.html"
    os.makedirs(page.parent)
    with run_lock(f"{page.parent}/.report.html.", "", ""):
        done = subprocess.run(
            [os.path.join(ROOT, "workshop"), "report", "run.jsonl", "-o", str(page)],
            capture_output=True, text=True, check=False, timeout=60,
        )
    said = f"workshop: another run, process {os.getpid()} on {socket.gethostname()}, is going to write {page}: choose "
    assert (done.returncode, done.stderr) == (2, said + "another file with -o\n") and not os.listdir(page.parent)


def test_two_gpu_reports_do_not_write_to_one_folder(tmp_path):
    with run_lock(f"{tmp_path}/.", "", ""):
        done = subprocess.run(
            [os.path.join(ROOT, "tools", "gpu_report"), "--backend", "cpu", "--out", str(tmp_path), "times"],
            capture_output=True, text=True, check=False, timeout=60,
        )
    assert done.returncode == 2 and done.stderr.endswith("choose another folder with --out\n"), done.stderr

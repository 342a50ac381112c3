# SPDX-License-Identifier: Apache-2.0
"""What tests/nodes/with_nodes promises: statuses, and that nothing is left of the nodes however it ends."""
from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess

import pytest
from conftest import ROOT
from support import LAUNCH, end_all, run, until

WITH_NODES = os.path.join(ROOT, "tests", "nodes", "with_nodes")
SPIN = 'echo $$ >"spin.$OMPI_COMM_WORLD_RANK"; sleep 600'  # a rank that does not end


@pytest.fixture(scope="module", autouse=True)
def nodes():
    status, output = run([WITH_NODES, "1", "1", "true"], 120)
    if status == 77:
        pytest.skip(output.strip())
    assert status == 0, output


def test_the_status_is_that_of_the_command():
    assert run([WITH_NODES, "2", "1", "sh", "-c", "exit 5"], 120)[0] == 5


def test_nothing_happens_to_the_machine_itself():
    run([WITH_NODES, "2", "1", "true"], 120)
    status, links = run(["ip", "-brief", "link"], 60)
    assert status == 0 and not re.findall("^(?:switch|port[0-9]|probe).*", links, re.M)


@pytest.mark.parametrize("name", ["HUP", "TERM", "KILL"])
def test_a_signal_ends_all(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKSHOP_BACKEND", "cpu")  # so that mpirun starts the ranks
    # All processes, on all nodes, inherit the lock, and have it until they end.
    lock = os.open("lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    command = [WITH_NODES, "2", "1", LAUNCH, "-n", "2", "-t", "120", "--", "sh", "-c", SPIN]
    started = subprocess.Popen(command, pass_fds=[lock], start_new_session=True, stdin=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    os.close(lock)
    try:
        until(lambda: all(read(tmp_path / f"spin.{rank}") for rank in range(2)), 120, "two ranks")
        assert not is_free("lock")
        started.send_signal(signal.Signals["SIG" + name])
        started.wait(60)
        until(lambda: is_free("lock"), 10, f"the end of all after {name}")
    finally:
        if started.poll() is None:
            end_all(started)


def read(path) -> str:
    return path.read_text() if path.exists() else ""


def is_free(path: str) -> bool:
    """Whether no process has the lock any more."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)

# SPDX-License-Identifier: Apache-2.0
"""The cluster that tests/slurm/with_cluster.py makes, and what the tests on it share."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "slurm"))
import jobs  # noqa: E402
import with_cluster  # noqa: E402

# ---- what the tests share ----


def test_fields_of_a_job():
    text = "JobId=7 JobName=ddp\n   JobState=FAILED Reason=None\n   DerivedExitCode=0:0 ExitCode=2:0\n   NodeList=\n"
    found = jobs.fields(text)
    assert (found["JobState"], found["ExitCode"], found["NodeList"]) == ("FAILED", "2:0", "")


def test_job_that_submit_names():
    assert jobs.job_in("Job 12, output in /tmp/12.out\nFollowing it\n") == "12"
    assert jobs.job_in("Job 12: hello on 4 ranks\n") == ""


def test_a_line_matches():
    assert jobs.matches("^b$", "a\nb\n") and not jobs.matches("^a.b$", "a\nb\n") and not jobs.matches("^b", "ab")


def test_until():
    assert jobs.until(lambda: True, 0)
    assert not jobs.until(lambda: False, 0.2)


class TestChecks:
    def test_what_is_not_as_expected_is_said_and_counted(self, capsys):
        checks = jobs.Checks()
        checks.expect("two", 2, 2)
        checks.expect_line("line", "^a", "b\na\n")
        assert checks.failures == 0 and capsys.readouterr().out == ""
        checks.expect("two", 3, 2)
        checks.expect_line("line", "^c", "b\na\n")
        assert checks.failures == 2
        assert capsys.readouterr().out == "two: '3', expected '2'\nline: nothing matches '^c' in\nb\na\n\n"

    def test_parts(self, capsys):
        checks, called = jobs.Checks(), []

        def first():
            called.append(1)

        def second():
            called.append(2)
            raise subprocess.TimeoutExpired("waits", 3)

        assert checks.run_parts([first, second], ["first"], "well") == 0 and called == [1]
        assert capsys.readouterr().out == "well\n"
        assert checks.run_parts([second, first], [], "well") == 1 and called == [1, 2, 1]
        assert "second: Command 'waits' timed out" in capsys.readouterr().out


@pytest.fixture(name="cluster")
def make_cluster(tmp_path, monkeypatch):
    """A cluster without Slurm, for what is found in files and processes."""
    monkeypatch.setenv("CLUSTER", str(tmp_path))
    return jobs.Cluster()


def test_processes_of_a_job_and_of_a_rank(cluster):
    def start(**variables):
        return subprocess.Popen(["sleep", "60"], env=dict(os.environ, **variables))

    conf = cluster.path("slurm.conf")
    started = [
        start(SLURM_CONF=conf, SLURM_JOB_ID="7", SLURM_PROCID="3"),
        start(SLURM_CONF=conf, SLURM_JOB_ID="7", SLURM_PROCID="31"),
        start(SLURM_CONF=conf, SLURM_JOB_ID="71", SLURM_PROCID="3"),
        start(SLURM_CONF=conf + ".other", SLURM_JOB_ID="7", SLURM_PROCID="3"),
    ]
    try:
        assert set(cluster.processes("7")) == {started[0].pid, started[1].pid}
        assert cluster.processes("7", rank=3) == [started[0].pid]
        assert cluster.processes("8") == []
        assert with_cluster.of_cluster(cluster.folder + "/other") == []
    finally:
        for process in started:
            process.kill()
            process.wait()
    cluster.nothing_left("7")
    assert cluster.failures == 0


def test_a_file_that_is_not_there_is_empty(cluster):
    assert cluster.read("7.out") == ""
    cluster.says("7", "anything")
    assert cluster.failures == 1


# ---- the cluster ----

HAS_SLURM = all(shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin") for tool in with_cluster.TOOLS)


def begin(seconds, command):
    words = [
        sys.executable,
        "-B",
        os.path.join(ROOT, "tests", "slurm", "with_cluster.py"),
        seconds,
        "sh",
        "-c",
        command,
    ]
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def folder_of(started):
    """The folder of the cluster, which its command prints first."""
    line = started.stdout.readline().strip()
    assert os.path.isdir(line), line + started.stdout.read()
    return line


def assert_taken_down(folder):
    assert jobs.until(lambda: not os.path.exists(folder) and not with_cluster.of_cluster(folder), 30)
    assert jobs.until(lambda: not os.path.exists(os.path.join(with_cluster.CGROUPS, os.path.basename(folder))), 30)


@pytest.mark.skipif(not HAS_SLURM, reason="Slurm is not installed")
class TestCluster:
    def test_two_nodes_and_the_status_of_the_command(self):
        started = begin("60", "echo $CLUSTER; srun --nodes=2 sh -c 'echo $SLURMD_NODENAME $SLURM_CONF'; exit 5")
        folder = folder_of(started)
        said, _ = started.communicate(timeout=90)
        assert sorted(said.splitlines()) == [f"node1 {folder}/slurm.conf", f"node2 {folder}/slurm.conf"]
        assert started.returncode == 5
        assert_taken_down(folder)

    @pytest.mark.parametrize(
        "number,seconds,status",
        [(signal.SIGTERM, "60", 143), (signal.SIGKILL, "60", -signal.SIGKILL), (None, "6", 124)],
    )
    def test_it_is_taken_down_with_its_jobs(self, number, seconds, status):
        started = begin(seconds, "sbatch -Q --output=/dev/null --wrap='sleep 600'; echo $CLUSTER; exec sleep 600")
        folder = folder_of(started)
        assert with_cluster.of_cluster(folder)
        if number:
            started.send_signal(number)
        started.communicate(timeout=90)
        assert started.returncode == status
        assert_taken_down(folder)


def test_without_slurm_it_is_skipped():
    words = [sys.executable, "-B", os.path.join(ROOT, "tests", "slurm", "with_cluster.py"), "9", "true"]
    hidden = dict(os.environ, PATH="/nowhere")
    if any(os.path.exists(os.path.join(folder, "munged")) for folder in ("/usr/sbin", "/sbin")):
        pytest.skip("Slurm's daemons are where they are looked for in any case")
    done = subprocess.run(words, env=hidden, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 77 and done.stdout.startswith("skipped: no munged here")

# SPDX-License-Identifier: Apache-2.0
"""What tools/launch promises: statuses, messages, and that nothing is left behind."""

import os
import shutil
import signal
import subprocess
import time

import pytest
from conftest import ROOT
from workshop import launch, processes

LAUNCH = os.path.join(ROOT, "tools", "launch")
RANK = "${RANK-${OMPI_COMM_WORLD_RANK-}}"
HERE = f'echo $$ >"spin.{RANK}"; '
SPIN = f'echo $$ >"spin.{RANK}"; trap "" TERM; while :; do sleep 0.1; done'  # a rank that does not end
MODES = [["--env"], pytest.param([], marks=pytest.mark.skipif(not shutil.which("mpirun"), reason="there is no mpirun"))]
HAS_MPIRUN = pytest.mark.skipif(not shutil.which("mpirun"), reason="there is no mpirun")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("WORKSHOP_TIMEOUT", "WORKSHOP_GRACE", "WORKSHOP_TERMINAL", "HWLOC_COMPONENTS", "WORKSHOP_JOB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(*words, **environment):
    return subprocess.run(
        [LAUNCH, *words],
        env=dict(os.environ, **environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


def begin(*words, **environment):
    """Starts it; what it prints goes to the file `said`."""
    with open("said", "w") as said:
        return subprocess.Popen(
            [LAUNCH, *words],
            env=dict(os.environ, **environment),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def spinning(folder):
    return [file for file in folder.glob("spin.*") if file.read_text().strip()]


def assert_nothing_left(folder):
    pids = [int(file.read_text()) for file in folder.glob("spin.*")]
    assert pids
    until(lambda: not any(processes.is_running(pid) for pid in pids), 30)  # mpirun takes its time


# ---- the command line ----


@pytest.mark.parametrize(
    "words",
    [
        "-n 2 -- /no/such/program",
        "-n 0 -- true",
        "-n x -- true",
        "-n 2",
        "-n 2 -t soon -- true",
        "--what",
        "-n ² -- true",
        "-n 2 --restarts -- true",
        "-n 2 --restarts often -- true",
        "-n 2 --shrink -- true",
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(words):
    done = run(*words.split())
    assert done.returncode == 2 and done.stdout.startswith("launch: ") and done.stdout.count("\n") == 1


def test_parse():
    job = launch.parse(["--env", "-n", "3", "-t", "9", "--", "true", "-n"])
    assert (job.ranks, job.seconds, job.env, job.command) == (3, 9, True, ["true", "-n"])
    assert (job.restarts, job.shrink) == (0, False)
    assert launch.parse(["-n", "1", "--", "true"]).seconds is None
    job = launch.parse(["-n", "2", "--restarts", "4", "--shrink", "--", "true"])
    assert (job.restarts, job.shrink) == (4, True)


def test_grace():
    assert [launch.grace({"WORKSHOP_GRACE": text}) for text in ("", "7", "0")] == [60, 7, 0]
    assert launch.grace({}) == 60
    done = run("-n", "2", "--", "true", WORKSHOP_GRACE="soon")
    assert (done.returncode, done.stdout) == (2, "launch: WORKSHOP_GRACE expects seconds, not 'soon'\n")


@pytest.mark.parametrize(
    "value,ranks,expected",
    [
        (None, 2, 60),
        ("7", 2, 7),
        ("0.5", 2, None),
        ("0", 2, None),
        ("soon", 2, None),
        ("7", 1, None),
        ("9999999", 2, None),
    ],
)
def test_deadline(value, ranks, expected):
    assert launch.deadline({} if value is None else {"WORKSHOP_TIMEOUT": value}, ranks) == expected


def test_another_mpi_is_named(folder):
    (folder / "mpirun").write_text("#!/bin/sh\necho HYDRA build details:\n")
    (folder / "mpirun").chmod(0o755)
    with pytest.raises(
        launch.Refused, match=r"need Open MPI's mpirun; .*/mpirun is of another MPI \(HYDRA build details:\)"
    ):
        launch.choose(launch.Job(2, None, False, ["true"]), {"PATH": str(folder)})
    with pytest.raises(launch.Refused, match="mpirun is missing"):
        launch.choose(launch.Job(2, None, False, ["true"]), {"PATH": "/nowhere"})


# ---- ranks, with mpirun and without ----


@pytest.mark.parametrize("mode", MODES)
class TestRanks:
    def test_success(self, mode):
        assert run(*mode, "-n", "2", "--", "true").returncode == 0

    def test_the_first_rank_that_fails_ends_the_others(self, mode):
        assert run(*mode, "-n", "2", "--", "bash", "-c", f"[[ {RANK} == 0 ]] || exit 77; sleep 60").returncode == 77

    def test_there_is_no_terminal(self, mode):
        done = run(*mode, "-n", "2", "--", "sh", "-c", 'echo "${WORKSHOP_TERMINAL-none}"')
        assert done.stdout == "none\nnone\n"

    @pytest.mark.skipif(not shutil.which("script"), reason="there is no script, which makes a terminal")
    def test_there_is_a_terminal(self, mode):
        command = f"'{LAUNCH}' {' '.join(mode)} -n 2 -- sh -c 'echo \"${{WORKSHOP_TERMINAL-none}}\"'"
        done = subprocess.run(
            ["script", "-qec", command, "/dev/null"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout.split() == ["1", "1"]

    def test_hwloc_looks_for_no_displays(self, mode):
        done = run(*mode, "-n", "2", "--", "printenv", "HWLOC_COMPONENTS")
        assert set(done.stdout.split()) == {"-gl,-opencl,-cuda,-nvml,-rsmi,-pci,-linuxio"}

    def test_time_is_over(self, mode, folder):
        done = run(*mode, "-n", "2", "-t", "3", "--", "bash", "-c", SPIN)
        assert done.returncode == 124 and done.stdout.count("launch: ended after 3 seconds\n") == 1
        assert_nothing_left(folder)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM])
    def test_a_signal_ends_all(self, mode, folder, number):
        started = begin(*mode, "-n", "2", "--", "bash", "-c", SPIN, WORKSHOP_GRACE="0")
        until(lambda: len(spinning(folder)) == 2)
        started.send_signal(number)
        assert started.wait(30) == 128 + number
        assert_nothing_left(folder)

    # ---- SIGTERM asks them to save their state ----

    def asked_to_end(self, mode, folder, script, *more, ranks=2, **environment):
        """SIGTERM to the launcher of ranks that run this script and then wait. Returns the launcher, as it ends."""
        command = f"{script}; {HERE} while :; do sleep 0.1; done"
        started = begin(*mode, "-n", str(ranks), *more, "--", "bash", "-c", command, **environment)
        until(lambda: len(spinning(folder)) == ranks)
        started.terminate()
        return started

    def test_sigterm_lets_the_ranks_save(self, mode, folder):
        """They need not end at the same time."""
        save = f'trap "sleep {RANK}; echo saved; exit 75" USR1 TERM'
        started = self.asked_to_end(mode, folder, save, "--restarts", "2")
        assert started.wait(30) == 75
        assert (folder / "said").read_text().split("\n").count("saved") == 2
        assert "launch:" not in (folder / "said").read_text()

    def test_sigterm_ends_ranks_that_save_nothing(self, mode, folder):
        began = time.monotonic()
        started = self.asked_to_end(mode, folder, ":", "--restarts", "2")
        assert started.wait(30) == 143 and time.monotonic() - began < 15
        assert "launch:" not in (folder / "said").read_text() and "mpirun" not in (folder / "said").read_text()
        assert_nothing_left(folder)

    @pytest.mark.parametrize("status", [0, 1])
    def test_the_status_of_ranks_that_end_otherwise_counts(self, mode, folder, status):
        started = self.asked_to_end(mode, folder, f'trap "exit {status}" USR1 TERM')
        assert started.wait(30) == status

    def test_a_second_sigterm_ends_all(self, mode, folder):
        started = self.asked_to_end(mode, folder, f'trap "touch saving.{RANK}" USR1; trap "touch saving.{RANK}" TERM')
        until(lambda: len(list(folder.glob("saving.*"))) == 2)
        assert started.poll() is None
        started.terminate()
        assert started.wait(30) == 143
        assert_nothing_left(folder)

    def test_ranks_that_take_too_long(self, mode, folder):
        started = self.asked_to_end(mode, folder, 'trap "" USR1 TERM', WORKSHOP_GRACE="1")
        assert started.wait(30) == 143
        assert "launch: the ranks have not ended, 1 s after SIGTERM\n" in (folder / "said").read_text()
        assert_nothing_left(folder)

    def test_sigterm_at_any_moment(self, mode, folder):
        """Also before the ranks have started."""
        for moment in (0.02, 0.1, 0.2, 0.4):
            started = begin(*mode, "-n", "2", "--", "sleep", "60")
            time.sleep(moment)
            started.terminate()
            assert started.wait(20) in (143, -signal.SIGTERM)

    def test_ranks_that_have_saved_end_no_others(self, mode, folder):
        """Nor do they hide a rank that fails."""
        save = f"sleep $((2 * {RANK})); touch done.{RANK}; exit 75"
        assert run(*mode, "-n", "2", "--", "bash", "-c", save).returncode == 75
        assert len(list(folder.glob("done.*"))) == 2
        assert run(*mode, "-n", "2", "--", "bash", "-c", f"(({RANK})) || exit 75; sleep 1; exit 3").returncode == 3
        assert run(*mode, "-n", "2", "--", "bash", "-c", f"(({RANK})) || exit 75; sleep 1").returncode == 75

    # ---- restarts ----

    def test_a_job_starts_again_if_a_rank_is_killed(self, mode, folder):
        """The first time, rank 1 is killed; the second time, all end well. Each start has a port or a folder of its
        own."""
        place = "echo ${MASTER_PORT-}${OMPI_MCA_btl_vader_backing_directory-} >>places"
        script = f"(({RANK} != 1)) || {{ {place}; test -e again || {{ touch again; kill -KILL $$; }}; exit 0; }}"
        script += "; test -e again || sleep 60"
        done = run(*mode, "-n", "3", "--restarts", "2", "--", "bash", "-c", script)
        assert done.stdout == "launch: rank 1 was ended by signal KILL; starting again (1 of 2)\n"
        assert done.returncode == 0
        assert len(set((folder / "places").read_text().split())) == 2

    def test_it_starts_again_only_so_often(self, mode):
        done = run(*mode, "-n", "2", "--restarts", "1", "--", "bash", "-c", f"(({RANK})) || kill -SEGV $$; sleep 60")
        assert done.stdout.splitlines() == [
            "launch: rank 0 was ended by signal SEGV; starting again (1 of 1)",
            "launch: rank 0 was ended by signal SEGV",
        ]
        assert done.returncode == 139

    def test_it_starts_again_on_fewer_ranks(self, mode):
        script = f'echo "{RANK}"; test "{RANK}" != 1 || kill -KILL $$; sleep 1'
        done = run(*mode, "-n", "2", "--restarts", "3", "--shrink", "--", "bash", "-c", script)
        assert "launch: rank 1 was ended by signal KILL; starting again on 1 rank(s) (1 of 3)\n" in done.stdout
        assert (done.returncode, done.stdout.count("starting again")) == (0, 1)

    def test_it_starts_again_if_the_ranks_were_stuck(self, mode):
        done = run(*mode, "-n", "2", "--restarts", "1", "--", "sh", "-c", "exit 86")
        assert done.stdout == "launch: the ranks were stuck (status 86); starting again (1 of 1)\n"
        assert done.returncode == 86

    @pytest.mark.parametrize("status", [0, 1, 2, 75, 77])
    def test_it_does_not_start_again_after_other_statuses(self, mode, status):
        done = run(*mode, "-n", "2", "--restarts", "1", "--", "sh", "-c", f"exit {status}")
        assert (done.returncode, done.stdout) == (status, "")

    def test_the_time_limit_is_for_all_starts(self, mode, folder):
        script = f"test -e again || {{ touch again; kill -KILL $$; }}; {SPIN}"
        done = run(*mode, "-n", "2", "-t", "3", "--restarts", "1", "--", "bash", "-c", script)
        assert done.returncode == 124 and done.stdout.count("starting again") == 1
        assert done.stdout.endswith("launch: ended after 3 seconds\n")
        assert_nothing_left(folder)

    def test_a_signal_that_was_passed_on_starts_nothing_again(self, mode, folder):
        script = f"{HERE} while :; do sleep 0.1; done"
        started = begin(*mode, "-n", "2", "--restarts", "1", "--", "bash", "-c", script)
        until(lambda: len(spinning(folder)) == 2)
        started.send_signal(signal.SIGUSR1)
        assert started.wait(30) == 128 + signal.SIGUSR1
        assert "starting again" not in (folder / "said").read_text()

    # ---- what else ends it ----

    def test_a_launcher_that_is_killed_leaves_no_rank(self, mode, folder):
        started = begin(*mode, "-n", "2", "-t", "60", "--", "bash", "-c", SPIN)
        until(lambda: len(spinning(folder)) == 2)
        started.kill()
        started.wait(60)
        assert_nothing_left(folder)

    def test_usr1_reaches_the_ranks(self, mode, folder):
        started = begin(
            *mode,
            "-n",
            "2",
            "--",
            "bash",
            "-c",
            f'trap "echo saved >got.{RANK}; exit 0" USR1; echo $$ >spin.{RANK}; ' "while :; do sleep 0.1; done",
        )
        until(lambda: len(spinning(folder)) == 2)
        started.send_signal(signal.SIGUSR1)
        assert started.wait(60) == 0
        assert sorted(file.name for file in folder.glob("got.*")) == ["got.0", "got.1"]

    def test_a_rank_that_is_killed(self, mode):
        done = run(*mode, "-n", "3", "--", "bash", "-c", f"(({RANK} != 1)) || kill -KILL $$; sleep 60")
        assert (done.returncode, done.stdout) == (137, "launch: rank 1 was ended by signal KILL\n")

    def test_a_rank_that_does_not_end(self, mode):
        done = run(*mode, "-n", "3", "--", "bash", "-c", f"(({RANK} != 1)) || kill -STOP $$", WORKSHOP_TIMEOUT="3")
        assert (done.returncode, done.stdout) == (86, "launch: rank 1 has not ended, 3 s after others\n")

    def test_output_that_cannot_be_written_is_a_failure(self, mode):
        if not os.path.exists("/dev/full"):
            pytest.skip("there is no /dev/full")
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [LAUNCH, *mode, "-n", "2", "--", "sh", "-c", "echo text"],
                stdout=full,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                timeout=60,
                check=False,
            )
        assert done.returncode != 0


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_JOBID": "1", "SLURM_JOB_ID": "1", "SLURM_NODELIST": "node17", "SLURM_TASKS_PER_NODE": "1"},
        {"SGE_ROOT": "/sge", "ARC": "lx", "PE_HOSTFILE": "/no/such", "JOB_ID": "7"},
        {"PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBID": "7", "PBS_NODEFILE": "/no/such"},
        {"OMPI_MCA_rmaps_base_mapping_policy": ""},
    ],
)
@HAS_MPIRUN
def test_variables_of_a_batch_system_lead_nowhere(variables):
    done = run("-n", "2", "--", "true", **variables)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_other_launchers_have_left_is_dropped(folder, monkeypatch):
    left = {"RANK": "0", "WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "1"}
    where_to_meet = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORKSHOP_JOB_TOKEN": "x"}  # of the user
    assert launch.own_environment({**left, **where_to_meet}) == {**where_to_meet, "PATH": os.defpath}
    assert run("-n", "1", "--", "sh", "-c", 'echo "${RANK-none}"', **left).stdout == "none\n"
    there = {"PATH": fake_mpirun(folder, "")["PATH"], "OPAL_PREFIX": "/opt/other"}
    assert "OPAL_PREFIX" not in launch.own_environment(there)
    (folder / "bin").symlink_to(folder / "fake")
    there["OPAL_PREFIX"] = str(folder)
    assert launch.own_environment(there)["OPAL_PREFIX"] == str(folder)


def test_space_for_what_the_ranks_share(folder, monkeypatch):
    def space(blocks, free, files, left):
        monkeypatch.setattr(
            os, "statvfs", lambda _: os.statvfs_result((4096, 4096, blocks, free, free, files, left, left, 0, 255))
        )
        return launch.has_space(str(folder), 2)

    assert space(100000, 100000, 1000, 1000)
    assert not space(1000, 1000, 1000, 1000)  # 4 MB
    assert not space(100000, 100000, 30, 4)
    assert space(0, 0, 0, 0)  # without limits
    assert not launch.has_space("/nowhere", 2)


def test_torchrun_variables():
    done = run(
        "--env",
        "-n",
        "3",
        "--",
        "bash",
        "-c",
        'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $((MASTER_PORT > 0))"',
    )
    assert sorted(done.stdout.splitlines()) == [f"{rank} 3 {rank} 3 127.0.0.1 1" for rank in range(3)]


def test_all_ranks_have_one_token():
    done = run("--env", "-n", "2", "--", "sh", "-c", 'echo "$WORKSHOP_JOB_TOKEN"')
    first, second = done.stdout.split()
    assert first == second and len(first) == 32
    assert run("--env", "-n", "1", "--", "printenv", "WORKSHOP_JOB_TOKEN", WORKSHOP_JOB_TOKEN="mine").stdout == "mine\n"


def test_sigterm_leaves_nothing_that_a_rank_has_started(folder):
    """Here, the ranks are no process groups of their own, which mpirun ends."""
    command = "sh -c 'echo $$ >spin.below; exec sleep 60'; true"
    started = begin("-n", "1", "--", "sh", "-c", command)
    until(lambda: spinning(folder))
    started.terminate()
    assert started.wait(30) == 143
    assert_nothing_left(folder)


def test_one_rank_runs_without_mpirun():
    assert run("-n", "1", "--", "sh", "-c", 'echo "${RANK-none} ${OMPI_COMM_WORLD_RANK-none}"').stdout == "none none\n"


# ---- a faked mpirun ----


def fake_mpirun(folder, text):
    path = folder / "fake"
    path.mkdir()
    (path / "mpirun").write_text(f"""#!/usr/bin/env bash
[[ $1 != --version ]] || {{ echo 'mpirun (Open MPI) 4.1.4'; exit; }}
{text}
""")
    (path / "mpirun").chmod(0o755)
    return {"PATH": f"{path}:{os.environ['PATH']}"}


def test_notes_of_mpirun(folder):
    dashes = 74 * "-"
    done = run("-n", "2", "--", "true", **fake_mpirun(folder, f"""
kill -PIPE $$  # does not end it
printf '[vm:%07d] [[30112,0],0] ORTE_ERROR_LOG: Out of resource\\n' $$ >&2
printf '%s\\n' 'one ra{dashes}' 'MPI_ABORT was invoked on rank 1' {dashes} 'nk speaks' {dashes} 'Something else' \\
  {dashes} >&2
"""))
    assert done.stdout == f"one rank speaks\n{dashes}\nSomething else\n{dashes}\n"


@pytest.mark.parametrize("status", [0, 3])
def test_an_mpirun_that_hangs_when_its_ranks_have_ended(folder, status):
    fake = fake_mpirun(
        folder,
        """
shift 5  # --oversubscribe --bind-to none -n 2
for rank in 0 1; do OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_LOCAL_SIZE=2 "$@" & done
wait
sleep 60
""",
    )
    began = time.monotonic()
    done = run("-n", "2", "--", "bash", "-c", f"sleep 0.5; echo here; exit {status}", WORKSHOP_TIMEOUT="2", **fake)
    assert (done.returncode, set(done.stdout.split())) == (status, {"here"}) and time.monotonic() - began < 30


# ---- the session's folder ----


@HAS_MPIRUN
def test_the_folder_for_shared_memory_is_removed(folder):
    run("-n", "2", "--", "bash", "-c", 'echo "$OMPI_MCA_btl_vader_backing_directory" >"shared.$$"; kill -KILL $$')
    shared = next(folder.glob("shared.*")).read_text().strip()
    assert shared and not os.path.exists(shared)


def test_only_abandoned_folders_are_removed(folder):
    abandoned, alive = folder / "workshop-launch.abandoned", launch.Session(str(folder))
    (abandoned / "below").mkdir(parents=True)
    (folder / "workshop-launch.link").symlink_to(folder)
    (folder / "other").mkdir()
    session = launch.Session(str(folder))
    assert not abandoned.exists() and (folder / "other").exists() and os.path.isdir(alive.path)
    session.remove()
    assert not os.path.exists(session.path)


def test_a_folder_may_be_removed_before_it_is_locked(folder, monkeypatch):
    """Another launcher that starts at this moment takes it for abandoned."""
    mkdir, made = os.mkdir, []

    def mkdir_and_another_start(path, *mode):
        mkdir(path, *mode)
        made.append(path)
        if len(made) == 1:
            launch.Session._remove_abandoned(str(folder))

    monkeypatch.setattr(os, "mkdir", mkdir_and_another_start)
    session = launch.Session(str(folder))
    assert made == [made[0], session.path] and [str(entry) for entry in folder.iterdir()] == [session.path]


def test_how_ranks_have_ended(folder):
    session = launch.Session(str(folder))
    assert session.first_failed() is None and not session.is_over(2)
    with open(os.path.join(session.path, "ended"), "w") as file:
        file.write("0 1\n0 0")  # the second is still being written
    assert not session.is_over(2)
    with open(os.path.join(session.path, "ended"), "a") as file:
        file.write("\n")
    assert session.is_over(2)
    with open(os.path.join(session.path, "failed"), "w") as file:
        file.write("77 1\n137 0\n")
    assert session.first_failed() == 77 and session.is_over(3)


def test_a_free_port():
    assert 10000 <= launch.free_port() < 30000

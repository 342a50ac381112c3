# SPDX-License-Identifier: Apache-2.0
"""What check_exercise says of programs, with scripts in their place, and compare_runs of the build
(WORKSHOP_BUILD_FOLDER)."""

import os
import subprocess
import time

import pytest
from conftest import ROOT
from workshop import check_exercise

COMPARE = os.path.join(
    os.environ.get("WORKSHOP_BUILD_FOLDER", os.path.join(ROOT, "build", "cpu")), "tools", "compare_runs"
)
pytestmark = pytest.mark.skipif(not os.path.exists(COMPARE), reason="compare_runs is not built")


class Exercise:
    def __init__(self, folder):
        self.folder = folder
        self.checks = folder / "run" / "check"
        self.checks.mkdir(parents=True)
        (folder / "x.cu").write_text(
            "  // TODO 02.1: Sum.\n  // END TODO 02.1\n  // TODO 02.2: More.\n  // END TODO 02.2\n"
        )
        self.program("solution", 1, ":")

    def program(self, name, value, does):
        """A program of one TODO, of which it records this value; then it `does` something."""
        probe = (
            '{"type":"probe","rank":0,"id":"02.1","name":"sum","step":0,"sequence":0,"shape":[2],"values":[%s,2],"l2":3,'
            '"sum":3}' % value
        )
        (self.folder / name).write_text(f"""#!/bin/bash
echo started >>"{self.folder}/{name}.starts"
while [[ $1 != --record ]]; do shift; done
run='{{"type":"run","chapter":"02_x","program":"x","world":1}}'
[[ "{does}" == 'never starts' ]] && {{ echo 'mpirun: no such node'; exit 1; }}
[[ "{does}" == 'ends early' ]] && {{ echo 'error: no such device'; printf '%s\\n' "$run" >"$2.rank0"; exit 2; }}
printf '%s\\n' "$run" '{probe}' >"$2.rank0"
{does}
printf '%s\\n' "$run" '{probe}' '{{"type":"end","status":"complete","steps":1,"seconds_per_step":1}}' >"$2"
""")
        (self.folder / name).chmod(0o755)

    def command(self, seconds=60):
        return [
            os.path.join(ROOT, "checker", "check_exercise"),
            "-n",
            "1",
            "-t",
            str(seconds),
            "--todos",
            f"{self.folder}/x.cu",
            "--sources",
            "/nowhere",
            "--compare",
            COMPARE,
            "--solution",
            f"{self.folder}/solution",
            "--mine",
            f"{self.folder}/mine",
        ]

    def judge(self, value=1, does=":", seconds=60):
        self.program("mine", value, does)
        done = subprocess.run(
            self.command(seconds),
            cwd=self.checks,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def starts_of_solution(self):
        return (self.folder / "solution.starts").read_text().count("started")


@pytest.fixture
def exercise(tmp_path):
    return Exercise(tmp_path)


def test_right(exercise):
    status, said = exercise.judge()
    assert (
        status == 0 and "right: TODO 02.1: tensors (1) agree" in said and "Not reached in this run: TODO 02.2" in said
    )
    assert (exercise.checks / "todos.txt").read_text() == "right 02.1\nunreached 02.2\n"
    assert (exercise.checks / "verdict.txt").read_text() == said


def test_wrong(exercise):
    status, said = exercise.judge(7)
    assert status == 1 and "TODO 02.1 (Sum.) is the first that differs" in said


def test_a_todo_in_a_kernel_is_told_with_its_text(exercise):
    """CUDA prints only the place."""
    (exercise.folder / "mine.h").write_text("// A kernel.\n  // TODO 02.2: More.\n  //   Of this.\n  todo(\"02.2\");\n")
    place = f"{exercise.folder}/mine.h:4"
    line = f"{place}: 02.2: block: [0,0,0], thread: [0,0,0] Assertion this TODO is not filled in yet failed."
    other_rank = line.replace("thread: [0,", "thread: [7,")
    status, said = exercise.judge(does=f"echo '{line}'; echo other; echo '{other_rank}'; exit 77")
    assert status == 77 and "other" in said
    assert f"Not filled in yet:\n  TODO 02.2: More.\n    Of this.\n  at {place}\n" in said
    assert "Assertion" not in said and said.count("TODO 02.2: More.") == 1


def test_a_bad_address_is_looked_for_with_a_host_that_waits(exercise):
    """A GPU tells of it at a later call."""
    status, said = exercise.judge(
        does="echo 'rank 0: f() failed at x.cu:'$((${CUDA_LAUNCH_BLOCKING-0} ? 2 : 4))': cudaErrorIllegalAddress'; exit 1"
    )
    assert status == 1 and "x.cu:2: cudaErrorIllegalAddress" in said and "x.cu:4" not in said
    assert (exercise.folder / "mine.starts").read_text().count("started") == 2


def test_a_schedule_that_refuses_to_wait_is_run_as_before(exercise):
    status, said = exercise.judge(
        does="[ ${CUDA_LAUNCH_BLOCKING-0} = 0 ] || { echo error: CUDA_LAUNCH_BLOCKING; exit 2; }\n"
        "echo 'rank 0: f() failed at x.cu:4: cudaErrorIllegalAddress'; exit 1"
    )
    assert status == 1 and "x.cu:4: cudaErrorIllegalAddress" in said and "CUDA_LAUNCH_BLOCKING" not in said
    assert (exercise.folder / "mine.starts").read_text().count("started") == 3


def test_the_solution_runs_once_as_long_as_it_is_the_same(exercise):
    exercise.judge()
    exercise.judge(7)
    assert exercise.starts_of_solution() == 1
    os.utime(exercise.folder / "solution", (time.time() - 3600,) * 2)
    exercise.judge()
    assert exercise.starts_of_solution() == 2


def test_a_record_that_is_kept_is_complete(exercise, tmp_path, monkeypatch):
    complete = []
    replace = os.replace

    def watched(source, target):
        if os.path.basename(target) == "seconds":
            with open(source, encoding="ascii") as file:
                complete.append(file.read().strip().isdigit() and not os.path.exists(target))
        replace(source, target)

    monkeypatch.chdir(exercise.checks)
    monkeypatch.setattr(os, "replace", watched)
    monkeypatch.setattr(check_exercise.signal, "signal", lambda *_: None)  # pytest has handlers of its own
    check = check_exercise.Check(exercise.command()[1:])
    kept = str(tmp_path / "records" / "x")
    assert check_exercise.keep_solution(check, check_exercise.Runner(), kept) is None
    assert complete == [True]


def test_a_solution_that_fails_is_no_verdict(exercise):
    exercise.program("solution", 1, "echo broken; exit 3")
    status, said = exercise.judge()
    assert status == 2 and said == "The solution itself failed.\nThe last lines of output:\nbroken\n"


def test_where_the_solution_fails_now_there_is_no_verdict(exercise, monkeypatch):
    exercise.program("solution", 1, "[[ ! $BROKEN ]] || { echo 'error: no such device'; exit 2; }")
    assert exercise.judge()[0] == 0
    status, said = exercise.judge(does="ends early")
    assert status == 1 and "is where your program ended with status 2" in said
    monkeypatch.setenv("BROKEN", "1")
    status, said = exercise.judge(does="ends early")
    assert status == 2 and said.startswith("The solution itself fails here") and "error: no such device" in said
    assert not (exercise.checks / "todos.txt").exists()
    assert exercise.judge(7)[0] == 1  # it came to the TODO: no need to ask the solution again


def test_where_the_machine_has_become_busy_a_program_gets_more_time(exercise, monkeypatch):
    exercise.program("solution", 1, "[[ ! $BUSY ]] || sleep 2.1")
    assert exercise.judge()[0] == 0
    monkeypatch.setenv("BUSY", "1")
    (exercise.folder / "mine.starts").unlink()
    hangs_once = f"[[ $(wc -l <'{exercise.folder}/mine.starts') -gt 1 ]] || sleep 60"
    assert exercise.judge(does=hangs_once)[0] == 0


def test_probes_are_on(exercise, monkeypatch):
    monkeypatch.setenv("WORKSHOP_PROBES", "0")
    assert exercise.judge(does='[[ $WORKSHOP_PROBES == 1 ]] || exit 1')[0] == 0


def test_a_program_that_does_not_start_is_no_verdict(exercise):
    exercise.judge()
    status, said = exercise.judge(does="never starts")
    assert status == 2 and said.startswith("The program did not start") and "mpirun: no such node" in said
    assert not (exercise.checks / "todos.txt").exists()


@pytest.mark.parametrize(
    "value,does,seconds,text",
    [
        (1, "exit 0", 60, "is where your program ended too early"),
        (7, "exit 3", 60, "TODO 02.1 (Sum.) is the first that differs"),
        (7, "exit 3", 60, "ended with status 3"),
        (1, "sleep 60", 3, "did not finish on 1 rank"),
        (1, "kill -SEGV $$", 60, "crashed on 1 rank: signal SEGV"),
    ],
)
def test_a_program_that_does_not_come_to_its_end(exercise, value, does, seconds, text):
    status, said = exercise.judge(value, does, seconds)
    assert status == 1 and text in said


def test_much_output_is_cut(exercise):
    _, said = exercise.judge(does="yes much to say | head -n 1000000; echo the end >&2; exit 1")
    assert "the end" in said and (exercise.checks / "mine.jsonl.out").stat().st_size < 400000


def test_two_at_a_time(exercise):
    exercise.program("mine", 1, "sleep 0.5")
    both = [
        subprocess.Popen(
            exercise.command(), cwd=exercise.checks, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate()[0] for process in both]
    assert all("right: TODO 02.1: tensors (1) agree" in text for text in said)
    assert sum("waiting for another check" in text for text in said) == 1


def test_a_signal_ends_the_program(exercise):
    exercise.program("mine", 1, f"echo $$ >{exercise.folder}/pid; exec sleep 60")
    process = subprocess.Popen(exercise.command(), cwd=exercise.checks, stdout=subprocess.DEVNULL)
    pid = exercise.folder / "pid"
    while not (pid.exists() and pid.read_text().strip()):
        time.sleep(0.05)
    process.terminate()
    assert process.wait(30) == 143
    assert (
        not os.path.exists(f"/proc/{pid.read_text().strip()}/cmdline")
        or "sleep" not in open(f"/proc/{pid.read_text().strip()}/cmdline").read()
    )


@pytest.mark.parametrize("backend,seconds,patience", [("cpu", 60, 10), ("cuda", 240, 40)])
def test_a_gpu_that_ranks_share_gets_more_time(monkeypatch, backend, seconds, patience):
    monkeypatch.setenv("WORKSHOP_BACKEND", backend)
    check = check_exercise.Check(["-n", "1"])
    assert (check.seconds, check.patience()) == (seconds, patience)


@pytest.mark.parametrize("seconds,patience", [(3, 1), (20, 6), (30, 10), (60, 10), (90, 15)])
def test_patience(seconds, patience):
    assert check_exercise.Check(["-n", "1", "-t", str(seconds)]).patience() == patience


def test_both_precisions_are_programs_of_their_own():
    check = check_exercise.Check(["--solution", "s", "--mine", "m", "--", "--precision", "bf16"])
    assert (check.solution, check.mine) == ("s_bf16", "m_bf16")


def test_bounded_output():
    printed = check_exercise.Bounded()
    for i in range(1000):
        printed.add(b"%04d" % i * 250)
    assert printed.all().startswith(b"0000") and printed.all().endswith(b"0999") and len(printed.all()) == 300000

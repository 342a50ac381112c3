# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_report: what can be tried without a GPU."""

import glob
import json
import os
import subprocess
import tarfile

import pytest
from conftest import ROOT
from workshop import gpu_report
from workshop.gpu_report import Report
from workshop.processes import is_running


@pytest.fixture
def report(tmp_path):
    made = Report("cpu", str(tmp_path / "out"), minutes=1)
    made.begin("part")
    return made


def said(*words):
    done = subprocess.run([os.path.join(ROOT, "tools", "gpu_report"), *words], capture_output=True, text=True,
                          check=False, env={"PATH": "/usr/bin:/bin"})
    return done.returncode, done.stdout + done.stderr


def test_every_program_is_run():
    run = {program for _, program, _ in gpu_report.PROGRAMS}
    for path in sorted(glob.glob(os.path.join(ROOT, "solutions", "[0-9]*", "*.cu"))):
        with open(path, encoding="utf-8") as file:
            if "int main(" in file.read():
                program = os.path.relpath(path, os.path.join(ROOT, "solutions"))[:-3]
                assert program in run | {"07_3d/plan"}, program  # plan uses no device


def test_only_trainings_end_after_some_steps():
    assert gpu_report.options_of("00_collectives/hello", "", 6) == ""
    assert gpu_report.options_of("02_ddp/ddp", "--lr 1", 6) == "--lr 1 --max-steps 6"


def test_bad_words_are_refused_in_one_line():
    for words, why in [
        (["parts"], "there is no 'parts'"),
        (["--minutes", "soon"], "--minutes expects a number"),
        (["--out"], "--out expects a value"),
        (["--backend", "opencl"], "--backend is 'opencl'"),
    ]:
        status, output = said(*words)
        assert status == 2 and output.count("\n") == 1 and why in output


def test_a_machine_without_a_gpu_is_told():
    assert said() == (2, "gpu_report: nvidia-smi shows no GPU; --backend cpu tries the report without one\n")


def test_each_command_has_its_status_and_its_telling_line(report):
    report.run("fine", ["sh", "-c", "echo 12 tokens/s; echo bye"], 10)
    report.run("wrong", ["sh", "-c", "echo oh; exit 3"], 10)
    assert [(r["name"], r["status"], r["said"]) for r in report.results] == [
        ("fine", 0, "12 tokens/s"), ("wrong", 3, "oh"),
    ]


def test_what_hangs_is_ended_with_all_that_it_started(report, tmp_path):
    pid = tmp_path / "pid"
    report.run("hangs", ["sh", "-c", f"sleep 1000 & echo $! > {pid}; wait"], 5.01)
    assert report.results[0]["status"] == gpu_report.TOO_LONG
    assert not is_running(int(pid.read_text()))


def test_a_command_for_which_no_time_is_left_is_not_run(report):
    report.minutes = 0
    report.begin("late")
    report.run("late", ["false"], 10)
    assert report.results[0]["status"] is None
    assert report.finish() == 0


def test_finish_writes_the_table_the_results_and_the_logs(report):
    report.run("fine | good", ["echo", "5 tokens/s"], 10)
    report.run("wrong", ["false"], 10)
    assert report.finish() == 1
    table = open(os.path.join(report.out, "table.md"), encoding="utf-8").read()
    assert "| fine | good | passed: 5 tokens/s |" in table and "| wrong | status 1: " in table
    lines = open(os.path.join(report.out, "results.jsonl"), encoding="utf-8").read().splitlines()
    assert [json.loads(line)["status"] for line in lines] == [0, 1]
    with tarfile.open(os.path.join(report.out, "logs.tgz")) as logs:
        assert "logs/wrong.txt" in logs.getnames()


def test_kernels_are_added_up(report):
    def line(number, kernel, metric, unit, value):
        cells = [number, "7", "gpt", "host", kernel, "1", "17", "(256, 1, 1)", "(64, 1, 1)", "0", "9.0", "Command line"]
        return ",".join(f'"{cell}"' for cell in [*cells, metric, unit, value])

    lines = []
    for number, (time, size) in enumerate([("1,000", "3,000,000"), ("3,000", "5,000,000")]):
        lines += [
            line(str(number), "norm(float *, int)", "gpu__time_duration.sum", "ns", time),
            line(str(number), "norm(float *, int)", "dram__bytes.sum", "byte", size),
        ]
    report.kernels("all kernels", "\n".join(lines))
    written = open(os.path.join(report.out, "kernels.md"), encoding="utf-8").read()
    assert "| norm | 2 | 0.004 | 0.01 | 2000 |" in written


def test_the_text_has_as_many_words_as_it_should(report):
    folder = report.text_of_many_words()
    with open(os.path.join(folder, "train.txt"), encoding="ascii") as file:
        words = file.read().split()
    assert len(set(words)) == 50255 and 0.05 < words.count("w0") / len(words) < 0.12

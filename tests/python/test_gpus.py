# SPDX-License-Identifier: Apache-2.0
"""What ./workshop does on a machine with GPUs. The machine is faked: test gives tests slots of GPUs, check says
what only the cpu backend shows, and bench hands MPI no device memory."""

import json
import os
import re
import shutil
import subprocess

import pytest
from conftest import ROOT

ON_GPUS = os.path.join(ROOT, "tests", "on_gpus")


def program(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


class Machine:
    """A clone in which everything is built already, on a machine whose GPUs have so much memory free."""

    def __init__(self, folder):
        self.folder = folder
        self.cmake = shutil.which("cmake")  # the real one
        for name in ("tools/python", "checker/mistakes"):
            shutil.copytree(os.path.join(ROOT, name), folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("workshop", "CMakeLists.txt"):
            shutil.copy(os.path.join(ROOT, name), folder)
        program(folder / "bin/nvcc")
        program(folder / "bin/ninja", "echo no work to do")
        program(folder / "bin/cmake", '[ "$1" != --version ] || echo cmake version 3.25.1')
        program(folder / "bin/nvidia-smi", f"echo \"$*\" >>'{folder}/asked'; cat '{folder}/free'")
        program(folder / "tools/launch", f"echo \"$* probes=${{WORKSHOP_PROBES-all}}\" >>'{folder}/launched'")
        for backend, todo in (("cpu", "02.1"), ("cuda", "02.2")):
            self._add_build(folder / "build" / backend, todo)
        self.tests = folder / "build/cuda/CTestTestfile.cmake"
        self.set_free(81000)

    @staticmethod
    def _add_build(build, todo):
        """A build folder whose only check finds that this TODO is right."""
        program(build / "tools/bench_report")
        program(build / "verdict", f"echo right {todo} >todos.txt; echo Right. >verdict.txt")
        (build / "checks").mkdir()
        (build / "checks/02_ddp").write_text(f"two\tddp\t2\t{build}/verdict\t--\n")
        for name in ("build.ninja", "CTestTestfile.cmake"):
            (build / name).touch()

    def set_free(self, *mib):
        (self.folder / "free").write_text("".join(f"{one}\n" for one in mib))

    def add_test(self, name, ranks, command):
        """A test of so many ranks, as workshop_test() adds it."""
        with open(self.tests, "a") as file:
            file.write(
                f'add_test({name} "{ON_GPUS}" sh -c [=[cd "{self.folder}" && {command}]=])\n'
                f'set_tests_properties({name} PROPERTIES RESOURCE_GROUPS "{ranks},gpus:1")\n'
            )

    def run(self, *words, stderr=subprocess.DEVNULL, **environment):
        return subprocess.run(
            words,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            timeout=120,
            check=False,
            env=dict(
                os.environ, PATH=f"{self.folder}/bin:{os.environ['PATH']}", WORKSHOP_BACKEND="cuda", **environment
            ),
        )

    def workshop(self, *words, **environment):
        return self.run("./workshop", *words, **environment)

    def gpus_of(self, test, **environment):
        """The GPUs that a test sees, which ./workshop test runs."""
        self.workshop("test", "-R", f"^{test}$", **environment)
        return self.last_line("gpus")

    def slots(self):
        """Of each GPU, as CTest has been told."""
        spec = json.loads((self.folder / "build/cuda/gpus.json").read_text())
        return [gpu["slots"] for gpu in spec["local"][0]["gpus"]]

    def last_line(self, file):
        return (self.folder / file).read_text().splitlines()[-1]


@pytest.fixture(name="machine")
def make_machine(tmp_path, monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "WORKSHOP_BUILD", "WORKSHOP_PREBUILT"):
        monkeypatch.delenv(name, raising=False)
    return Machine(tmp_path / "machine")


# ---- test ----


@pytest.fixture(name="spreading")
def add_tests(machine):
    """The machine with tests that tell which GPUs they see, and some that must not run at the same time."""
    show = 'echo "${CUDA_VISIBLE_DEVICES-all}" >>gpus'
    machine.add_test("one", 1, show)
    machine.add_test("four", 4, show)
    for copy in (1, 2, 3):
        machine.add_test(f"eight{copy}", 8, "mkdir alone && sleep 0.3 && rmdir alone")
    return machine


def test_slots_by_memory(spreading):
    """80 GB have room for more ranks than may take turns. A GPU that does not say how much is free gets its part of the
    largest test."""
    spreading.set_free("81000", "7000", "[N/A]")
    spreading.workshop("test", "-R", "^one$")
    assert spreading.slots() == [8, 4, 3]


def test_a_small_gpu_alone_has_room_for_the_largest_test(spreading):
    spreading.set_free(4000)
    assert (spreading.gpus_of("four"), spreading.slots()) == ("0", [8])


def test_ranks_are_spread_over_the_gpus(spreading):
    spreading.set_free(81000, 81000)
    assert spreading.gpus_of("four") == "0,1"
    assert spreading.gpus_of("one") == "0"


def test_gpus_that_the_user_names(spreading):
    spreading.set_free(81000, 81000)
    assert spreading.gpus_of("four", CUDA_VISIBLE_DEVICES="5,3") == "5,3"
    assert spreading.last_line("asked").split()[0] == "--id=5,3"


def test_ctest_alone_shows_all_gpus(spreading):
    spreading.run("ctest", "--test-dir", "build/cuda", "-R", "^four$")
    assert spreading.last_line("gpus") == "all"


def test_tests_that_have_no_room_wait(spreading):
    done = spreading.workshop("test", "-R", "^eight", "-j", "8")
    assert done.returncode == 0 and "100% tests passed, 0 tests failed out of 3" in done.stdout


# ---- slots_test.cmake, which looks for tests that cannot be spread ----


def slots_test(machine):
    return machine.run(
        machine.cmake,
        "-D",
        f"BUILD={machine.folder}/build/cuda",
        "-P",
        os.path.join(ROOT, "tests", "tools", "slots_test.cmake"),
        stderr=subprocess.STDOUT,
    )


def test_tests_as_they_should_be(spreading):
    done = slots_test(spreading)
    assert (done.returncode, done.stdout) == (0, "all 5 tests can be spread over GPUs\n")


def test_tests_that_lack_something_are_named(spreading):
    with open(spreading.tests, "a") as file:
        file.write(
            f'add_test(bare true)\nadd_test(none "{ON_GPUS}" true)\n'
            f'add_test(few "{ON_GPUS}" launch -n 2 -- launch -n 3)\n'
            'set_tests_properties(few PROPERTIES RESOURCE_GROUPS "2,gpus:1")\n'
        )
    done = slots_test(spreading)
    assert done.returncode != 0
    assert re.findall("^(?:bare|none|few): .*", done.stdout, re.M) == [
        "bare: its command does not begin with tests/on_gpus",
        "few: slots of GPUs for 2 ranks; it starts 3",
        "bare: no RESOURCE_GROUPS",
        "none: no RESOURCE_GROUPS",
    ]


# ---- check ----


def verdicts(done):
    return re.findall("^(right .*|Not checked|And on the cpu backend)", done.stdout, re.M)


def test_check_without_what_the_cpu_backend_needs(machine):
    done = machine.workshop("check", "02", CXX="nowhere")
    assert (done.returncode, verdicts(done)) == (0, ["right 02.2", "Not checked"])


def test_check(machine):
    done = machine.workshop("check", "02")
    assert (done.returncode, verdicts(done)) == (0, ["right 02.2", "And on the cpu backend", "right 02.1"])


def test_check_fails_if_only_the_cpu_backend_shows_a_mistake(machine):
    with open(machine.folder / "build/cpu/verdict", "a") as file:
        file.write("exit 1\n")
    done = machine.workshop("check", "02")
    assert (done.returncode, verdicts(done)[:2]) == (1, ["right 02.2", "And on the cpu backend"])


# ---- bench, and jobs ----


def test_bench_hands_mpi_no_device_memory(machine):
    """What measures MPI's all-reduce is not started."""
    machine.set_free(*[81000] * 4)
    machine.workshop("bench")
    launched = (machine.folder / "launched").read_text()
    assert launched.count("bandwidth --op all_reduce") == 1 and "part all_reduce" not in launched


@pytest.mark.parametrize("gpus,ranks", [(1, {"1"}), (2, {"1", "2"}), (4, {"1", "2", "4"})])
def test_bench_does_not_time_ranks_that_share_a_gpu(machine, gpus, ranks):
    machine.set_free(*[81000] * gpus)
    done = machine.workshop("bench")
    assert set(re.findall("^-n ([0-9]+)", (machine.folder / "launched").read_text(), re.M)) == ranks
    assert ("Left out" in done.stdout) == (gpus < 4)


def participants_files():
    """What participants read and run: pages, chapters, scripts of jobs and tools."""
    tops = [
        "README.md",
        "workshop",
        "solutions",
        "docs",
        "slurm",
        "tools",
        *(name for name in os.listdir(ROOT) if re.match("[0-9]", name)),
    ]
    for top in tops:
        if os.path.isfile(os.path.join(ROOT, top)):
            yield os.path.join(ROOT, top)
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            yield from (os.path.join(folder, name) for name in names if not name.endswith(".pyc"))


def test_gpus_per_task_is_named_in_warnings_alone():
    """With GPUs of their own, ranks do not see each other's: NVIDIA/nccl#1066."""
    named = []
    for file in participants_files():
        with open(file, encoding="utf-8", errors="replace") as text:
            named += [
                f"{file}: {line.strip()}"
                for line in text
                if "--gpus-per-task" in line and not re.search("not (use )?`?--gpus-per-task", line, re.I)
            ]
    assert named == []


def test_what_is_timed_records_no_probes(machine):
    machine.set_free(*[81000] * 4)
    machine.workshop("bench")
    machine.workshop("scaling", "02", "--solution", "--ranks", "1,2")
    launched = (machine.folder / "launched").read_text().splitlines()
    recorded = [line for line in launched if " --record " in line]
    assert len(recorded) > 10 and all(line.endswith(" probes=0") for line in recorded)
    assert sum("02_ddp/ddp --log-every 0" in line for line in recorded) == 2


def test_bench_compares_with_torch_on_the_same_gpu(machine):
    program(machine.folder / "bin/torch_python")
    program(machine.folder / "tools/gpu_report", f"echo \"$*\" >'{machine.folder}/compared'")
    machine.workshop("bench", "--torch", str(machine.folder / "bin/torch_python"))
    words = (machine.folder / "compared").read_text().split()
    assert words[:2] == ["--built", "--python"] and words[-1] == "times"


# ---- doctor ----


def test_doctor_warns_of_what_makes_tests_fail(machine):
    def warnings(driver, nvcc, **environment):
        program(machine.folder / "bin/nvidia-smi", f"echo '| Driver Version: 550.54.14  CUDA Version: {driver} |'")
        program(machine.folder / "bin/nvcc", f"echo 'Cuda compilation tools, release {nvcc}, V{nvcc}.88'")
        return re.findall("^warning +(.*)", machine.workshop("doctor", **environment).stdout, re.M)

    assert warnings("13.0", "13.0") == warnings("13.0", "12.4") == warnings("12.2", "12.4") == []
    assert warnings("12.4", "13.0") == [
        "the driver runs CUDA 12, and nvcc builds for CUDA 13: update the driver"
    ]
    for name in ("NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION"):
        assert warnings("13.0", "13.0", **{name: "1"}) == [f"{name}=1 changes how cuBLAS rounds: tests may fail"]

# SPDX-License-Identifier: Apache-2.0
"""The verbs about machines and jobs: setup, doctor, test, submit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from typing import Callable

from . import chapters, machine
from .context import Context, Words, is_number, require, targets_of
from .errors import Failed, Refused
from .verbs_learn import Wanted, build_checks
from .verbs_measure import blas_in_use

# ---- setup ---------------------------------------------------------------------------------------------------------


def setup(context: Context, words: list[str]) -> int:
    builder, targets = context.builder, ["programs", "make_exercises", "compare_runs", "summarize_runs"]
    for word in words:
        if word == "-y":
            builder.yes = True
        elif word == "--with-slurm":
            builder.with_slurm = True
        elif word == "--with-fuzz":
            builder.with_fuzz = True
        elif word == "--packages":
            targets = []
        elif word == "--prebuilt":
            require(
                context.folder == f"build/{context.backend}",
                f"other clones look in build/{context.backend}: --prebuilt is not for WORKSHOP_BUILD",
            )
            targets = ["programs", "prebuilt"]
            require("--packages" not in words, "--packages builds nothing, and --prebuilt does")
        else:
            raise Refused(f"setup knows -y, --with-slurm, --with-fuzz, --packages and --prebuilt, not '{word}'")
    builder.install_missing()
    if not targets:
        print("All packages are installed; nothing was built")
        return 0
    context.build(*targets)
    if "prebuilt" in targets:
        print(f"Prebuilt: clones with WORKSHOP_PREBUILT={os.getcwd()} build no more than their own programs")
    print("Ready: './workshop demo' shows what it does, './workshop list' what there is to do")
    return 0


# ---- doctor --------------------------------------------------------------------------------------------------------


def warn_of_old_driver(show: Callable[[str, str], None], of_driver: str, of_nvcc: str) -> None:
    """A driver runs programs of its own major version of CUDA and of older ones
    (https://docs.nvidia.com/deploy/cuda-compatibility)."""
    runs = re.search(r"CUDA Version: *([0-9]+)", of_driver)
    builds = re.search(r"release ([0-9]+)", of_nvcc)
    if runs and builds and int(runs[1]) < int(builds[1]):
        show("warning", f"the driver runs CUDA {runs[1]}, and nvcc builds for CUDA {builds[1]}: update the driver")


def doctor(context: Context, words: list[str]) -> int:
    if words[:1] == ["--cluster"]:
        return doctor_of_cluster(context, words[1:])
    require(not words, f"doctor takes no arguments but --cluster, not '{(words or [''])[0]}'")

    def show(name: str, text: str) -> None:
        print(f"{name:<10} {(text.strip().splitlines() or ['not here'])[0]}")

    show("backend", f"{context.backend} (in {context.folder})")
    show("cores", str(machine.cores()))
    show("CMake", machine.said("cmake", "--version"))
    show("compiler", machine.said(machine.compiler(), "--version"))
    show("Ninja", machine.said("ninja", "--version"))
    show("Python", f"{sys.version.split()[0]} ({sys.executable})")
    show("MPI", machine.said("mpirun", "--version"))
    show("GPU", machine.said("nvidia-smi", "-L"))
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/cuda/bin"
    release = re.search(".*release.*", machine.said("nvcc", "--version", env=dict(os.environ, PATH=path)))
    show("nvcc", release[0] if release else "")
    warn_of_old_driver(show, machine.said("nvidia-smi"), release[0] if release else "")
    for name in ("NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION"):
        if os.environ.get(name):
            show("warning", f"{name}={os.environ[name]} changes how cuBLAS rounds: tests may fail")
    show("Slurm", machine.said("sinfo", "--version"))
    show("libFuzzer", machine.said("clang++", "--version") if machine.has_libfuzzer() else "")
    if context.backend == "cpu" and os.path.exists(context.path("build.ninja")):
        blas_in_use(context, f"{'BLAS':<10} ")
    lack = machine.missing(context.backend)
    if lack:
        print("missing:", *lack, sep="\n")
    return int(bool(lack))


def doctor_of_cluster(context: Context, words: list[str]) -> int:
    """The job prints its verdict in lines of its own."""
    rest, nodes, gpus = Words(words), "2", ""
    while rest:
        word = rest.next()
        if word == "--nodes":
            nodes = rest.next("nothing")
        elif word == "--gpus":
            gpus = rest.next("nothing")
        else:
            raise Refused(f"doctor --cluster knows --nodes and --gpus, not '{word}'")
    size = job_size(context, nodes, gpus)
    context.build("solution_00_collectives_hello", "solution_00_collectives_bandwidth")
    return submit_job(True, [*size, "slurm/doctor.sbatch"])


# ---- test ----------------------------------------------------------------------------------------------------------

# What a rank takes of a GPU's memory: CUDA's context, NCCL's and cuBLAS's buffers. And how many ranks may take turns on
# a GPU: with more, those that wait for each other miss their deadlines. No test starts more than that.
MIB_PER_RANK, MOST_RANKS = 1500, 8


def gpu_slots(free_mib: list[str]) -> dict:
    """The GPUs and their slots, one for each rank that has room, as ctest's --resource-spec-file wants them. All
    together have enough for the largest test, alone."""
    least = -(-MOST_RANKS // len(free_mib))
    gpus = []
    for number, mib in enumerate(free_mib):
        slots = int(mib) // MIB_PER_RANK if mib.isdigit() else 0  # MIG devices do not say
        gpus.append({"id": str(number), "slots": max(min(slots, MOST_RANKS), least)})
    return {"version": {"major": 1, "minor": 0}, "local": [{"gpus": gpus}]}


def slots_file(folder: str) -> str:
    """Writes the slots of the visible GPUs to a file for ctest's --resource-spec-file; returns its path."""
    free = machine.free_mib()
    require(free, "nvidia-smi shows no GPU")
    spec = os.path.abspath(os.path.join(folder, "gpus.json"))
    with open(spec, "w", encoding="utf-8") as file:
        json.dump(gpu_slots(free), file)
    return spec


def test(context: Context, words: list[str]) -> int:
    which, target = ["-LE", "^(soak|filling)$"], "all"
    if words[:1] == ["--soak"]:
        which, words = ["-L", "^soak$"], words[1:]
    elif words[:1] == ["--fillings"]:
        which, target, words = ["-L", "^filling$"], "fillings", words[1:]
    require(
        not os.environ.get("WORKSHOP_PREBUILT"),
        "the tests are those of the clone that has built what WORKSHOP_PREBUILT names",
    )
    context.build(target, tests=True)
    # More tests at a time than there are cores, because many of them wait for a deadline. On GPUs, as many as have
    # room.
    command = ["ctest", "--test-dir", context.folder, "-j", str(2 * context.builder.jobs + 1)]
    if context.backend == "cuda":
        command += ["--resource-spec-file", slots_file(context.folder)]
    return subprocess.run([*command, "--output-on-failure", *which, *words], check=False).returncode


# ---- submit --------------------------------------------------------------------------------------------------------


def job_size(context: Context, nodes: str, gpus: str) -> list[str]:
    """sbatch's options. Whole nodes, unless told otherwise; what is not given is the script's."""
    require(not nodes or is_number(nodes), f"--nodes expects a number of nodes, not '{nodes}'")
    require(not gpus or is_number(gpus), f"--gpus expects a number of GPUs per node, not '{gpus}'")
    require(machine.has("sbatch"), "sbatch is missing: jobs are submitted where Slurm is")
    size = []
    if nodes:
        size.append(f"--nodes={nodes}")
        gpus = gpus or os.environ.get("WORKSHOP_GPUS_PER_NODE", "")
    if gpus:
        size.append(f"--ntasks-per-node={gpus}")
        if context.backend == "cuda":
            size.append(f"--gpus-per-node={gpus}")
    return size


def submit_job(follow: bool, words: list[str]) -> int:
    """Calls sbatch with these words; with `follow`, shows what the job prints and ends as it does."""
    with subprocess.Popen(
        ["sbatch", "--parsable", *(["--wait"] if follow else []), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as waiter:
        # sbatch prints the job's id at once and, with --wait, ends when the job does, with its status.
        assert waiter.stdout
        job = waiter.stdout.readline().strip().partition(";")[0]  # the rest is the cluster
        if not job:
            return waiter.wait() or 1
        output = (re.search(r"^ *StdOut=(.*)$", machine.said("scontrol", "show", "job", job), re.M) or ["", ""])[1]
        print(f"Job {job}, output in {output}", flush=True)
        if follow:
            print(f"Following it; Ctrl-C leaves it running, 'scancel {job}' ends it", flush=True)
            done = threading.Event()
            follower = threading.Thread(target=show_file, args=(output, done), daemon=True)
            follower.start()
            try:
                status = waiter.wait()
            except KeyboardInterrupt:
                waiter.kill()
                return 130
            done.set()
            follower.join(10)
            return status
        return waiter.wait()


def show_file(path: str, done: threading.Event) -> None:
    """Prints a file as it grows, until `done` and nothing more comes. It may not be there yet."""
    at, ends_at = 0, None
    while True:
        try:
            with open(path, "rb") as file:
                file.seek(at)
                data = file.read()
        except OSError:
            data = b""
        if data:
            at += len(data)
            sys.stdout.write(data.decode("utf-8", "replace"))
            sys.stdout.flush()
        elif done.is_set():
            ends_at = ends_at or time.monotonic() + 1  # another node's last lines may take a moment
            if time.monotonic() > ends_at:
                return
        time.sleep(0.3)


def submit(context: Context, words: list[str]) -> int:
    rest = Words(words)
    asked, program, nodes, gpus = rest.next(), [], "", ""
    solution, follow, is_check, report, options = [], False, False, [], []
    while rest:
        word = rest.next()
        if word == "--nodes":
            nodes = rest.next("nothing")
        elif word == "--gpus":
            gpus = rest.next("nothing")
        elif word == "--solution":
            solution = [word]
        elif word == "--wait":
            follow = True
        elif word == "--check":
            is_check = True
        elif word == "--report":
            report = [word]
        elif word == "--":
            options = rest.rest()
        elif word.startswith("-"):
            raise Refused(
                "submit knows --nodes, --gpus, --solution, --check, --report, --wait and -- before the program's own "
                f"options, not '{word}'"
            )
        else:
            program = [word]
    if is_check:
        require(
            not nodes and not solution and not report,
            "submit --check takes --gpus, --wait and -- before options of check: it runs on one node",
        )
        wanted = Wanted([asked, *program, *options])
        size = job_size(context, "1", gpus)
        build_checks(context, wanted)
        return submit_job(follow, [*size, "slurm/check.sbatch", asked, *program, *options])
    chapter = chapters.choose(asked)
    name = chapter.program(program[0] if program else chapter.programs[0])
    size = job_size(context, nodes, gpus)
    context.build(*targets_of(chapter, name, bool(solution), options), *(["report"] if report else []))
    return submit_job(follow, [*size, f"slurm/{chapter.name}.sbatch", name, *solution, *report, *options])


def settings_of_site() -> dict[str, str]:
    """The environment that slurm/site.sh sets up for jobs."""
    done = subprocess.run(
        ["bash", "-c", "source slurm/site.sh >&2 && exec env -0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise Failed(done.returncode)
    entries = done.stdout.decode("utf-8", "surrogateescape").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)

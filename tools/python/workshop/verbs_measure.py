# SPDX-License-Identifier: Apache-2.0
"""The verbs that run programs and show what came of it: demo, bench, scaling, report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext

from . import chapters, machine
from .context import (
    LAUNCH,
    Context,
    Words,
    default_ranks,
    in_slurm_job,
    output_of,
    parse_ranks,
    require,
    run,
    targets_of,
)
from .errors import Failed, Refused
from .run_lock import run_lock


class Scratch(tempfile.TemporaryDirectory):
    """A folder for the files of one command: commands that run at the same time must not share names."""

    def __init__(self, parent: str, name: str):
        os.makedirs(parent, exist_ok=True)
        super().__init__(prefix=name + ".", dir=parent)


# ---- demo ----------------------------------------------------------------------------------------------------------

# One global batch of 32 samples, in the same order: every run makes the same steps.
DEMO = """
01_single_gpu mlp 1 --batch-size 32
02_ddp ddp 2 --batch-size 16
02_ddp ddp 4 --batch-size 8
02_ddp ddp_overlap 2 --batch-size 16
02_ddp ddp_overlap 4 --batch-size 8
03_model_parallel model_parallel 2 --batch-size 32
04_pipeline pipeline 2 --batch-size 32 --schedule gpipe
04_pipeline pipeline 2 --batch-size 32 --schedule 1f1b
05_tensor_parallel tensor_parallel 2 --batch-size 32
05_tensor_parallel tensor_parallel_gather 2 --batch-size 32
06_fsdp zero 2 --batch-size 16 --stage 1
06_fsdp zero 2 --batch-size 16 --stage 2
06_fsdp zero 2 --batch-size 16 --stage 3
06_fsdp fsdp 4 --batch-size 8
07_3d train_3d 4 --batch-size 16 --dp 2 --pp 2
07_3d train_3d 4 --batch-size 16 --dp 2 --tp 2
"""


def demo(context: Context, words: list[str]) -> int:
    require(not words, f"demo takes no arguments, not '{(words or [''])[0]}'")
    strategies = [line.split() for line in DEMO.strip().split("\n")]
    context.build(
        "summarize_runs",
        "solution_01_single_gpu_gpt",
        *dict.fromkeys(f"solution_{chapter}_{program}" for chapter, program, *_ in strategies),
    )
    with Scratch(context.folder, "demo") as folder:
        records: list[str] = []
        for chapter, program, ranks, *options in strategies:
            records.append(os.path.join(folder, f"{len(records)}.{program}.jsonl"))
            print(f"Training {chapter} {program} on {ranks} rank(s)", file=sys.stderr, flush=True)
            if machine.quietly(
                [
                    LAUNCH,
                    "-n",
                    ranks,
                    "-t",
                    "120",
                    "--",
                    context.path("solutions", chapter, program),
                    "--no-shuffle",
                    *options,
                    "--record",
                    records[-1],
                ]
            ):
                raise Failed(1)
        run([context.path("tools", "summarize_runs"), *records])
        demo_of_gpt(context, os.path.join(folder, "gpt"))
    return 0


def demo_of_gpt(context: Context, checkpoints: str) -> None:
    """A language model, trained on a mesh of 2 × 2 × 2 ranks, continues a text on one rank, from the checkpoint."""
    print("Training 07_3d train_3d --model gpt, a language model, on 8 rank(s)", file=sys.stderr, flush=True)
    said = output_of(
        [
            LAUNCH,
            "-n",
            "8",
            "-t",
            "600",
            "--",
            context.path("solutions", "07_3d", "train_3d"),
            "--model",
            "gpt",
            "--dp",
            "2",
            "--pp",
            "2",
            "--tp",
            "2",
            "--log-every",
            "0",
            "--checkpoints",
            checkpoints,
        ]
    )
    print("\nA language model, trained on 8 ranks (data 2, pipeline 2, tensor 2) on stories:")
    print("\n".join(re.findall(r"^(?:test loss|the best possible|[0-9]+ tokens).*", said, re.M)))
    print('\nWhat it makes of "one sunny morning":', flush=True)
    said = output_of(
        [
            LAUNCH,
            "-n",
            "1",
            "--",
            context.path("solutions", "01_single_gpu", "gpt"),
            "--batch-size",
            "32",
            "--resume",
            checkpoints,
            "--generate",
            "one sunny morning",
            "--tokens",
            "60",
            "--temperature",
            "0.7",
        ]
    )
    print(re.sub(r"\A.*?^the best possible[^\n]*\n", "", said, flags=re.M | re.S), end="")


# ---- bench ---------------------------------------------------------------------------------------------------------

# The first is what the others are compared with.
BENCH = """
solutions/01_single_gpu/mlp 1
solutions/02_ddp/ddp 2
solutions/02_ddp/ddp_overlap 2
solutions/03_model_parallel/model_parallel 2
solutions/04_pipeline/pipeline 2 --schedule gpipe
solutions/04_pipeline/pipeline 2 --schedule 1f1b
solutions/05_tensor_parallel/tensor_parallel 2
solutions/05_tensor_parallel/tensor_parallel_gather 2
solutions/06_fsdp/zero 2 --stage 1
solutions/06_fsdp/zero 2 --stage 3
solutions/06_fsdp/fsdp 2
solutions/07_3d/train_3d 4 --dp 2 --pp 2
solutions/07_3d/train_3d 4 --dp 2 --tp 2
"""


def bench(context: Context, words: list[str]) -> int:
    rest, torch, json = Words(words), "", ""
    while rest:
        word = rest.next()
        require(word in ("--torch", "--json"), f"bench takes --torch PYTHON and --json FILE, not '{word}'")
        value = rest.next()
        require(value, f"bench: {word} lacks its value")
        torch, json = (value, json) if word == "--torch" else (torch, value)
    if torch:
        try:
            there = subprocess.run([torch, "-c", "import torch"], capture_output=True, check=False).returncode == 0
        except OSError:
            there = False
        require(there, f"bench: '{torch}' is no Python with torch")
    runs = [line.split() for line in BENCH.strip().split("\n")]
    # The times of ranks that share a GPU would say nothing, and take long.
    most = len(machine.free_mib()) if context.backend == "cuda" else 4
    require(most, "bench: nvidia-smi shows no GPU")
    if most < 4:
        print(f"Left out: runs on more ranks than the {most} GPU(s) here")
    runs = [line for line in runs if int(line[1]) <= most]
    context.build(
        "bench",
        "bench_report",
        "solution_00_collectives_bandwidth",
        *(["solution_01_single_gpu_gpt", "solution_01_single_gpu_gpt_bf16"] if torch and context.backend == "cuda" else []),
        *dict.fromkeys("solution_" + program.split("/", 1)[1].replace("/", "_") for program, *_ in runs),
    )
    with Scratch(context.folder, "bench") as folder:
        if context.backend == "cpu":
            blas_in_use(context)
        names = ("mlp_step.json", "kernels.json", *(("all_reduce.json", "overlap.timeline.json") if most >= 2 else ()))
        parts = [os.path.join(folder, name) for name in names]
        bandwidth = (
            [context.path("tools", "bench"), "--part", "all_reduce"]
            if context.backend == "cpu"
            else
            # There is no bare MPI call to compare with: the sizes, times and bandwidths of nccl-tests.
            [context.path("solutions", "00_collectives", "bandwidth"), "--op", "all_reduce"]
        )
        run([LAUNCH, "-n", "1", "--", context.path("tools", "bench"), "--part", "mlp_step", "--json", parts[0]])
        run([LAUNCH, "-n", "1", "--", context.path("tools", "bench"), "--part", "kernels", "--json", parts[1]])
        if most >= 2:
            run([LAUNCH, "-n", "2", "--", *bandwidth, "--json", parts[2]])
            measure_overlap(context, parts[3])
        # Long epochs: in a short one, the host has launched most of the small steps before the device's thread is
        # awake, and the time of launching would not be seen.
        for program, ranks, *options in runs:
            parts.append(os.path.join(folder, f"{len(parts)}.{os.path.basename(program)}.jsonl"))
            run(
                [
                    LAUNCH,
                    "-n",
                    ranks,
                    "--",
                    context.path(program),
                    "--samples",
                    "20480",
                    "--epochs",
                    "5",
                    "--log-every",
                    "0",
                    *options,
                    "--record",
                    parts[-1],
                ],
                env=dict(os.environ, WORKSHOP_PROBES="0"),
                stdout=subprocess.DEVNULL,
            )
        if torch and context.backend == "cuda":
            place = os.path.join(folder, "beside_torch")
            run(["tools/gpu_report", "--built", "--python", torch, "--out", place, "times"])
        elif torch:
            parts.append(os.path.join(folder, "torch.json"))
            with open(parts[-1], "w", encoding="utf-8") as file:
                run([torch, "tools/bench/bench_torch.py", LAUNCH, context.path("solutions")], stdout=file)
        run([context.path("tools", "bench_report"), *(["--json", json] if json else []), *parts])
    return 0


def measure_overlap(context: Context, timeline: str) -> None:
    """Kernels that wait, as if on a device: on cores that are all busy, nothing could overlap. A simulated machine
    would say nothing of how streams and NCCL run here."""
    options = ["--layers", "256,256,256,256,256", "--bucket-mb", "0.2", "--max-steps", "10", "--timeline", timeline]
    run(
        [LAUNCH, "-n", "2", "--", context.path("solutions", "02_ddp", "ddp_overlap"), *options],
        env=dict(os.environ, WORKSHOP_SLOW="kernels"),
        stdout=subprocess.DEVNULL,
    )


def blas_in_use(context: Context, label: str = "") -> None:
    """Prints a label, the processor that OpenBLAS's kernels are for, and the cores they run on: what a program asks
    itself."""
    context.build("blas_in_use")
    print(label, end="", flush=True)
    run([context.path("tools", "blas_in_use")])


def run_recorded(start: list[str], binary: str, options: list[str], place: str) -> list[str]:
    """Starts a program that prints nothing. Returns the files that it writes: PLACE.jsonl, its record, and PLACE.json,
    its timeline. No probes: they would take time and memory."""
    files = [place + ".jsonl", place + ".json"]
    run(
        [*start, "--", binary, "--log-every", "0", *options, "--record", files[0], "--timeline", files[1]],
        env=dict(os.environ, WORKSHOP_PROBES="0"),
        stdout=subprocess.DEVNULL,
    )
    return files


# ---- scaling -------------------------------------------------------------------------------------------------------


class SlurmJob:
    """The job that this command runs in."""

    def __init__(self) -> None:
        self.id = os.environ["SLURM_JOB_ID"]
        about = machine.said("scontrol", "show", "job", self.id)
        require(about, f"SLURM_JOB_ID is {self.id}, but scontrol shows no such job: unset SLURM_JOB_ID to run here")
        self.nodes = int((re.search("NumNodes=([0-9]+)", about) or ["", "1"])[1])
        self.tasks = int((re.search("NumTasks=([0-9]+)", about) or ["", "1"])[1])
        self.per_node = -(-self.tasks // self.nodes)

    def ranks(self) -> list[int]:
        return [2**i for i in range(self.tasks.bit_length()) if 2**i <= self.tasks]


def scaling(context: Context, words: list[str]) -> int:
    rest = Words(words)
    chapter = chapters.choose(rest.next())
    program, asked, solution, show, options = chapter.programs[0], "", False, [], []
    while rest:
        word = rest.next()
        if word == "--ranks":
            asked = rest.next("nothing")
        elif word == "--weak":
            show.append(word)
        elif word == "--solution":
            solution = True
        elif word == "--json":
            show += [word, rest.next()]
        elif word == "--":
            options = rest.rest()
        elif word.startswith("-"):
            raise Refused(
                "scaling knows --ranks, --weak, --solution, --json and -- before the program's own options, "
                f"not '{word}'"
            )
        else:
            program = word
    chapter.program(program)
    job = SlurmJob() if in_slurm_job() else None
    ranks = parse_ranks(asked) if asked else job.ranks() if job else [1, 2, 4, 8]
    require(ranks, f"--ranks expects numbers such as 1,2,4,8, not '{asked}'")
    for n in ranks if job else []:
        require(
            n <= job.tasks,
            f"--ranks has {n}, but Slurm job {job.id} has {job.tasks} task(s): ask salloc or sbatch for more",
        )
    context.build_program(chapter, program, solution, options, "scaling")
    if job:
        print(f"Slurm job {job.id}: up to {job.per_node} rank(s) on each of {job.nodes} node(s)", flush=True)
    else:
        context.simulate()
    with Scratch(context.folder, "scaling") as folder:
        files = []
        for n in ranks:
            start = ["slurm/step", "-n", str(n), "-N", str(-(-n // job.per_node))] if job else [LAUNCH, "-n", str(n)]
            binary = context.program(chapter, program, solution)
            files += run_recorded(start, binary, options, os.path.join(folder, str(n)))
        run([context.path("tools", "scaling"), *show, *files])
    return 0


# ---- report --------------------------------------------------------------------------------------------------------


def report(context: Context, words: list[str]) -> int:
    rest = Words(words)
    named, asked, solution, terminal, page = [], "", False, False, "runs/report/report.html"
    while rest and rest.peek() != "--":
        word = rest.next()
        if word == "-n":
            asked = rest.next("nothing")
        elif word == "-o":
            page = rest.next()
        elif word == "--solution":
            solution = True
        elif word == "--terminal":
            terminal = True
        elif word.startswith("-"):
            raise Refused(
                f"report knows -n, --solution, --terminal, -o and -- before the program's own options, not '{word}'"
            )
        else:
            named.append(word)
    options = rest.rest()
    require(named, "report expects a chapter, or records and timelines")
    require(page, "-o expects a file")
    with nullcontext() if terminal else lock_of_page(page), Scratch(context.folder, "report") as folder:
        if os.path.isfile(named[0]) or ".json" in named[0]:
            require(
                not asked and not solution and not options,
                "report FILE... takes --terminal and -o alone, for it runs nothing",
            )
            files = named
        else:
            files = record_runs(context, folder, named, asked, solution, sets_of(options))
        context.build("report")
        tool = context.path("tools", "report")
        if terminal:
            sys.stdout.flush()
            run([tool, *files])
            return 0
        python = python_with_plotly()
        data, unfinished = os.path.join(folder, "report.data"), f"{page}.{os.getpid()}"
        with open(data, "w", encoding="utf-8") as file:
            run([tool, "--json", *files], stdout=file)
        run([*python, "tools/report/report_page.py", data, unfinished])
        os.replace(unfinished, page)
    print(f"Wrote {page}: open it in a browser")
    return 0


def lock_of_page(page: str) -> AbstractContextManager[None]:
    folder, name = os.path.split(page)
    os.makedirs(folder or ".", exist_ok=True)
    prefix = os.path.join(folder, f".{name}.")
    return run_lock(prefix, f"is going to write {page}", "choose another file with -o")


def sets_of(words: list[str]) -> list[list[str]]:
    """The sets of options, each behind a --. A later set begins with the first one: of options that are there twice,
    the last counts."""
    sets: list[list[str]] = []
    for word in words or ["--"]:
        if word == "--":
            sets.append(list(sets[0]) if sets else [])
        else:
            sets[-1].append(word)
    return sets


def record_runs(
    context: Context, folder: str, named: list[str], asked: str, solution: bool, sets: list[list[str]]
) -> list[str]:
    """Runs each program on each number of ranks with each set of options. Returns their records and timelines."""
    chapter = chapters.choose(named[0])
    programs = [chapter.program(name) for name in named[1:]] or chapter.programs[:1]
    ranks = parse_ranks(asked) if asked else [default_ranks(chapter, programs[0])]
    require(ranks, f"-n expects numbers of ranks such as 2 or 1,2,4, not '{asked}'")
    context.build(
        *dict.fromkeys(
            target
            for program in programs
            for options in sets
            for target in targets_of(chapter, program, solution, options)
        )
    )
    context.simulate()
    files: list[str] = []
    for options in sets:
        for program in programs:
            for n in ranks:
                place = os.path.join(folder, str(len(files) // 2))
                print(
                    f"Running {program} on {n} rank(s){': ' + ' '.join(options) if options else ''}",
                    file=sys.stderr,
                    flush=True,
                )
                binary = context.program(chapter, program, solution)
                start = [LAUNCH, "-n", str(n)]
                files += run_recorded(start, binary, options, place)
    return files


def plotly_here() -> list[str]:
    """A command that runs a Python with plotly: the one that comes first, or the distribution's; with PYTHONPATH
    and the like, or without. Empty if there is none."""
    for python in ("python3", "/usr/bin/python3"):
        for command in ([python], [python, "-E"]):
            page_imports = [*command, "-c", "import json, re, plotly"]
            if machine.has(python) and subprocess.run(page_imports, capture_output=True, check=False).returncode == 0:
                return command
    return []


def python_with_plotly() -> list[str]:
    """The same; installs what only pages take, and so nothing else installs."""
    python = plotly_here()
    if (
        not python
        and not in_slurm_job()
        and machine.may_install()
        and (not sys.stdin.isatty() or machine.confirm("Install python3-plotly with apt?"))
    ):
        machine.install(["python3-plotly"])
        python = plotly_here()
    require(python, "pages are drawn with plotly: install python3-plotly, or take --terminal")
    return python

# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_report [--backend cuda] [--out FOLDER] [--minutes M] [--built] [--python PYTHON] [PART]...

What works on this machine's GPUs, and how fast, in parts that each end within ten minutes, whatever hangs. Needs no
network and no MPI. Without PARTs, all of them:

  build      the programs, the conformance suite, and the tests that need them
  conform    hello, and the conformance suite on 1, 2 and 4 ranks: everything else relies on it
  programs   PyTorch's golden results; then the solutions' tests in random order until the time is up
  memory     every program once under compute-sanitizer: memcheck and initcheck
  times      a GPT-2 and its kernels, beside PyTorch on the same GPU

--built: take what is in build/BACKEND as it is. --python: the one that has PyTorch (python3). --minutes: the most that a part may take (10). FOLDER (gpu_report) gets
a table for docs/gpu.md, table.md, what each line of it says, results.jsonl, and the output of each command, logs.tgz.
With --backend cpu, the parts run on the cpu backend, to try them. Status: 0 if all that ran has passed, else 1."""

from __future__ import annotations

import concurrent.futures
import datetime
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import time

from . import machine
from .context import LAUNCH, Words, require
from .errors import Refused
from .processes import stop_all
from .run_lock import run_lock
from .verbs_setup import slots_file

# A line of output that has one of these, the first ones first, is what the table says.
TELLING = ("PASSED", "tests passed", "tokens/s", "ms_per_step", "ERROR SUMMARY", "test loss", "NCCL version", "  loss ")
TOO_LONG = 124  # the status of a command that did not end in time

# Ranks, program of solutions/, options. Every program, every road that its options open, at a size that ends at once.
PROGRAMS = [
    (2, "00_collectives/hello", ""),
    (4, "00_collectives/collectives", ""),
    (4, "00_collectives/ring_allreduce", ""),
    (4, "00_collectives/all_reduces", "--ranks-per-node 2"),
    (2, "00_collectives/bandwidth", "--max-mib 1"),
    (1, "01_single_gpu/mlp", "--optimizer adamw"),
    (1, "01_single_gpu/mlp", "--model alexnet --image-size 32 --shrink 8 --samples 64"),
    (1, "01_single_gpu/gpt", "--words 4000 --dropout 0.1 --recompute blocks --generate the --tokens 4"),
    (1, "01_single_gpu/gpt", "--words 4000 --precision bf16 --clip-norm 1"),
    (2, "02_ddp/ddp", "--model gpt --words 4000"),
    (2, "02_ddp/ddp_overlap", "--model gpt --words 4000"),
    (2, "02_ddp/ddp_overlap", "--model gpt --words 4000 --precision bf16"),
    (2, "02_ddp/long_run", "--check-replicas 2"),
    (2, "03_model_parallel/model_parallel", "--layers 8,16,16,4"),
    (1, "03_model_parallel/one_process", "--devices 2 --layers 8,16,16,4"),
    (2, "04_pipeline/pipeline", "--schedule gpipe --layers 8,16,16,4"),
    (4, "04_pipeline/pipeline", "--schedule 1f1b --layers 8,16,16,16,16,4"),
    (2, "04_pipeline/pipeline", "--schedule interleaved --layers 8,16,16,16,16,4"),
    (2, "04_pipeline/pipeline", "--schedule zb-h1 --layers 8,16,16,4"),
    (2, "04_pipeline/pipeline", "--schedule zb-v --layers 8,16,16,16,16,4"),
    (2, "05_tensor_parallel/tensor_parallel", "--model gpt --words 4000"),
    (2, "05_tensor_parallel/tensor_parallel", "--model gpt --words 4000 --sequence-parallel"),
    (2, "05_tensor_parallel/tensor_parallel_gather", ""),
    *((2, "06_fsdp/zero", f"--model gpt --words 4000 --stage {stage}") for stage in (1, 2, 3)),
    (2, "06_fsdp/fsdp", "--model gpt --words 4000"),
    (2, "06_fsdp/fsdp", "--model gpt --words 4000 --cpu-offload"),
    (4, "07_3d/train_3d", "--model gpt --words 4000 --pp 2 --tp 2"),
    (4, "07_3d/train_3d", "--model gpt --words 4000 --pp 2 --dp 2 --precision bf16"),
    (1, "01_single_gpu/gpt", "--words 4000 --attention-block 5 --dropout 0.1"),
    (2, "08_context_parallel/ring_attention", "--words 4000 --attention-block 5 --dropout 0.1"),
    (2, "08_context_parallel/ring_attention", "--words 4000 --precision bf16"),
    (2, "08_context_parallel/ulysses", "--words 4000"),
    (2, "08_context_parallel/gather_kv", "--words 4000"),
    (4, "07_3d/train_3d", "--model gpt --words 4000 --cp 2 --tp 2"),
    (4, "07_3d/train_3d", "--model gpt --words 4000 --cp 2 --pp 2"),
    (1, "09_expert_parallel/moe", "--words 4000"),
    (1, "09_expert_parallel/moe", "--words 4000 --precision bf16"),
    (2, "09_expert_parallel/moe_parallel", "--words 4000 --overlap"),
    (2, "09_expert_parallel/moe_parallel", "--words 4000 --counts fixed --capacity-factor 1"),
    (4, "07_3d/train_3d", "--model gpt --words 4000 --experts 4 --ep 2 --pp 2"),
    (2, "10_less_communication/ddp_compressed", "--model gpt --words 4000"),
    (2, "10_less_communication/decentralized", ""),
    (2, "10_less_communication/local_sgd", ""),
    (2, "10_less_communication/parameter_server", ""),
]

# On the cpu backend, the times are those of a small model, and only try the report.
SMALL_GPT = "--width 64 --heads 4 --blocks 2 --context 64 --batch-size 8 --clip-norm 1 --lr-schedule constant"
# The names of the workshop's kernels in a step of a language model.
OURS = "norm|softmax|entropy|embedding|gradients|link|bias|scaled|sum|squares|clip|adamw|gelu|drop|reals|floats"
GPT2 = "--width 768 --heads 12 --blocks 12 --context 1024 --batch-size 8 --clip-norm 1 --lr-schedule constant"


def options_of(program: str, options: str, steps: int) -> str:
    """Ends a training after so many steps. Chapter 00 trains nothing."""
    return options if program.startswith("00_") else f"{options} --max-steps {steps}"


class Report:
    """Runs commands, each with a time limit of its own, and keeps what they printed and how they ended."""

    def __init__(self, backend: str, out: str, minutes: float, python: str = "python3"):
        self.backend, self.out, self.minutes, self.python = backend, out, minutes, python
        self.folder = os.path.join("build", backend)
        self.logs = os.path.join(out, "logs")
        self.results: list[dict] = []
        self.end = 0.0
        os.makedirs(self.logs, exist_ok=True)

    def begin(self, part: str) -> None:
        print(f"---- {part}", flush=True)
        self.end = time.monotonic() + 60 * self.minutes

    def left(self) -> float:
        return self.end - time.monotonic()

    def run(self, name: str, command: list[str], seconds: float, **settings: str) -> tuple[int, str]:
        """Status and output. A command for which no time is left is skipped, with status None in the results."""
        seconds = min(seconds, self.left())
        if seconds < 5:
            self.results.append({"name": name, "status": None, "said": "no time left"})
            print(f"skipped  {name}: no time left", flush=True)
            return 1, ""
        begin = time.monotonic()
        environment = dict(os.environ, WORKSHOP_BACKEND=self.backend, **settings)
        log = os.path.join(self.logs, re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:100] + ".txt")
        with open(log, "w+", encoding="utf-8", errors="replace") as file:
            file.write(" ".join(command) + "\n")
            file.flush()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment
            )
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = TOO_LONG
                stop_all([process.pid])
                process.wait()
            file.seek(0)
            output = file.read()
        took = time.monotonic() - begin
        lines = [line for line in output.split("\n")[1:] if line.strip()]
        found = [line for telling in TELLING for line in reversed(lines) if telling in line]
        said = (found or lines[-1:] or [""])[0].strip()
        self.results.append({"name": name, "status": status, "seconds": round(took, 1), "said": said})
        print(f"{'passed' if status == 0 else f'status {status}':<8} {name} ({took:.1f} s): {said[:160]}", flush=True)
        if status != 0:
            print("\n".join("    " + line[:200] for line in lines[-6:]), flush=True)
        return status, output

    def together(self, jobs: list[tuple], at_a_time: int) -> None:
        """Runs jobs, the arguments of run(), several at a time."""
        with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
            list(pool.map(lambda job: self.run(job[0], job[1], job[2], **job[3]), jobs))

    def ranks(self, ranks: int, program: str, options: str, seconds: int) -> list[str]:
        path = program if os.sep + "conformance" in program else os.path.join(self.folder, "solutions", program)
        return [LAUNCH, "-n", str(ranks), "-t", str(seconds), "--", path, *options.split()]

    # ---- the parts

    def build(self) -> None:
        if not os.path.exists(os.path.join(self.folder, "CMakeCache.txt")):
            without_mpi = ["-DWORKSHOP_MPI=OFF"] if self.backend == "cuda" else []
            self.run("configure", ["cmake", "--preset", self.backend, *without_mpi], 120)
        targets = ["conformance", "chapter_tests", "compare_runs", "programs", "bench"]
        self.run("build", ["cmake", "--build", self.folder, "-j", "--target", *targets], 600)

    def conform(self) -> None:
        suite = self.suite()
        for ranks in (1, 2):
            self.run(f"hello on {ranks}", self.ranks(ranks, "00_collectives/hello", "", 60), 70, NCCL_DEBUG="INFO")
        for ranks in (1, 2, 4):
            without = "-Abort.*" + (":Blas.*" if ranks > 2 else "")
            self.run(
                f"conformance on {ranks}", self.ranks(ranks, suite, f"--gtest_color=no --gtest_filter={without}", 150), 160,
                CUDA_MODULE_LOADING="EAGER",
            )
        self.run("conformance of aborts on 2", self.ranks(2, suite, "--gtest_color=no --gtest_filter=Abort.*", 100), 110)

    def suite(self) -> str:
        for place in (("tests", "conformance", "conformance"), ("conformance",)):
            if os.path.exists(path := os.path.join(self.folder, *place)):
                return path
        raise Refused(f"{self.folder} has no conformance suite")

    def programs(self) -> None:
        jobs = []
        for ranks, program, options in PROGRAMS:
            name = f"{program} {options} on {ranks}"
            jobs.append((name, self.ranks(ranks, program, options_of(program, options, 6), 60), 70, {}))
        self.together(jobs, 4)
        tests = ["ctest", "--test-dir", self.folder, "-j", "6", "--output-on-failure", "--timeout", "100"]
        if self.backend == "cuda":
            tests += ["--resource-spec-file", slots_file(self.folder)]
        self.run("golden results", [*tests, "-R", r"^golden\."], self.left() * 0.75)
        until = (datetime.datetime.now() + datetime.timedelta(seconds=self.left() - 15)).strftime("%H:%M:%S")
        self.run(
            "solutions' tests, in random order", [*tests, "-R", r"^solution\.", "-LE", "soak", "--schedule-random",
                                                  "--stop-time", until], self.left() - 5,
        )

    def memory(self) -> None:
        sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        jobs = []
        for tool in ("memcheck", "initcheck", "racecheck"):
            for ranks, program, options in PROGRAMS:
                # racecheck looks at shared memory: slow in NCCL's kernels, so only where there are none.
                if ranks > (1 if tool == "racecheck" else 2):
                    continue
                command = self.ranks(ranks, program, options_of(program, options.replace("4000", "1000"), 2), 100)
                at = command.index("--") + 1
                # NCCL asks for kernels that are not there, which is no error.
                more = ["--report-api-errors", "no"] if tool == "memcheck" else []
                command[at:at] = [sanitizer, "--tool", tool, *more, "--error-exitcode", "9"]
                jobs.append((f"{tool}: {program} {options} on {ranks}", command, 110, {"WORKSHOP_TIMEOUT": "80"}))
        random.Random(1).shuffle(jobs)
        self.together(jobs, 5)

    def times(self) -> None:
        text = self.text_of_many_words()
        ours = os.path.join(self.folder, "solutions", "01_single_gpu", "gpt")
        torch = [self.python, "tools/bench/torch_gpt.py"]
        model = GPT2 if self.backend == "cuda" else SMALL_GPT
        for precision in ("fp32", "bf16"):
            options = [*model.split(), "--text", text, "--precision", precision, "--max-steps", "24", "--log-every", "0"]
            self.run(f"GPT-2, {precision}: the workshop", [ours, *options], 90, WORKSHOP_PROBES="0")
        for what in ("fp32", "bf16", "tf32", "bf16 --attention flash", "bf16 --attention flash --compile"):
            self.run(f"GPT-2, {what}: PyTorch", [*torch, "--precision", *what.split()], 120)
        bench = os.path.join(self.folder, "tools", "bench")
        if os.path.exists(bench):
            _, output = self.run("kernels", [bench, "--part", "kernels"], 60)
            print(output.partition("\n")[2], flush=True)
        if shutil.which("ncu"):
            for precision in ("fp32", "bf16"):
                options = [*model.split(), "--text", text, "--precision", precision, "--max-steps", "3"]
                profile = ["ncu", "--target-processes", "all", "--clock-control", "none", "--csv"]
                self.profile(f"the workshop's kernels, {precision}", [
                    *profile, "--metrics", "gpu__time_duration.sum,dram__bytes.sum", "-k", f"regex:{OURS}",
                    "--launch-skip", "300", "--launch-count", "300", ours, *options,
                ])

    def profile(self, name: str, command: list[str]) -> None:
        _, output = self.run(name, command, 60, WORKSHOP_PROBES="0")
        self.kernels(name, output)

    def text_of_many_words(self) -> str:
        """A text of 50,257 words as GPT-2's vocabulary has them: a few are frequent, most are rare."""
        folder = os.path.join(self.out, "text")
        os.makedirs(folder, exist_ok=True)
        draw = random.Random(1)
        words = [f"w{i}" for i in range(50255)]
        shares = [1 / (i + 1) for i in range(len(words))]  # Zipf's law
        many = words + draw.choices(words, shares, k=200_000)
        draw.shuffle(many)
        for name, count in (("train", len(many)), ("valid", 2100), ("test", 2100)):
            with open(os.path.join(folder, name + ".txt"), "w", encoding="ascii") as file:
                for i in range(0, count, 20):
                    file.write(" ".join(many[i : i + 20]) + "\n")
        return folder

    def kernels(self, name: str, output: str) -> None:
        """Adds up ncu's lines by kernel: launches, time, bytes of the device's memory."""
        sums: dict[str, list[float]] = {}
        for line in output.split("\n"):
            cells = re.findall(r'"([^"]*)"', line)
            if len(cells) < 15 or not cells[0].isdigit():
                continue
            kernel, metric, unit, value = cells[4], cells[-3], cells[-2], float(cells[-1].replace(",", ""))
            entry = sums.setdefault(re.split(r"[(<]", kernel.replace("(anonymous namespace)::", ""))[0], [0.0, 0.0, 0.0])
            if metric.startswith("gpu__time"):
                entry[0] += 1
                entry[1] += value * {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}[unit.replace("second", "s")]
            else:
                entry[2] += value * {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}[unit]
        with open(os.path.join(self.out, "kernels.md"), "a", encoding="utf-8") as file:
            file.write(f"\n{name}\n\n| kernel | launches | ms | GB | GB/s |\n|---|---|---|---|---|\n")
            for kernel, (n, ms, size) in sorted(sums.items(), key=lambda item: -item[1][1]):
                rate = f"{size / ms / 1e6:.0f}" if ms and size else ""
                file.write(f"| {kernel} | {n:.0f} | {ms:.3f} | {size / 1e9:.2f} | {rate} |\n")

    def finish(self) -> int:
        with open(os.path.join(self.out, "results.jsonl"), "a", encoding="utf-8") as file:
            for result in self.results:
                file.write(json.dumps(result) + "\n")
        today = datetime.date.today().isoformat()
        with open(os.path.join(self.out, "table.md"), "a", encoding="utf-8") as file:
            for result in self.results:
                ended = {None: "not run", 0: "passed", TOO_LONG: "did not end in time"}.get(
                    result["status"], f"status {result['status']}")
                said = result["said"].replace("|", "\\|")[:160]
                file.write(f"| {today} | {result['name']} | {ended}: {said} |\n")
        with tarfile.open(os.path.join(self.out, "logs.tgz"), "w:gz") as archive:
            archive.add(self.logs, "logs")
        shutil.rmtree(self.logs)
        shutil.rmtree(os.path.join(self.out, "text"), ignore_errors=True)
        failed = [result["name"] for result in self.results if result["status"]]
        print(f"{len(self.results)} commands, {len(failed)} failed; see {self.out}")
        return int(bool(failed))


PARTS = ("build", "conform", "programs", "memory", "times")


def write(report: Report, parts: list[str]) -> int:
    for part in parts:
        report.begin(part)
        try:
            getattr(report, part)()
        except Refused as error:
            report.results.append({"name": part, "status": 2, "said": str(error)})
            print(f"gpu_report: {error}", file=sys.stderr)
    return report.finish()


def main(words: list[str]) -> int:
    rest, parts, built = Words(words), [], False
    values = {"--backend": "cuda", "--out": "gpu_report", "--minutes": "10", "--python": "python3"}
    try:
        while rest:
            word = rest.next()
            if word in ("-h", "--help"):
                print(__doc__)
                return 0
            if word in values:
                require(rest, f"{word} expects a value")
                values[word] = rest.next()
            elif word == "--built":
                built = True
            else:
                require(word in PARTS, f"the parts are {', '.join(PARTS)}; there is no '{word}'")
                parts.append(word)
        backend, out, minutes, python = values.values()
        require(backend in ("cpu", "cuda"), f"--backend is '{backend}'; expected cpu or cuda")
        require(re.fullmatch(r"[0-9]+(\.[0-9]+)?", minutes), f"--minutes expects a number, not '{minutes}'")
        require(
            backend == "cpu" or machine.said("nvidia-smi", "-L"),
            "nvidia-smi shows no GPU; --backend cpu tries the report without one",
        )
        os.makedirs(out, exist_ok=True)
        with run_lock(os.path.join(out, "."), f"is going to write to {out}", "choose another folder with --out"):
            report = Report(backend, out, float(minutes), python)
            return write(report, [part for part in parts or PARTS if part != "build" or not built])
    except Refused as error:
        print(f"gpu_report: {error}", file=sys.stderr)
        return 2

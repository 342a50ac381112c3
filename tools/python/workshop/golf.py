# SPDX-License-Identifier: Apache-2.0
"""`./workshop golf`: tasks with a score. An answer is judged like an exercise, right results first. Its score is a time
on a simulated machine (WORKSHOP_SIMULATE), so it is the same on every computer.

Most answers are a file of options for one of the solutions' programs; `Options` says which options an answer may have.
The answers of `Code` are functions that a judge of golf/judge/ calls. The best score of an answer as it is now is kept
in the build folder, where `progress` finds it. """

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass, field

from . import chapters, golf_rules
from .context import Context, Words, recorded_run, require
from .errors import Refused

FOLDER = "golf"
TOLERANCE = 1e-5  # of losses and parameters
LONGEST = 1 << 16  # bytes of an answer


@dataclass(frozen=True)
class Result:
    """What a run showed. `score` in the task's unit; `sent` by the rank that sends most, in bytes per step or call."""

    score: float
    sent: float = 0
    memory: int = 0
    note: str = ""  # what else the participant wants to know


class Wrong(Exception):
    """An answer that gets no score, and why."""


@dataclass(frozen=True)
class Task:
    name: str
    title: str
    par: float  # of solutions/golf/NAME/par.*
    best: float  # the best known one, of solutions/golf/NAME/best.*
    unit: str = "ms"
    per = "per step"  # what a rank sends

    @property
    def file(self) -> str:
        """The participant's, in golf/NAME/."""
        raise NotImplementedError

    def path(self, which: str) -> str:
        """The file with an answer: the participant's, or "par" or "best"."""
        if which == "mine":
            return os.path.join(FOLDER, self.name, self.file)
        return os.path.join("solutions", FOLDER, self.name, which + os.path.splitext(self.file)[1])

    def judge(self, context: Context, which: str) -> Result:
        raise NotImplementedError


# ---- runs ----------------------------------------------------------------------------------------------------------


def run(program: str, ranks: int, machine: str, options: list[str]) -> tuple[list[dict], str]:
    """The record of a run on a simulated machine, and what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WORKSHOP_")}
    environment.update(WORKSHOP_PROBES="0", WORKSHOP_TIMEOUT="20")
    if machine:
        environment["WORKSHOP_SIMULATE"] = machine
    status, record, output = recorded_run(program, ranks, options, environment)
    if status:
        raise Wrong(said_by_ranks(output) or f"The program ended with status {status}.")
    return record, output


def said_by_ranks(output: str) -> str:
    """What a program printed. What several ranks say is there once."""
    times: dict[str, int] = {}
    first: dict[str, str] = {}
    for line in output.strip().splitlines():
        without_rank = re.sub(r"\brank \d+\b", "rank", line)
        times[without_rank] = times.get(without_rank, 0) + 1
        first.setdefault(without_rank, line)
    lines = [line + f" (and {times[key] - 1} more like this)" * (times[key] > 1) for key, line in first.items()]
    return "\n".join(lines if len(lines) <= 30 else [*lines[:20], "…", *lines[-10:]])


def sent(record: list[dict], calls: int) -> float:
    """The bytes that the rank which sends most gives to NCCL in one of `calls` steps."""
    by_rank: dict[int, float] = {}
    for line in record:
        if line["type"] == "collective" and line["op"] != "ncclRecv":
            by_rank[line["rank"]] = by_rank.get(line["rank"], 0) + line["bytes"]
    return max(by_rank.values(), default=0) / max(calls, 1)


def memory(record: list[dict]) -> int:
    """The memory of the rank that needs most: the peaks of all kinds, on its device."""
    kinds = ("parameters", "gradients", "optimizer", "activations", "buckets")
    return max((sum(line["peak"][kind] for kind in kinds) for line in record if line["type"] == "memory"), default=0)


def numbers(record: list[dict]) -> dict[str, list[float]]:
    """What two runs that train the same have in common: the losses and the final parameters."""
    found: dict[str, list[float]] = {}
    for line in record:
        if line["type"] == "step":
            found.setdefault(f"loss of step {line['step']}", []).append(number(line["global_loss"]))
        elif line["type"] == "parameter" and line.get("rank", 0) == 0:
            found[f"parameter {line['name']}"] = [number(x) for x in (line["l2"], line["sum"], *line["floats"])]
    return found


def number(of_record: float | str) -> float:
    """A record has words for numbers that are not finite."""
    return of_record if isinstance(of_record, (int, float)) else float("nan")


def require_same(mine: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    demand(set(mine) == set(expected) and expected, "Your run does not train the same model for as many steps.")
    for name, values in expected.items():
        ours = mine[name]
        scale = max(map(abs, values))
        same = len(ours) == len(values) and all(abs(a - b) <= TOLERANCE * scale for a, b in zip(ours, values))
        demand(same, f"Your run trains something else: the {name} differs.")


def demand(condition: object, why: str) -> None:
    if not condition:
        raise Wrong(why)


# ---- answers that are options --------------------------------------------------------------------------------------


def words_of(path: str) -> list[str]:
    """The words of an answer. What follows a # is a comment."""
    try:
        return shlex.split(text_of(path), comments=True)
    except ValueError as error:  # a quotation mark that is not closed
        raise Refused(f"{path}: {error}") from None


def text_of(path: str) -> str:
    """An answer."""
    if not os.path.isfile(path):
        raise Refused(f"{path} is {'no regular file' if os.path.lexists(path) else 'missing'}")
    if os.path.getsize(path) > LONGEST:
        raise Refused(f"{path} has {os.path.getsize(path):,} bytes; an answer has at most {LONGEST:,}")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError:
        raise Refused(f"{path} is not text") from None


def check_words(words: list[str], allowed: dict[str, str]) -> None:
    """`allowed` has a regular expression for the value of each option, empty for a flag."""
    rest, seen = list(words), set()
    while rest:
        option = rest.pop(0)
        demand(option in allowed, f"{quoted(option)} is not for you to choose; an answer may have {', '.join(allowed)}"
            + (", each with a space before its value." if "=" in option else "."))
        demand(option not in seen, f"{option} is there twice.")
        seen.add(option)
        if allowed[option]:
            value = rest.pop(0) if rest else ""
            demand(re.fullmatch(allowed[option], value), f"{quoted(value)} is no value for {option}.")


def quoted(word: str) -> str:
    """A word of an answer, as it can be printed."""
    return ascii(word if len(word) <= 60 else word[:60] + "...")


INTEGER, NUMBER = "[0-9]{1,9}", r"[0-9]{1,6}(\.[0-9]{1,9})?"


@dataclass(frozen=True)
class Options(Task):
    chapter: str = ""
    program: str = ""
    ranks: int = 1
    machine: str = ""
    fixed: str = ""  # options of all answers
    plain: str = ""  # those of the run whose losses and parameters are right
    allowed: dict[str, str] = field(default_factory=dict)
    most_memory: int = 0  # bytes; 0: no limit
    one_of: tuple[str, ...] = ()  # options of which an answer has exactly one

    @property
    def file(self) -> str:
        return "options.txt"

    def options(self, path: str) -> list[str]:
        words = words_of(path)
        check_words(words, self.allowed)
        demand(
            not self.one_of or sum(option in words for option in self.one_of) == 1,
            f"An answer has either {' or '.join(self.one_of)}.",
        )
        return words

    def train(self, context: Context, options: list[str]) -> list[dict]:
        chapter = chapters.choose(self.chapter)
        context.build_program(chapter, self.program, True, [])
        program = context.program(chapter, self.program, True)
        return run(program, self.ranks, self.machine, [*shlex.split(self.fixed), *options])[0]

    def judge(self, context: Context, which: str) -> Result:
        options = self.options(self.path(which))
        expected, mine = self.train(context, shlex.split(self.plain)), self.train(context, options)
        require_same(numbers(mine), numbers(expected))
        needed = memory(mine)
        demand(
            not self.most_memory or needed <= self.most_memory,
            f"Too much memory: a rank needs {needed:,} bytes, and may have {self.most_memory:,}.",
        )
        return Result(mine[-1]["seconds_per_step"] * 1e3, sent(mine, mine[-1]["steps"]), needed)


@dataclass(frozen=True)
class Schedule(Options):
    """The answer is a schedule for `pipeline --schedule FILE`."""

    @property
    def file(self) -> str:
        return "schedule.txt"

    micro_batches: int = 0
    in_flight: int = 0  # that a stage may hold

    def options(self, path: str) -> list[str]:
        cells = re.sub(r"#.*", "", text_of(path))
        demand(not re.search(r"\b[FBW]\d+[a-z]", cells), "Each stage has one chunk: write F1, not F1a.")
        numbers = {int(number) for number in re.findall(r"\b[FBW](\d{1,6})\b", cells)}
        demand(
            numbers <= set(range(self.micro_batches)),
            f"There are {self.micro_batches} micro-batches, 0 to {self.micro_batches - 1}, and yours has "
            f"{max(numbers, default=0)}.",
        )
        demand(len(numbers) == self.micro_batches, f"The schedule must have all {self.micro_batches} micro-batches.")
        return ["--schedule", path, "--in-flight", str(self.in_flight)]


@dataclass(frozen=True)
class Mesh(Task):
    """One mesh for several clusters, whose times `plan` computes. The score is the sum of their steps, in seconds."""

    fixed: str = ""
    clusters: tuple[str, ...] = ()
    allowed: dict[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        return "options.txt"

    def judge(self, context: Context, which: str) -> Result:
        words = words_of(self.path(which))
        check_words(words, self.allowed)
        demand(not {"--sequence-parallel", "--no-sequence-parallel"} <= set(words), "Sequence parallelism is on or off.")
        for option in self.required:
            demand(option in words, f"{option} is missing: the answer must be one mesh, not several.")
        chapter = chapters.choose("07")
        context.build_program(chapter, "plan", True, [])
        chosen, score, needed, most = [], 0.0, 0, 0.0
        for cluster in self.clusters:
            with tempfile.TemporaryDirectory() as folder:
                file = os.path.join(folder, "plans.json")
                command = [context.program(chapter, "plan", True), *shlex.split(self.fixed), *shlex.split(cluster)]
                done = subprocess.run(
                    [*command, *words, "--json", file],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    check=False,
                )
                said = done.stdout.decode("utf-8", "replace").strip().splitlines()
                demand(not done.returncode, "\n".join(said[-3:]))
                plans = json.loads(chapters.read(file))["plans"]
            demand(plans, f"With {cluster}, there is no such mesh: {said[-1] if said else ''}")
            best = min(plans, key=lambda plan: (not plan["fits"], plan["seconds_per_step"]))
            demand(best["fits"], f"With {cluster}, the mesh needs more memory than a GPU has.")
            chosen.append({key: best[key] for key in CHOICE})
            score += best["seconds_per_step"]
            needed = max([needed, *(int(sum(stage["memory"].values())) for stage in best["stages"])])
            most = max([most, *(sum(stage["sent"].values()) for stage in best["stages"])])
        for one in chosen:
            differ = [key for key in CHOICE if one[key] != chosen[0][key]]
            demand(not differ, f"What you leave open differs between the clusters: {', '.join(differ)}.")
        return Result(score, most, needed)


CHOICE = (
    "dp", "pp", "tp", "cp", "ep", "zero", "micro_batches", "hybrid", "chunks", "recompute", "sequence_parallel"
)  # fmt: skip


@dataclass(frozen=True)
class Compression(Task):
    """Any program of chapter 10. The score is the time of the training, in milliseconds, and the model must learn."""

    per = "in all"
    ranks: int = 1
    machine: str = ""
    fixed: str = ""
    programs: dict[str, dict[str, str]] = field(default_factory=dict)  # the options that each may have
    highest_loss: float = 0

    @property
    def file(self) -> str:
        return "options.txt"

    def judge(self, context: Context, which: str) -> Result:
        words = words_of(self.path(which))
        program = words[0] if words else ""
        demand(program in self.programs, f"An answer begins with {', '.join(self.programs)}, not {quoted(program)}.")
        check_words(words[1:], self.programs[program])
        chapter = chapters.choose("10")
        context.build_program(chapter, program, True, [])
        built = context.program(chapter, program, True)
        record, output = run(built, self.ranks, self.machine, [*shlex.split(self.fixed), *words[1:]])
        end = record[-1]
        time = end["seconds_per_step"] * end["steps"] * 1e3
        losses = re.findall(r"validation loss (\S+?),", output)
        loss = float(losses[-1]) if losses and re.fullmatch(r"[0-9.]+", losses[-1]) else float("nan")
        demand(
            loss <= self.highest_loss,
            f"Your model has not learned enough: its validation loss is {loss:.4f}, not at most {self.highest_loss}. "
            f"The training takes {written(time, self.unit)}.",
        )
        return Result(time, sent(record, 1), memory(record), f"The validation loss is {loss:.4f}.")


# ---- answers that are code -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Code(Task):
    """A function. The judge, a program of golf/judge/, knows its machine."""

    per = "per call"
    ranks: int = 1
    bound: float = 0  # no function can be faster, as the page proves

    @property
    def file(self) -> str:
        return f"{self.name}.cu"

    def judge(self, context: Context, which: str) -> Result:
        target = f"golf_{self.name}" + ("" if which == "mine" else f"_{which}")
        built = context.folder if which == "mine" else context.builder.prebuilt() or context.folder
        compiled = context.path(FOLDER, "CMakeFiles", f"{target}_code.dir", self.name, self.file + ".o")
        if which == "mine" and os.path.exists(compiled):
            os.unlink(compiled)  # a file that was put back may be older than what was compiled of another one
        if built == context.folder:
            context.build(target)
        if which == "mine":
            broken = golf_rules.broken_rules(chapters.read(self.path(which)), compiled, self.name)
            demand(not broken, "\n".join(broken))
        record, _ = run(os.path.join(built, FOLDER, target), self.ranks, "", [])
        values = {line["name"]: line["value"] for line in record if line["type"] == "value"}
        time = values["seconds"] * 1e6 if isinstance(values["seconds"], (int, float)) else 0.0
        demand(time > self.bound, f"A time of {time:.3f} us is impossible: the bound is {self.bound:.3f} us.")
        return Result(time, sent(record, int(values["calls"])), int(values["scratch bytes"]))


# ---- the tasks -----------------------------------------------------------------------------------------------------

TWELVE_LAYERS = (
    "--layers 64,256,64,256,256,64,128,512,128,64,32,16,8 --batch-size 32 --max-steps 3 --activation gelu --log-every 0"
)
MESH = {
    "--dp": INTEGER, "--pp": INTEGER, "--tp": INTEGER, "--cp": INTEGER, "--zero": "[0-3]", "--micro-batches": INTEGER,
    "--chunks": INTEGER, "--recompute": "none|blocks", "--hybrid": INTEGER, "--prefetch": "", "--sequence-parallel": "",
    "--no-sequence-parallel": "", "--scatter-gather": "",
}  # fmt: skip
ONE_MESH = ("--dp", "--pp", "--tp", "--zero", "--micro-batches")

TASKS: list[Task] = [
    Schedule(
        "schedule", "a pipeline schedule with little memory", 78.278, 63.134, "ms", "04", "pipeline", 4,
        "compute=1G,link=100us+20M/s",
        "--layers 192,256,256,256,256,256,256,256,64 --batch-size 64 --micro-batches 8 --max-steps 2 --activation gelu",
        "--schedule 1f1b", micro_batches=8, in_flight=3,
    ),
    Code("all_reduce", "an all-reduce over two nodes", 451.430, 278.287, "us", 8, 272.144),
    Code("all_to_all", "an exchange with one busy rank", 403.939, 282.668, "us", 8, 272.144),
    Options(
        "buckets", "which gradients are averaged together", 38.682, 36.283, "ms", "02", "ddp_overlap", 4,
        "compute=2G,link=300us+100M/s", TWELVE_LAYERS, "--bucket-mb 25",
        {"--bucket-layers": "[0-9]{1,2}(,[0-9]{1,2}){0,11}", "--bucket-mb": NUMBER},
        one_of=("--bucket-layers", "--bucket-mb"),
    ),
    Options(
        "fsdp", "FSDP with little memory", 44.689, 38.538, "ms", "06", "fsdp", 4,
        "compute=2G,link=100us+100M/s", TWELVE_LAYERS, "",
        {"--unit-layers": INTEGER, "--min-unit-parameters": INTEGER, "--prefetch": "", "--no-prefetch": "",
         "--backward-prefetch": "pre|post|none", "--reshard-after-forward": "", "--no-reshard-after-forward": ""},
        2_600_000,
    ),
    Code("tensor_overlap", "sums that hide behind products", 345.138, 230.417, "us", 4, 214.125),
    Mesh(
        "mesh", "one mesh for two clusters", 16.008, 15.561, "s",
        "--model gpt --gpus 512 --width 8192 --blocks 80 --heads 64 --kv-heads 8 --gated --mlp-width 28672 "
        "--context 8192 --vocabulary 128256 --global-batch 256 --attention blockwise",
        ("--machine h100", "--machine a100 --network-bandwidth 6"), MESH, ONE_MESH,
    ),
    Mesh(
        "mixture", "one mesh for even and for uneven experts", 8.963, 6.437, "s",
        "--model gpt --gpus 256 --width 5120 --blocks 48 --heads 40 --kv-heads 8 --gated --mlp-width 4096 "
        "--context 4096 --vocabulary 65536 --global-batch 512 --attention blockwise --machine h100 --experts 64 --top-k 6",
        ("--imbalance 1", "--imbalance 1.5"), {"--ep": INTEGER, **MESH}, ("--ep", *ONE_MESH),
    ),
    Compression(
        "compression", "send little, and still learn", 830.406, 544.503, "ms", 4, "compute=5G,link=50us+20M/s",
        "--model gpt --words 12000 --context 16 --width 32 --blocks 2 --epochs 4 --batch-size 8 --log-every 0 --lr 0.004",
        {
            "ddp_compressed": {"--compress": "none|topk|randomk|int8|sign", "--ratio": NUMBER, "--error-feedback": "",
                               "--bucket-mb": NUMBER},
            "local_sgd": {"--sync-every": INTEGER, "--outer-lr": NUMBER, "--outer-momentum": NUMBER},
            "decentralized": {"--average-at-end": ""},
        },
        2.74,
    ),
]  # fmt: skip


# ---- the scores of a clone -----------------------------------------------------------------------------------------


def kept(build: str, name: str) -> str:
    """The file with the best score of a clone; beside it is the answer."""
    return os.path.join(build, "checks", FOLDER, name + ".json")


def best_score(build: str, name: str) -> float | None:
    try:
        score = json.loads(chapters.read(kept(build, name)))["score"]
        return float(score)
    except (ValueError, KeyError, TypeError):
        return None


def keep(context: Context, task: Task, result: Result) -> None:
    """Keeps an answer that is better than the one before: in less time, with fewer bytes sent, with less memory."""
    file = kept(context.folder, task.name)
    if best_score(context.folder, task.name) is not None:
        before = json.loads(chapters.read(file))
        if [before["score"], before.get("sent", 0), before.get("memory", 0)] <= [result.score, result.sent, result.memory]:
            return
    os.makedirs(os.path.dirname(file), exist_ok=True)
    shutil.copy(task.path("mine"), os.path.join(os.path.dirname(file), f"{task.name}-{task.file}"))
    with open(file + ".part", "w", encoding="utf-8") as output:
        json.dump(asdict(result), output)
    os.replace(file + ".part", file)


def scores_of(clone: str) -> dict[str, float]:
    """The best scores in a participant's clone, by task."""
    found: dict[str, float] = {}
    for build in glob.glob(os.path.join(glob.escape(clone), "build", "*")):
        for task in TASKS:
            score = best_score(build, task.name)
            if score is not None:
                found[task.name] = min(score, found.get(task.name, score))
    return found


# ---- the verb ------------------------------------------------------------------------------------------------------


def written(score: float, unit: str) -> str:
    return f"{score:.3f} {unit}"


def told(task: Task, result: Result) -> str:
    """What the participant is told of a right answer."""
    score, par, best = (round(value, 3) for value in (result.score, task.par, task.best))
    lines = [
        f"{written(score, task.unit)} (par {written(par, task.unit)}, best known {written(best, task.unit)}); "
        f"a rank sends {result.sent:,.0f} bytes {task.per} and needs {result.memory:,} bytes of memory"
    ]
    if score < best:
        lines.append("Nobody has been better: please tell the authors of the workshop.")
    elif score == best:
        lines.append("As good as the best known answer.")
    elif score == par:
        lines.append(f"Par. The best known answer takes {(1 - best / score) * 100:.1f} % less.")
    elif score < par:
        lines.append(f"Under par. The best known answer takes {(1 - best / score) * 100:.1f} % less.")
    else:
        lines.append(f"Par takes {(1 - par / score) * 100:.1f} % less.")
    if result.note:
        lines.append(result.note)
    return "\n".join(lines)


def golf(context: Context, words: list[str]) -> int:
    rest = Words(words)
    name, which = rest.next(), "mine"
    if rest.peek() == "--solution":
        rest.next()
        which = rest.next("best")
        require(which in ("par", "best"), f"--solution is par or best, not '{which}'")
    require(not rest, f"golf takes a task, not '{rest.peek()}' too")
    require(context.backend == "cpu", "golf needs a simulated machine: add --backend cpu")
    if not name:
        width = max(len(task.title) for task in TASKS)
        print(f"{'task':<15} {'':<{width}} {'par':>12} {'best known':>12} {'yours':>12}")
        for task in TASKS:
            mine = best_score(context.folder, task.name)
            columns = [written(task.par, task.unit), written(task.best, task.unit)]
            columns.append("-" if mine is None else written(mine, task.unit))
            print(f"{task.name:<15} {task.title:<{width}} " + " ".join(f"{column:>12}" for column in columns))
        print(f"The pages are {FOLDER}/TASK/README.md. Score yours with ./workshop golf TASK")
        return 0
    task = next((one for one in TASKS if one.name == name), None)
    require(task, f"no task '{name}'; there are {' '.join(one.name for one in TASKS)}")
    assert task
    path = task.path(which)
    text_of(path)  # refuses what is no text
    try:
        result = task.judge(context, which)
    except Wrong as wrong:
        print(f"{path}: no score\n{wrong}")
        return 1
    print(told(task, result))
    if which == "mine":
        keep(context, task, result)
    return 0

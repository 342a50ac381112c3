# SPDX-License-Identifier: Apache-2.0
"""Judges a participant's program by the solution's: runs both and compares their records.

  check_exercise -n RANKS [-t SECONDS] [--todos SOURCE]... [--sources FOLDER] [--fingerprints FILE]
                 [--levels guided,blank] [--simulate MACHINE] --compare COMPARE_RUNS --solution PROGRAM --mine PROGRAM [-- OPTION...]

--simulate: on this machine (WORKSHOP_SIMULATE), where a step must not take longer than the solution's.
--levels: judges the run as if the sources were at these levels, one after the other, and not as they are. The status is
the first one's, or 2 if they disagree.

Writes verdict.txt in the working directory, and todos.txt: what is known of each TODO (compare_runs --summary).
Status: 0 right, 1 wrong, 77 a TODO is not filled in, 2 not comparable.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
import zlib

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
LAUNCH = os.path.join(ROOT, "tools", "launch")

WRONG, NOT_COMPARABLE, OPEN = 1, 2, 77
STUCK, TIMED_OUT = 86, 124  # of tools/launch

# Like launch.py, this starts a thousand times in the tests and imports only what it needs.


class Refused(Exception):
    """A wrong command line."""


class Check:
    def __init__(self, words: list[str]):
        self.ranks = self.compare = self.solution = self.mine = ""
        self.seconds = 60 * (4 if os.environ.get("WORKSHOP_BACKEND") == "cuda" else 1)  # ranks may share a GPU
        self.levels = [""]  # as the sources are
        self.machine = ""  # that is simulated
        self.of_todos: list[str] = []  # options for compare_runs
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word == "--":
                break
            if word not in ("-n", "-t", "--todos", "--sources", "--fingerprints", "--levels", "--simulate", "--compare", "--solution", "--mine"):
                raise Refused(f"unknown option '{word}'")
            if not rest:
                raise Refused(f"{word} lacks its value")
            value = rest.pop(0)
            if word == "-n":
                self.ranks = value
            elif word == "-t":
                if not value.isdecimal():
                    raise Refused(f"-t expects a number of seconds, not '{value}'")
                self.seconds = int(value)
            elif word == "--simulate":
                self.machine = value
            elif word == "--levels":
                self.levels = value.split(",")
            elif word in ("--todos", "--sources", "--fingerprints"):
                self.of_todos += [word, value]
            else:
                setattr(self, word[2:], value)
        self.options = rest
        if "--precision bf16" in " ".join(rest):  # a program is built once for each precision
            self.solution += "_bf16"
            self.mine += "_bf16"

    def patience(self) -> int:
        """How long a rank may wait for another. The watchdog should speak before the time is over, because it knows who
        waits for whom; and soon, if there is time."""
        patience = self.seconds // 3
        return patience if patience <= 10 else max(self.seconds // 6, 10)

    def limit(self, seconds: int) -> int:
        """How long a program may run: twelve seconds longer than ten times the solution's."""
        return min(12 + 10 * seconds, self.seconds)

    def key(self) -> str:
        """What the solution's record depends on, as the name of its folder."""
        about = os.stat(self.solution)
        text = "\n".join(
            [
                os.path.abspath(self.solution),
                str(about.st_mtime_ns),
                str(about.st_size),
                str(os.stat(__file__).st_mtime_ns),
                self.ranks,
                *self.options,
                self.machine,
                os.environ.get("WORKSHOP_BACKEND", ""),
            ]
        )
        return (
            f"{os.path.basename(self.solution)}.{zlib.crc32(text.encode('utf-8', 'surrogateescape')):08x}-{len(text)}"
        )


class Bounded:
    """What a program prints: the first part, in which it says what went wrong first, and the end, even of megabytes."""

    FIRST, LAST = 200000, 100000

    def __init__(self) -> None:
        self.first = self.last = b""

    def add(self, data: bytes) -> None:
        space = self.FIRST - len(self.first)
        self.first += data[: max(space, 0)]
        self.last += data[max(space, 0) :]
        if len(self.last) > 2 * self.LAST:
            self.last = self.last[-self.LAST :]

    def all(self) -> bytes:
        return self.first + self.last[-self.LAST :]


class Locked:
    """Holds a lock file as long as the with block lasts; says `message` if another process has it."""

    def __init__(self, path: str, message: str = ""):
        self._path, self._message = path, message

    def __enter__(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if self._message:
                print(self._message, file=sys.stderr, flush=True)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


class Runner:
    """Runs programs and commands, and ends them when a signal ends this process."""

    def __init__(self) -> None:
        self._pid = 0
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._end)

    def _end(self, _number: int, _frame: object) -> None:
        if self._pid:
            try:
                os.kill(self._pid, signal.SIGTERM)
                os.waitpid(self._pid, 0)
            except OSError:
                pass
        os._exit(143)

    def run(self, command: list[str], settings: dict[str, str]) -> tuple[int, bytes]:
        """The status of a command, and what it printed."""
        reader, writer = os.pipe()
        self._pid = os.posix_spawn(
            command[0],
            command,
            dict(os.environ, **settings),
            file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1), (os.POSIX_SPAWN_DUP2, writer, 2)],
        )
        os.close(writer)
        printed = Bounded()
        while data := os.read(reader, 1 << 16):
            printed.add(data)
        os.close(reader)
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        code = os.waitstatus_to_exitcode(status)
        return (code if code >= 0 else 128 - code), printed.all()


def anywhere(options: list[str]) -> list[str]:
    """The options of a check for a program that runs in any folder: a file of the checker has its whole path."""
    return [os.path.join(ROOT, word) if word.startswith("checker/") else word for word in options]


def of_ranks(record: str) -> list[str]:
    """The journals that ranks have written beside a record."""
    name = os.path.basename(record) + ".rank"
    return sorted(file for file in os.listdir(os.path.dirname(record) or ".") if file.startswith(name))


def remove(files: list[str]) -> None:
    for file in files:
        try:
            os.unlink(file)
        except FileNotFoundError:
            pass


def last_lines(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").splitlines()[-20:]
    return "\n".join(["The last lines of output:", *lines])


def run_program(
    check: Check, runner: Runner, record: str, seconds: int, program: str, settings: dict[str, str]
) -> tuple[int, bytes]:
    """Runs a program with a record and journals; its output goes to RECORD.out, too."""
    remove([record, *of_ranks(record)])
    status, output = runner.run(
        [LAUNCH, "-n", check.ranks, "-t", str(seconds), "--", program, *anywhere(check.options), "--record", record],
        {
            "WORKSHOP_TIMEOUT": str(check.patience()),
            "WORKSHOP_GRACE": "0",  # a check that is ended ends at once
            "WORKSHOP_JOURNAL": "1",
            "WORKSHOP_PROBES": "1",
            **({"WORKSHOP_SIMULATE": check.machine} if check.machine else {}),
            **settings,
        },
    )
    if status == OPEN and b"Not filled in yet" not in output:
        output = told_of_kernel(output)
    with open(record + ".out", "wb") as file:
        file.write(output)
    return status, output


def told_of_kernel(output: bytes) -> bytes:
    """The output of a program in which a kernel on a GPU came to an open TODO: CUDA has printed the TODO's number and
    place; here its text follows, as other programs print it."""
    import re

    assertion = re.compile(rb"^(.*):([0-9]+): ([0-9]+\.[0-9A-Z]+): block: .*this TODO is not filled in yet.*\n?", re.M)
    asserted = assertion.search(output)
    if not asserted:
        return output
    file, line, todo = (os.fsdecode(part) for part in asserted.groups())
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            above = [text.strip() for text in source.read().split("\n")[: int(line) - 1]]
    except OSError:
        return output
    first = len(above)
    while first > 0 and above[first - 1].startswith("//"):
        first -= 1
        if re.match(rf"// (TODO|WRITE) {re.escape(todo)}: ", above[first]):
            break
    told = ["", "Not filled in yet:", *("  " + text[3:] for text in above[first:]), f"  at {file}:{line}", ""]
    others = assertion.sub(b"", output[asserted.end() :])  # the same, of other ranks
    return output[: asserted.start()] + "\n".join(told).encode() + others


def run_solution(check: Check, runner: Runner, record: str) -> tuple[int, bytes]:
    # On a simulated machine, what the order checker gathers takes time, so both runs need it.
    order = {"WORKSHOP_ORDER": "1"} if check.machine else {}
    return run_program(check, runner, record, check.seconds, check.solution, order)


def keep_solution(check: Check, runner: Runner, kept: str) -> str | None:
    """Makes sure that `kept` has the solution's record. It lies beside the folders of the checks, for all of them that
    run the solution on as many ranks with the same options. Returns what is wrong, or None."""
    records = os.path.dirname(kept)
    os.makedirs(records, exist_ok=True)
    with Locked(kept + ".lock"):
        if os.path.exists(os.path.join(kept, "seconds")):
            return None
        remove_old(records, check.solution)
        begin = time.monotonic()
        status, output = run_solution(check, runner, "expected.jsonl")
        if status:
            return f"The solution itself failed.\n{last_lines(output)}"
        os.makedirs(kept, exist_ok=True)
        os.replace("expected.jsonl", os.path.join(kept, "record.jsonl"))
        remove(of_ranks("expected.jsonl"))
        # Others look for this file without the lock, so it appears when it is complete.
        unfinished = os.path.join(kept, "seconds.part")
        with open(unfinished, "w", encoding="ascii") as file:
            file.write(f"{int(time.monotonic() - begin)}\n")
        os.replace(unfinished, os.path.join(kept, "seconds"))
    return None


def remove_old(records: str, solution: str) -> None:
    """Removes what earlier builds of a solution have recorded."""
    name, built = os.path.basename(solution) + ".", os.stat(solution).st_mtime_ns
    for entry in os.scandir(records):
        try:
            if entry.name.startswith(name) and entry.is_dir() and entry.stat().st_mtime_ns <= built:
                for file in os.listdir(entry.path):
                    os.unlink(os.path.join(entry.path, file))
                os.rmdir(entry.path)
        except FileNotFoundError:
            pass  # another check removes it


def run_mine(check: Check, runner: Runner, limit: int, settings: dict[str, str]) -> tuple[int, bytes]:
    # Work whose order nothing defines ends it (cpu backend).
    settings = {"WORKSHOP_ORDER": "1", **settings}
    status, output = run_program(check, runner, "mine.jsonl", limit, check.mine, settings)
    if status == 1 and (b"cudaErrorIllegalAddress" in output or b"cudaErrorMisalignedAddress" in output):
        # A GPU tells of a bad address at a later call. If the host waits for each kernel, the right one is named.
        blocking = {**settings, "CUDA_LAUNCH_BLOCKING": "1"}
        again = run_program(check, runner, "mine.jsonl", limit, check.mine, blocking)
        if again[0] == 1:
            status, output = again
        else:  # some schedules of pipelines refuse to run so
            status, output = run_program(check, runner, "mine.jsonl", limit, check.mine, settings)
    return status, output


def judge(check: Check, runner: Runner, kept: str, is_new: bool) -> tuple[int, str]:
    """One run of the participant's program: status and verdict. `is_new`: the solution has just run here."""
    remove(["todos.txt"])
    with open(os.path.join(kept, "seconds"), encoding="ascii") as file:
        seconds = int(file.read())
    status, output = run_mine(check, runner, check.limit(seconds), {})
    if status in (STUCK, TIMED_OUT) and not is_new:
        wrong, now = run_solution_again(check, runner)
        if wrong:
            return NOT_COMPARABLE, wrong
        if now >= 2 * seconds + 2:  # the machine is far busier than when the solution was recorded
            limit = check.limit(now)
            patience = max(check.patience(), limit // 3)
            status, output = run_mine(check, runner, limit, {"WORKSHOP_TIMEOUT": str(patience)})
    judged, how = "mine.jsonl", []
    if not os.path.exists("mine.jsonl") or status == OPEN:
        # The program did not get to its end: there is what each rank wrote until then.
        journals = b""
        for name in of_ranks("mine.jsonl"):
            with open(name, "rb") as file:
                journals += file.read()
        if not journals and status not in (0, OPEN) and not says_what_is_wrong(output):
            return NOT_COMPARABLE, f"The program did not start, so nothing can be said of it.\n{last_lines(output)}"
        ended_early = status not in (0, OPEN, STUCK, TIMED_OUT) and b'"type":"probe"' not in journals
        if ended_early and not is_new and (wrong := run_solution_again(check, runner)[0]):
            return NOT_COMPARABLE, wrong
        judged, how = "mine.journals", ["--journals"]
        with open(judged, "wb") as file:
            file.write(journals)
    remove(of_ranks("mine.jsonl"))  # all in all, they are as large as the record
    verdict = ""
    if status == OPEN:
        text = output.decode("utf-8", "replace")
        at = text.find("Not filled in yet:")
        verdict = text[at:].rstrip("\n") + "\n" if at >= 0 and (at == 0 or text[at - 1] == "\n") else ""
    command = [
        check.compare,
        os.path.join(kept, "record.jsonl"),
        judged,
        *check.of_todos,
        "--summary",
        "todos.txt",
        "--status",
        str(status),
        "--output",
        "mine.jsonl.out",
        *how,
    ]
    statuses, texts = [], []
    for level in check.levels:
        status, said = runner.run([*command, *(["--level", level] if level else [])], {})
        statuses.append(status)
        texts.append(said.decode("utf-8", "replace").rstrip("\n"))
    if len(set(statuses)) > 1:
        texts.append(f"The levels disagree: status {', '.join(map(str, statuses))}")
        return NOT_COMPARABLE, verdict + "\n".join(texts)
    return statuses[0], verdict + "\n".join(texts)


def run_solution_again(check: Check, runner: Runner) -> tuple[str, int]:
    """What is wrong if the solution fails here as well: its record may be from another environment. And how many
    seconds it takes now."""
    begin = time.monotonic()
    status, output = run_solution(check, runner, "again.jsonl")
    seconds = int(time.monotonic() - begin)
    remove(["again.jsonl", *of_ranks("again.jsonl")])
    said = f"The solution itself fails here, so nothing can be said of your program.\n{last_lines(output)}"
    return said if status else "", seconds


def says_what_is_wrong(output: bytes) -> bool:
    """Whether a program that wrote no journal says itself what is wrong, for example that an option is bad."""
    return any(
        line.startswith((b"rank ", b"error: ", b"order: ", b"bounds: ", b"memory: ", b"verdict: ", b"Not filled in yet"))
        for line in output.splitlines()
    )


def main(words: list[str]) -> int:
    try:
        return judge_and_tell(Check(words), Runner())
    except (Refused, OSError) as error:
        print(f"check_exercise: {error}", file=sys.stderr)
        return NOT_COMPARABLE


def judge_and_tell(check: Check, runner: Runner) -> int:
    with Locked("lock", f"check_exercise: waiting for another check in {os.getcwd()}"):
        kept = os.path.join(os.path.dirname(os.getcwd()), "records", check.key())
        is_new = not os.path.exists(os.path.join(kept, "seconds"))
        wrong = keep_solution(check, runner, kept) if is_new else None
        if wrong:
            status, verdict = NOT_COMPARABLE, wrong
        elif not os.access(check.mine, os.X_OK):
            status, verdict = WRONG, (
                "The program does not compile for --precision bf16: the compiler's messages say where. Weights, activations\n"
                "and their gradients have the type Real, in kernels Reals and ConstReals, not float: model/precision.h"
            )
        else:
            status, verdict = judge(check, runner, kept, is_new)
        with open("verdict.txt", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(verdict + "\n")
    print(verdict)
    return status

# SPDX-License-Identifier: Apache-2.0
"""What the tests on the cluster of with_cluster.py share: jobs, and a count of failed expectations."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
# No command of a test takes longer, unless something is wrong.
LIMIT = 240


class Ended:
    """How a command ended, and what it printed."""

    def __init__(self, status: int, out: str):
        self.status, self.out = status, out


def run(*command: str, errors: int | None = None, **variables: str) -> Ended:
    """Runs a command with these variables. `errors`: subprocess.STDOUT takes what it prints on stderr to the rest."""
    done = subprocess.run(
        command,
        env=dict(os.environ, **variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        timeout=LIMIT,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode("utf-8", "replace"))


def said(*command: str) -> str:
    """What a command prints; what it prints on stderr is of no interest."""
    return run(*command, errors=subprocess.DEVNULL).out


def until(condition: Callable[[], object], seconds: float) -> bool:
    """Waits until a condition is true. Returns whether it is, after at most so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True


def matches(regex: str, text: str) -> bool:
    """Whether a line of the text matches."""
    return any(re.search(regex, line) for line in text.split("\n"))


def fields(text: str) -> dict[str, str]:
    """What 'scontrol show job' prints, by name. A value that has a space is cut there."""
    found: dict[str, str] = {}
    for name, value in re.findall(r"(?:^|\s)([A-Za-z:/]+)=(\S*)", text):
        found.setdefault(name, value)
    return found


def job_in(text: str) -> str:
    """The number of the job that './workshop submit' says it has submitted."""
    found = re.search(r"^Job ([0-9]+), output in ", text, re.M)
    return found[1] if found else ""


def is_crash_of_mpi_init(text: str) -> bool:
    """With Debian's Slurm, PMIx and Open MPI, a rank occasionally receives a message while it is still in MPI_Init, and
    calls a null pointer (https://github.com/open-mpi/ompi/issues/12495). Our scripts do not cause this, so the job is
    repeated."""
    return "Failing at address: (nil)" in text


def environments() -> Iterator[tuple[int, bytes]]:
    """All processes that may be looked at, and the environment that each was started with: "\0NAME=VALUE\0…\0"."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    yield int(name), b"\0" + file.read() + b"\0"
            except OSError:
                pass  # it has ended, or belongs to another user


def command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


class Checks:
    """Counts what is not as expected, and prints it at once."""

    def __init__(self) -> None:
        self.failures = 0

    def fail(self, text: str) -> None:
        print(text, flush=True)
        self.failures += 1

    def expect(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self.fail(f"{what}: '{found}', expected '{expected}'")

    def expect_line(self, what: str, regex: str, text: str) -> None:
        if not matches(regex, text):
            self.fail(f"{what}: nothing matches '{regex}' in\n{text}")

    def run_parts(self, parts: list[Callable[[], None]], wanted: list[str], success: str) -> int:
        """Calls these functions, or those among them whose names are wanted. Returns the status of the test."""
        for part in parts:
            if not wanted or part.__name__ in wanted:
                try:
                    part()
                except (subprocess.SubprocessError, OSError) as error:
                    self.fail(f"{part.__name__}: {error}")
        if not self.failures:
            print(success)
        return int(self.failures > 0)


class Cluster(Checks):
    """The cluster that with_cluster.py starts, and its jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = os.environ["CLUSTER"]

    def path(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)

    def read(self, name: str) -> str:
        """A file of the cluster's folder; "" if it is not there (yet)."""
        try:
            with open(self.path(name), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def write(self, name: str, text: str, executable: bool = False) -> str:
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        if executable:
            os.chmod(self.path(name), 0o755)
        return self.path(name)

    # ---- jobs ----

    def submit(self, *words: str, **variables: str) -> str:
        """Calls sbatch. Returns the number of the job."""
        return run("sbatch", "--parsable", *words, **variables).out.strip()

    def output(self, job: str) -> str:
        return self.read(f"{job}.out")

    def says(self, job: str, regex: str) -> None:
        """Expects such a line in its output, which may arrive a little later than the news that it has ended."""
        until(lambda: matches(regex, self.output(job)), 10)
        self.expect_line(f"job {job}", regex, self.output(job))

    @staticmethod
    def of_job(job: str) -> dict[str, str]:
        """What Slurm knows of it."""
        return fields(said("scontrol", "show", "job", job))

    def state(self, job: str) -> str:
        return self.of_job(job).get("JobState", "")

    def _again(self, job: str) -> bool:
        """Requeues the job if the crash has ended it; once it trains, it is no longer in MPI_Init. Returns whether."""
        text = self.output(job)
        if self.state(job) != "FAILED" or not is_crash_of_mpi_init(text) or matches("^epoch", text):
            return False
        print(f"job {job} once more: a crash in MPI_Init", flush=True)
        return all(
            run(*command).status == 0
            for command in (("scontrol", "requeue", job), ("scontrol", "update", f"JobId={job}", "StartTime=now"))
        )

    def ends(self, job: str, seconds: float, state: str, status: int | None = None) -> None:
        """Expects that the job ends in time, with this state."""
        until(lambda: self.state(job) not in ("PENDING", "RUNNING", "COMPLETING") and not self._again(job), seconds)
        found = self.of_job(job)
        self.expect(f"job {job}", found.get("JobState", ""), state)
        if status is not None:
            self.expect(f"job {job}: status", found.get("ExitCode"), f"{status}:0")

    def starts(self, job: str) -> None:
        """Waits until the job trains."""

        def trains() -> bool:
            self._again(job)
            return matches("^epoch", self.output(job))

        if not until(trains, 60):
            self.fail(f"job {job}: '{self.state(job)}', expected a job that trains")

    # ---- processes ----

    def processes(self, job: str, rank: int | None = None) -> list[int]:
        """The processes of a job, or of one of its ranks."""

        def has(environment: bytes, name: str, value: object) -> bool:
            return f"\0{name}={value}\0".encode() in environment

        found = []
        for pid, environment in environments():
            if not has(environment, "SLURM_CONF", self.path("slurm.conf")):
                continue
            if has(environment, "SLURM_JOB_ID", job) and (rank is None or has(environment, "SLURM_PROCID", rank)):
                found.append(pid)
            elif rank is None and f"slurmstepd: [{job}.".encode() in command_line(pid):
                found.append(pid)
        return found

    def nothing_left(self, job: str) -> None:
        until(lambda: not self.processes(job), 30)
        self.expect(f"job {job}: left behind", self.processes(job), [])

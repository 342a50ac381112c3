# SPDX-License-Identifier: Apache-2.0
"""The job of './workshop doctor --cluster', on its first node (slurm/doctor). It tests one thing after another and
prints a line for each: ok, or WRONG and what to do about it. Status 1 if something is wrong."""

from __future__ import annotations

import glob
import os
import re
import subprocess
import tempfile
import time

from . import processes

# look FOLDER TOKEN PROGRAM INTERFACE BACKEND: prints what a node sees, as lines "NODE WHAT VALUE". It is shell, which
# srun takes along as text: a node may not see the shared folder, and may lack Python.
LOOK = r"""look() {
  echo "time $(date +%s.%N)"
  text=''
  { read -r text <"$1/$2"; } 2>/dev/null
  [ "$text" = "$2" ] && touch "$1/$2.$SLURMD_NODENAME" && echo folder
  [ -x "$3" ] && echo program
  ldd "$3" 2>/dev/null | sed -n 's/^[[:space:]]*\(.*\) => not found/library \1/p'
  [ ! "$4" ] || [ -e "/sys/class/net/$4" ] || echo "interfaces $(cd /sys/class/net && echo *)"
  [ "$5" = cuda ] || return 0
  what=index,name
  for reason in hw_slowdown hw_thermal_slowdown hw_power_brake_slowdown; do
    what=$what,clocks_throttle_reasons.$reason
  done
  nvidia-smi --query-gpu=$what --format=csv,noheader | sed 's/^/gpu /'
}
look "$@" 2>&1 | sed "s/^/$SLURMD_NODENAME /" """

# A link is wrong if it reaches less than this share of the bandwidth that slurm/site.sh expects.
LEAST_SHARE = 0.7
TIMED_OUT = 124  # a status, as that of the command timeout


class Job:
    """The job that this runs in, and what slurm/site.sh says of the cluster."""

    def __init__(self, environment: dict[str, str], nodes: list[str]):
        self.environment = environment
        self.id = environment["SLURM_JOB_ID"]
        self.nodes = nodes
        self.per_node = int(environment["SLURM_NTASKS"]) // len(nodes)
        self.backend = environment["WORKSHOP_BACKEND"]
        self.interface = environment["WORKSHOP_INTERFACE"]
        # As the shell names it: where its links lead to may have another name on other nodes.
        self.folder = environment.get("PWD") or os.getcwd()
        self.programs = os.path.join(os.path.realpath(environment["WORKSHOP_BUILD"]), "solutions", "00_collectives")


class Said:
    """How a command ended, and what it printed on stdout and stderr."""

    def __init__(self, status: int, text: str):
        self.status, self.text = status, text

    def last_line(self) -> str:
        return (self.text.rstrip("\n").split("\n"))[-1]

    def lines_of_srun(self) -> list[str]:
        return [line for line in self.text.split("\n") if line.startswith("srun: ")]

    def reason(self) -> str:
        """Why it failed. The program's own message is more helpful than srun's."""
        for line in self.text.split("\n"):
            if not line.startswith("srun: ") and re.search("^WRONG: |error|verdict", line):
                return line
        return self.last_line()


def say(command: list[str], seconds: float, **variables: str) -> Said:
    """Runs a command with these variables, and ends it after so many seconds, with all that it has started."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, **variables),
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            processes.stop_all([process.pid], 10)
            process.wait(10)
            status = TIMED_OUT
        output.seek(0)
        return Said(status if status >= 0 else 128 - status, output.read().decode("utf-8", "replace"))


# ---- what the nodes have said --------------------------------------------------------------------------------------


class Seen:
    """What each node sees: the lines of LOOK."""

    def __init__(self, text: str):
        self._values: dict[tuple[str, str], list[str]] = {}
        for line in text.split("\n"):
            node, _, rest = line.partition(" ")
            what, _, value = rest.partition(" ")
            self._values.setdefault((node, what), []).append(value)

    def all(self, node: str, what: str) -> list[str]:
        return self._values.get((node, what), [])

    def has(self, node: str, what: str) -> bool:
        return bool(self.all(node, what))

    def one(self, node: str, what: str) -> str:
        return (self.all(node, what) or [""])[0]


def differing_clocks(seen: Seen, nodes: list[str], before: float, after: float) -> list[str]:
    """The nodes whose clocks differ from this node's, and by how much. Each read its clock between two readings of this
    node's clock; a second more than that is a difference."""
    found = []
    for node in nodes:
        clock = float(seen.one(node, "time"))
        off = clock - after if clock > after + 1 else clock - before if clock < before - 1 else 0
        if off:
            found.append(f"{node} by {off:.0f} s")
    return found


def few_gpus(seen: Seen, nodes: list[str], wanted: int) -> list[str]:
    """The nodes with fewer GPUs than wanted, and how many they have."""
    return [f"{node} {len(seen.all(node, 'gpu'))}" for node in nodes if len(seen.all(node, "gpu")) < wanted]


def slow_gpus(seen: Seen, nodes: list[str]) -> list[str]:
    """The GPUs that nvidia-smi says are slowed down for a reason of LOOK."""
    return [f"{node} GPU {gpu.split(',')[0]}" for node in nodes for gpu in seen.all(node, "gpu") if ", Active" in gpu]


def bandwidth_of(text: str) -> str:
    """What the program bandwidth printed, in GB/s, for its message of 64 MiB; "" if nothing."""
    for line in text.split("\n"):
        words = line.split()
        if len(words) > 3 and words[0] == str(64 << 20):
            return words[3]
    return ""


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


# ---- the doctor ----------------------------------------------------------------------------------------------------


class Finished(Exception):
    """Nothing after this can be tried."""


class Doctor:
    def __init__(self, job: Job):
        self.job = job
        self.token = f"runs/doctor.{job.id}"  # a file that all nodes have to see
        self.status = 0

    @staticmethod
    def ok(what: str, text: str) -> None:
        print(f"ok     {what:<8} {text}", flush=True)

    def wrong(self, what: str, text: str) -> None:
        print(f"WRONG  {what:<8} {text}", flush=True)
        self.status = 1

    @staticmethod
    def skipped(what: str, text: str) -> None:
        print(f"-      {what:<8} {text}", flush=True)

    def examine(self) -> int:
        """Tries everything. Returns the status."""
        job = self.job
        print(
            f"Job {job.id}: {len(job.nodes)} node(s), {' '.join(job.nodes)}, with {job.per_node} task(s) each; "
            f"backend {job.backend}",
            flush=True,
        )
        try:
            self._each_node()
            self._all_nodes()
            self._links()
        except Finished:
            pass
        finally:
            for file in glob.glob(glob.escape(self.token) + "*"):
                os.unlink(file)
        if not self.status:
            print("All is well", flush=True)
        return self.status

    # ---- every node by itself ----

    def _each_node(self) -> None:
        job = self.job
        try:
            os.makedirs("runs", exist_ok=True)
            with open(self.token, "w", encoding="ascii") as file:
                file.write(self.token + "\n")
        except OSError:
            self.wrong("folders", f"the first node cannot write to {job.folder}/runs")
            raise Finished from None
        before = time.time()
        said = say(
            [
                "srun",
                f"--nodes={len(job.nodes)}",
                f"--ntasks={len(job.nodes)}",
                "--ntasks-per-node=1",
                "--overlap",
                "--mpi=none",
                "--chdir=/",
                "sh",
                "-c",
                LOOK,
                "look",
                job.folder,
                self.token,
                os.path.join(job.programs, "hello"),
                job.interface,
                job.backend,
            ],
            60,
        )
        after = time.time()
        seen = Seen(said.text)
        self._launch(said, seen)
        self._folders(seen)
        for node in job.nodes:
            self._programs(seen, node)
        self._clocks(seen, before, after)
        if job.backend == "cuda":
            self._gpus(seen)
        if self.status:
            self.skipped("NCCL", "not tried, and neither are the links: first fix the errors above")
            raise Finished

    def _launch(self, said: Said, seen: Seen) -> None:
        silent = [node for node in self.job.nodes if not seen.has(node, "time")]
        if silent:
            self.wrong(
                "launch",
                f"srun cannot start tasks on {' '.join(silent)}: {(said.lines_of_srun() or [''])[0]}; "
                f"'scontrol show node {silent[0]}' shows the reason",
            )
            raise Finished
        self.ok("launch", "srun starts tasks on all nodes")

    def _folders(self, seen: Seen) -> None:
        nodes, folder = self.job.nodes, self.job.folder
        apart = [node for node in nodes if not (seen.has(node, "folder") and self._has_written(node))]
        if apart:
            self.wrong(
                "folders",
                f"{' '.join(apart)} and {nodes[0]} do not share {folder}: clone the workshop to a "
                "file system that all nodes see",
            )
        else:
            self.ok("folders", f"all nodes see and write {folder}")

    def _has_written(self, node: str) -> bool:
        """Whether this node sees what another has written, which may take some seconds on a network file system."""
        deadline = time.monotonic() + 10
        while not os.path.exists(f"{self.token}.{node}"):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def _programs(self, seen: Seen, node: str) -> None:
        libraries, interfaces = seen.all(node, "library"), seen.one(node, "interfaces")
        if not seen.has(node, "program"):
            self.wrong(
                "programs",
                f"{node} has no {self.job.programs}/hello: WORKSHOP_BUILD must be a folder that all nodes see",
            )
        elif libraries:
            self.wrong(
                "programs",
                f"{node} lacks {' '.join(libraries)}: load the modules that the programs were built "
                "with in slurm/site.sh",
            )
        if interfaces:
            self.wrong(
                "network",
                f"{node} has no interface {self.job.interface}, but {interfaces}: set "
                "WORKSHOP_INTERFACE in slurm/site.sh",
            )

    def _clocks(self, seen: Seen, before: float, after: float) -> None:
        ahead = differing_clocks(seen, self.job.nodes, before, after)
        if ahead:
            self.wrong(
                "clocks",
                f"the clocks differ from {self.job.nodes[0]}'s: {', '.join(ahead)}; file times and timelines will be "
                "wrong: ask the administrators to check NTP",
            )
        else:
            self.ok("clocks", f"the nodes' clocks agree within {after - before + 1:.0f} s")

    def _gpus(self, seen: Seen) -> None:
        nodes, wanted = self.job.nodes, self.job.per_node
        few, slow = few_gpus(seen, nodes, wanted), slow_gpus(seen, nodes)
        if few:
            self.wrong(
                "GPUs", f"fewer GPUs than the job's {wanted} tasks per node: {','.join(few)} (run nvidia-smi there)"
            )
        elif slow:
            self.wrong(
                "GPUs",
                f"slowed down by heat or power: {', '.join(slow)}; run 'nvidia-smi -q -d PERFORMANCE' there, and ask "
                "the administrators",
            )
        else:
            self.ok("GPUs", f"{wanted} or more on every node, none slowed down by heat or power")

    # ---- all nodes together ----

    def _all_nodes(self) -> None:
        mpi = self.job.environment["WORKSHOP_SRUN_MPI"]
        linked = say(["ldd", os.path.join(self.job.programs, "hello")], 30).text
        if "libmpi" in linked:
            known = say(["srun", "--mpi=list"], 30).text
            if mpi not in re.findall(r"\w+", known):
                kinds = " ".join(re.findall(r"^[ \t]+([a-z0-9_]+)$", known, re.M))
                self.wrong("launch", f"srun has no --mpi={mpi} but {kinds}: set WORKSHOP_SRUN_MPI in slurm/site.sh")
                raise Finished
        said = self._try([], "hello", [])
        if said.status:
            self.wrong(
                "NCCL",
                f"hello on all ranks ends with status {said.status}: {said.reason()}; './workshop "
                "submit 00 hello --solution --wait' shows the whole output, slurm/README.md says what to check",
            )
            raise Finished
        self.ok("NCCL", f"{(re.findall('NCCL [0-9.]+', said.text) or [''])[0]}: {said.last_line()}")

    def _try(self, size: list[str], program: str, options: list[str]) -> Said:
        """Runs a program of chapter 00 on ranks of all nodes, or on those that slurm/step's options select."""
        patience = os.environ.get("WORKSHOP_TIMEOUT") or "30"
        return say(
            ["slurm/step", *size, "--", os.path.join(self.job.programs, program), *options],
            90,
            WORKSHOP_TIMEOUT=patience,
        )

    def _links(self) -> None:
        nodes = self.job.nodes
        if self.job.per_node >= 2:
            self._link(f"two ranks of {nodes[0]}", 1, "WORKSHOP_NODE_GBS")
        if len(nodes) >= 2:
            self._link(f"{nodes[0]} and {nodes[1]}", 2, "WORKSHOP_NETWORK_GBS")

    def _link(self, name: str, nodes: int, variable: str) -> None:
        """Measures the bandwidth between two ranks that both send, and compares it with what the variable expects."""
        said = self._try(
            ["-n", "2", "-N", str(nodes)], "bandwidth", ["--op", "send_recv", "--min-kib", "65536", "--max-mib", "64"]
        )
        measured, expected = bandwidth_of(said.text), self.job.environment[variable]
        if said.status or number(measured) is None:
            self.wrong("links", f"{name}: bandwidth fails: {said.last_line()}")
        elif not expected:
            self.ok("links", f"{name}: {measured} GB/s each way; to compare it, set {variable} in slurm/site.sh")
        elif number(expected) is None:
            self.wrong(
                "links", f"{name}: {measured} GB/s each way, but {variable} in slurm/site.sh is no number: '{expected}'"
            )
        elif number(measured) >= LEAST_SHARE * number(expected):
            self.ok("links", f"{name}: {measured} GB/s each way, expected {expected}")
        else:
            self.wrong(
                "links",
                f"{name}: {measured} GB/s each way, expected {expected}: 'NCCL_DEBUG=INFO ./workshop "
                f"submit 00 bandwidth --solution --wait' names interface and transport ({variable})",
            )


def main(_words: list[str]) -> int:
    nodes = say(["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]], 30).text.split()
    return Doctor(Job(dict(os.environ), nodes)).examine()

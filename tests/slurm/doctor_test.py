# SPDX-License-Identifier: Apache-2.0
"""doctor_test.py BUILD [PART]...: tests './workshop doctor --cluster', 'submit --check' and 'submit --report' on the
cluster that with_cluster.py starts. Faults are planted on one node only: its daemon, and hence its tasks, see different
files in a mount namespace of its own. PART: only these functions of the class below."""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import jobs

WORKSHOP = "./workshop"


class DoctorTest(jobs.Cluster):
    def __init__(self, build: str):
        super().__init__()
        self.build = build

    def doctor(self, status: int, wrong: int, *regexes: str, **variables: str) -> None:
        """Expects this status, so many lines that say WRONG, and lines that match."""
        for _ in range(3):
            said = jobs.run(WORKSHOP, "doctor", "--cluster", "--gpus", "2", errors=subprocess.STDOUT, **variables)
            if "Segmentation fault" not in said.out and not jobs.is_crash_of_mpi_init(said.out):
                break
        found = (said.status, len(re.findall("^WRONG", said.out, re.M)))
        if found != (status, wrong):
            self.fail(f"doctor: status and lines that say WRONG: {found}, expected {(status, wrong)}\n{said.out}")
        for regex in regexes:
            self.expect_line("doctor", regex, said.out)
        self.expect("files that the doctor has left", glob.glob("runs/doctor.*"), [])

    # ---- a healthy cluster, and wrong settings ----

    def healthy_cluster(self) -> None:
        self.doctor(
            0,
            0,
            "^ok +launch +srun starts tasks on all nodes$",
            f"^ok +folders +all nodes see and write {jobs.ROOT}$",
            "^ok +clocks +the nodes. clocks agree within [0-9]+ s$",
            "^ok +NCCL +NCCL [0-9.]+: The job uses what it was given: nodes 2, ranks 4, devices 4$",
            "^ok +links +two ranks of node1: [0-9.]+ GB/s each way, expected 0.001$",
            "^ok +links +node1 and node2: [0-9.]+ GB/s each way; to compare it, set WORKSHOP_NETWORK_GBS",
            "^All is well$",
            WORKSHOP_NODE_GBS="0.001",
        )

    def wrong_settings(self) -> None:
        self.doctor(
            1, 1, "^WRONG +links +node1 and node2: [0-9.]+ GB/s each way, expected 1000: ", WORKSHOP_NETWORK_GBS="1000"
        )
        self.doctor(
            1,
            2,
            "^WRONG +network +node2 has no interface nosuch0, but .*lo.*: set WORKSHOP_INTERFACE",
            WORKSHOP_INTERFACE="nosuch0",
        )
        self.doctor(
            1,
            1,
            r"^WRONG +launch +srun has no --mpi=pmi9 but (\w+ )*pmix( \w+)*: set WORKSHOP_SRUN_MPI",
            WORKSHOP_SRUN_MPI="pmi9",
        )

    # ---- a node that differs from the other ----

    def node2_with(self, mount: list[str]) -> None:
        """Restarts its daemon, after a command in a mount namespace of its own."""
        os.kill(int(self.read("node2.pid")), signal.SIGTERM)
        jobs.until(lambda: not os.path.exists(self.path("node2.pid")), 30)
        started = jobs.run(
            "unshare", "--mount", "--propagation", "private", "sh", "-c", f"{shlex.join(mount)} && exec slurmd -N node2"
        )
        idle = jobs.until(lambda: jobs.said("sinfo", "-h", "-n", "node2", "-o", "%t") == "idle\n", 60)
        if started.status or not idle:
            self.fail(f"node2 does not start with '{shlex.join(mount)}': status {started.status}")

    def node_that_differs(self) -> None:
        if jobs.run("unshare", "--mount", "true", errors=subprocess.DEVNULL).status:
            print("no node differs from the other: mount namespaces are not allowed here", flush=True)
            return
        self.node2_with(["mount", "-t", "tmpfs", "none", jobs.ROOT])
        # Below the workshop's folder, the programs are hidden too.
        wrong = 2 if os.path.realpath(self.build).startswith(jobs.ROOT + "/") else 1
        self.doctor(1, wrong, f"^WRONG +folders +node2 and node1 do not share {jobs.ROOT}: ", "^- +NCCL +not tried")

        date = os.path.realpath(shutil.which("date") or "")
        shutil.copy(date, self.path("date"))
        late = self.write("date.late", f'#!/bin/sh\nexec "{self.path("date")}" -d "1 hour" "$@"\n', executable=True)
        self.node2_with(["mount", "--bind", late, date])
        self.doctor(1, 1, "^WRONG +clocks +the clocks differ from node1's: node2 by 3[56][0-9][0-9] s; ")

        hello = os.path.join(self.build, "solutions", "00_collectives", "hello")
        self.node2_with(["mount", "--bind", "/bin/false", hello])
        self.doctor(1, 1, "^WRONG +NCCL +hello on all ranks ends with status 1: ")
        self.node2_with(["true"])

    # ---- submit ----

    def submit_check(self) -> None:
        """It says and ends with what './workshop check' does here."""
        expected = jobs.run(WORKSHOP, "check", "00.1", errors=subprocess.DEVNULL)
        # What the job says on stderr, of builds and of waiting for other checks, goes to a file of its own.
        found = jobs.run(
            WORKSHOP, "submit", "00.1", "--check", "--gpus", "2", "--wait", SBATCH_ERROR=self.path("%j.err")
        )
        self.expect("submit --check", found.status, expected.status)
        lines = found.out.split("\n")[2:]  # the first two are submit's
        self.expect("submit --check: output", "\n".join(lines), expected.out)
        refused = jobs.run(WORKSHOP, "submit", "02", "--check", "--nodes", "2", errors=subprocess.STDOUT)
        self.expect_line("submit --check --nodes", "it runs on one node$", refused.out)
        refused = jobs.run(WORKSHOP, "submit", "02.1", errors=subprocess.STDOUT)
        self.expect_line("submit TODO", r"no chapter '02\.1'", refused.out)

    def submit_report(self) -> None:
        """The job writes a record and a timeline, and the report's page if there is plotly."""
        found = jobs.run(
            WORKSHOP,
            "submit",
            "02",
            "--nodes",
            "1",
            "--gpus",
            "2",
            "--solution",
            "--report",
            "--wait",
            "--",
            "--max-steps",
            "4",
        )
        self.expect("submit --report", found.status, 0)
        self.expect_line("submit --report", "^epoch", found.out)
        files = f"runs/report/job-{jobs.job_in(found.out)}"
        has_plotly = jobs.run("tools/report/python_with_plotly", errors=subprocess.DEVNULL).status == 0
        for ending in [".jsonl", ".json"] + ([".html"] if has_plotly else []):
            if not (os.path.exists(files + ending) and os.path.getsize(files + ending)):
                self.fail(f"submit --report: no {files + ending}\n{found.out}")
        if not has_plotly:
            self.expect_line("submit --report", "^With plotly installed, './workshop report ", found.out)
        for file in glob.glob(glob.escape(files) + ".*"):
            os.unlink(file)


def main(words: list[str]) -> int:
    os.chdir(jobs.ROOT)
    test = DoctorTest(words[0])
    os.environ.update(
        WORKSHOP_BACKEND="cpu",
        WORKSHOP_BUILD=words[0],
        WORKSHOP_INTERFACE="lo",
        OMPI_MCA_btl="self,tcp",
        SBATCH_OUTPUT=test.path("%j.out"),
    )
    return test.run_parts(
        [
            test.healthy_cluster,
            test.wrong_settings,
            test.node_that_differs,
            test.submit_check,
            test.submit_report,
        ],
        words[1:],
        "The doctor finds what is wrong, and nothing else",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""jobs_test.py BUILD COMPARE_TRAINING [PART]...: tests slurm/ and './workshop submit' on the cluster that
with_cluster.py starts. PART: only these functions of the class below.

Every chapter's script runs the solution, which is compared with the same run through tools/launch, and the exercise as
handed out. Then come jobs side by side, jobs without MPI, jobs that save their state before their time limit, and jobs
that lose a rank, are cancelled, or lose a node.
"""

from __future__ import annotations

import glob
import os
import re
import signal
import subprocess
import sys
import time

import jobs
from jobs import run

# Chapter, program, ranks that its script asks for, options.
CHAPTERS = [
    ("00_collectives", "collectives", 4, []),
    ("01_single_gpu", "mlp", 1, []),
    ("02_ddp", "ddp", 4, []),
    ("03_model_parallel", "model_parallel", 2, []),
    ("04_pipeline", "pipeline", 2, []),
    ("05_tensor_parallel", "tensor_parallel", 2, []),
    ("06_fsdp", "zero", 4, ["--stage", "3"]),
    ("07_3d", "train_3d", 4, ["--dp", "2", "--tp", "2"]),
    ("08_context_parallel", "ring_attention", 4, ["--words", "4000", "--max-steps", "3", "--optimizer", "sgd"]),
    ("09_expert_parallel", "moe_parallel", 4, ["--words", "4000", "--max-steps", "3", "--optimizer", "sgd"]),
    ("10_less_communication", "decentralized", 4, ["--average-at-end"]),  # else each replica has values of its own
]
# Parallel sums may differ in the order of their terms. This is the tightest bound of the chapters' own tests.
BOUND = "2e-5"
ENDLESS = ["--samples", "65536", "--epochs", "1000000", "--no-shuffle", "--log-every", "0"]

# Prints all that a program for the cuda backend needs to start.
SAYS_ALL = """\
#!/usr/bin/env bash
echo "rank $SLURM_PROCID of $SLURM_NTASKS, $SLURM_LOCALID on its node, meets at $MASTER_ADDR $NCCL_SOCKET_IFNAME $*"
((SLURM_PROCID)) || echo "ports $MASTER_PORT $NCCL_RAS_ADDR" "gpus ${CUDA_VISIBLE_DEVICES-}" "pmi ${PMIX_RANK-none}"
echo "token $WORKSHOP_JOB_TOKEN"
sleep 3
"""


# Like a program with --checkpoints FOLDER that trains until it is asked to save its state; its next start ends the
# training. The ranks do not end at the same time, so srun could end those that have not saved yet.
SAVES = """\
#!/usr/bin/env bash
save() { sleep "$SLURM_PROCID"; echo "rank $SLURM_PROCID has saved"; ((SLURM_PROCID)) || touch "$1/saved"; exit 75; }
folder=$2 saved=no
[[ $1 != --checkpoints ]] || trap 'save "$folder"' USR1
[[ ! -e $folder/saved ]] || saved=yes
echo "epoch, rank $SLURM_PROCID, saved: $saved"
while [[ $saved == no && ! -e $folder/enough ]]; do sleep 0.1; done
"""


class JobsTest(jobs.Cluster):
    def __init__(self, build: str, compare: str):
        super().__init__()
        self.build = build
        self.compare = compare

    def solution(self, chapter: str, program: str) -> str:
        return os.path.join(self.build, "solutions", chapter, program)

    def launch(self, ranks: int, program: str, *options: str, errors: int | None = None) -> jobs.Ended:
        """Runs a program without Slurm."""
        return run("tools/launch", "-n", str(ranks), "--", program, *options, errors=errors)

    def same_training(self, what: str, expected: str, found: str) -> None:
        """The records agree."""
        verdict = run(self.compare, "--compare", self.path(expected), self.path(found), BOUND, errors=subprocess.STDOUT)
        if verdict.status:
            self.fail(f"{what}: {verdict.out}")

    # ---- every chapter, the solution and the exercise ----

    def every_chapter(self) -> None:
        solutions, exercises = {}, {}
        for chapter, program, _, options in CHAPTERS:
            script = f"slurm/{chapter}.sbatch"
            named = (
                ["collectives"] if program == "collectives" else []
            )  # its script starts a different program by default
            solutions[chapter] = self.submit(
                script, *named, "--solution", *options, "--record", self.path(f"{chapter}.found")
            )
            exercises[chapter] = self.submit(script, program, *options)
        for chapter, program, ranks, options in CHAPTERS:
            self._solution(solutions[chapter], chapter, program, ranks, options)
            self._exercise(exercises[chapter], chapter, program, ranks, options)

    def _solution(self, job: str, chapter: str, program: str, ranks: int, options: list[str]) -> None:
        """It trains as without Slurm."""
        path = self.solution(chapter, program)
        expected = self.launch(ranks, path, *options, "--record", self.path(f"{chapter}.expected"))
        self.expect(f"{chapter} without Slurm", expected.status, 0)
        self.ends(job, 60, "COMPLETED", 0)
        self.says(job, rf"^Job {job}: {path} .* on {ranks} rank\(s\) of node[12]( node2)?, srun --mpi=pmix, node[12]:")
        if program == "collectives":  # it trains nothing
            self.expect(chapter, self.output(job).partition("\n")[2], expected.out)
        else:
            self.same_training(chapter, f"{chapter}.expected", f"{chapter}.found")

    def _exercise(self, job: str, chapter: str, program: str, ranks: int, options: list[str]) -> None:
        """It ends as it does without Slurm: with 77, unless its TODOs are filled in."""
        status = self.launch(
            ranks, os.path.join(self.build, chapter, program), *options, errors=subprocess.STDOUT
        ).status
        self.ends(job, 60, "FAILED" if status else "COMPLETED", status)
        if status == 77:
            self.says(job, rf"TODO {chapter.partition('_')[0]}\.[0-9]+")

    def places(self) -> None:
        """hello, the default of chapter 00's script; and a script that fails to call the program with srun."""
        job = self.submit("slurm/00_collectives.sbatch", "--solution")
        self.ends(job, 60, "COMPLETED", 0)
        self.says(job, "^rank 3 of 4 on node2, local rank 1 of 2: device 1 of 64, CPU")
        self.says(job, "^The job uses what it was given: nodes 2, ranks 4, devices 4$")
        job = self.submit(
            "--nodes=1",
            "--ntasks-per-node=2",
            "--gpus-per-node=2",
            f"--output={self.path('%j.out')}",
            f"--wrap={self.solution('00_collectives', 'hello')}",
            WORKSHOP_DEVICE_COUNT="2",
        )
        self.ends(job, 60, "FAILED", 1)
        self.says(
            job,
            "^warning: this node has 2 GPUs for this job and 1 rank: 1 stays idle; "
            ".*srun --ntasks-per-node=2.*--gpus-per-node=1",
        )
        self.says(job, "^WRONG: Slurm has given the job 2 tasks, and 1 of them run this program: start it with srun$")

    def first_rank_that_fails(self) -> None:
        """The status is that rank's, not that of the ranks that are ended because of it. --tp 2 needs a node with two
        ranks."""
        job = self.submit("--ntasks-per-node=1", "slurm/07_3d.sbatch", "--solution", "--tp", "2")
        self.ends(job, 60, "FAILED", 2)
        self.says(job, "error: --tp is '2', .* on several nodes")

    # ---- ./workshop submit ----

    def submit_and_wait(self) -> None:
        """On one node, where the crash has not been seen: the status of 'submit' is not tested a second time."""
        said = run(
            "./workshop",
            "submit",
            "02",
            "ddp_overlap",
            "--nodes",
            "1",
            "--gpus",
            "2",
            "--solution",
            "--wait",
            "--",
            "--epochs",
            "2",
        )
        self.expect("submit --wait", said.status, 0)
        job = jobs.job_in(said.out)
        self.ends(job, 0, "COMPLETED", 0)
        self.expect("submit: what it follows", said.out.split("\n", 2)[-1], self.output(job))
        self.says(job, r"/solutions/02_ddp/ddp_overlap --epochs 2 on 2 rank\(s\) of node[12],")
        said = run("./workshop", "submit", "04", "--solution", "--wait", "--", "--micro-batches", "5")
        self.expect("submit --wait: bad option", said.status, 2)

    def submit_and_go_on(self) -> None:
        said = run("./workshop", "submit", "04", "--solution", WORKSHOP_SRUN_MPI="none")
        self.expect("submit: status and lines", (said.status, said.out.count("\n")), (0, 1))
        job = jobs.job_in(said.out)
        self.ends(job, 60, "FAILED", 2)
        self.says(job, "error: the cpu backend needs mpirun or srun --mpi=pmix to start several ranks")

    # ---- ./workshop scaling in a job ----

    def scaling(self) -> None:
        """Its runs are steps 0, 1 and 2 of the job, on 1, 2 and 4 ranks, each on as few nodes as possible."""
        file = self.path("scaling.json")
        for _ in range(3):
            said = run(
                "salloc",
                "--nodes=2",
                "--ntasks-per-node=2",
                "./workshop",
                "scaling",
                "02",
                "--solution",
                "--json",
                file,
                "--",
                "--epochs",
                "2",
                errors=subprocess.STDOUT,
            )
            if not jobs.is_crash_of_mpi_init(said.out):
                break
        self.expect("scaling in a job", said.status, 0)
        job = (re.findall("^salloc: Granted job allocation (.*)", said.out, re.M) or ["0"])[0]
        self.expect_line("scaling", rf"^Slurm job {job}: up to 2 rank\(s\) on each of 2 node\(s\)$", said.out)
        self.expect("scaling: ranks", re.findall("^ *([0-9]+) .* MiB$", said.out, re.M), ["1", "2", "4"])
        self.expect(
            "scaling: ranks in JSON", re.findall('"ranks": ([0-9]+)', self.read("scaling.json")), ["1", "2", "4"]
        )
        for node, steps in (("node1", ["0", "1", "2"]), ("node2", ["2"])):
            found = re.findall(rf"launch task StepId={job}\.([0-9]+)", self.read(f"{node}.log"))
            self.expect(f"scaling: steps on {node}", found, steps)
        said = run(
            "salloc", "-Q", "--nodes=2", "./workshop", "scaling", "02", "--ranks", "2,3", errors=subprocess.STDOUT
        )
        self.expect(
            "scaling: more ranks than tasks",
            said.out,
            f"workshop: --ranks has 3, but Slurm job {int(job) + 1} has 2 task(s): ask salloc or sbatch for more\n",
        )
        self.expect("scaling: more ranks than tasks: status", said.status, 2)

    def scaling_that_fails(self) -> None:
        """A run that fails ends it. This one is started within a step, which holds the job's cores."""
        said = run(
            "salloc",
            "-Q",
            "--nodes=2",
            "srun",
            "--nodes=1",
            "--ntasks=1",
            "./workshop",
            "scaling",
            "02",
            "--solution",
            "--ranks",
            "1",
            "--",
            "--lr",
            "nan",
            errors=subprocess.STDOUT,
        )
        self.expect("scaling: a run that fails", said.status, 2)
        self.expect_line("scaling", "^error: --lr is 'nan'", said.out)

    # ---- without MPI ----

    def without_mpi(self) -> None:
        """A program for the cuda backend gets all it needs to start: two jobs at a time, with one GPU of each node."""
        self.write("no_mpi/02_ddp/ddp", SAYS_ALL, executable=True)
        started = [
            self.submit("--gpus-per-node=1", "slurm/02_ddp.sbatch", "--epochs", "3", WORKSHOP_BUILD=self.path("no_mpi"))
            for _ in range(2)
        ]
        tokens, gpus = [], set()
        for job in started:
            self.ends(job, 60, "COMPLETED", 0)
            self.says(job, rf"^Job {job}: .* on 4 rank\(s\) of node1 node2, srun --mpi=none")
            for rank in range(4):
                self.says(job, f"^rank {rank} of 4, {rank % 2} on its node, meets at node1 lo --epochs 3$")
            port = 20000 + 2 * int(job)
            self.says(job, f"^ports {port} localhost:{port + 1} gpus [01] pmi none$")
            tokens += re.findall("^token [0-9a-f]{32}$", self.output(job), re.M)
            gpus.update(re.findall("gpus [01]", self.output(job)))
        self.expect(
            "a token for each job, the same on all ranks", sorted(tokens.count(token) for token in set(tokens)), [4, 4]
        )
        self.expect("two jobs, two GPUs", len(gpus), 2)

    # ---- the time limit ----

    def saves_and_goes_on(self) -> None:
        """USR1 is what Slurm sends before the time limit."""
        self.write("saves/02_ddp/ddp", SAVES, executable=True)
        job = self.begin("resumes", "--checkpoints", self.path("resumes"), "--resume", self.path("resumes"))
        self.expect("may be started again", self.of_job(job).get("Requeue"), "1")
        self.near_its_limit(job)
        self.goes_on(job)
        job = self.begin("ends", "--checkpoints", self.path("ends"))
        self.expect("may be started again", self.of_job(job).get("Requeue"), "0")
        self.near_its_limit(job)
        self.ends(job, 60, "FAILED", 75)
        self.says(job, "^job.sh: the run has saved its state; with --resume,")

    def requeued_until_done(self) -> None:
        """A run that is asked twice to save ends with the parameters, bit by bit, of one that nothing has interrupted."""
        options = ["--epochs", "30", "--optimizer", "adamw", "--record"]
        saving = ["--checkpoints", self.path("long"), "--resume", self.path("long")]
        script = "slurm/02_ddp.sbatch"
        words = ["ddp", "--solution", *saving, *options, self.path("long.found")]
        job = self.submit(script, *words, WORKSHOP_SLOW="collectives")
        for times in (1, 2):
            trained = self.output(job).count("epoch ")
            if not jobs.until(lambda: self.output(job).count("epoch ") > trained + 4, 60):
                self.fail(f"job {job} does not train: {self.output(job)}")
            self.near_its_limit(job)
            self.queues_again(job, times)
        self.ends(job, 90, "COMPLETED", 0)
        self.nothing_left(job)
        alone = self.launch(4, self.solution("02_ddp", "ddp"), *options, self.path("long.expected"))
        self.expect("the same alone", alone.status, 0)
        self.expect("its parameters", self.parameters("long.found"), self.parameters("long.expected"))

    def parameters(self, record: str) -> list[str]:
        with open(self.path(record), encoding="utf-8") as file:
            found = [line for line in file if '"type":"parameter"' in line]
        self.expect(f"parameters in {record}", len(found), 4)
        return found

    def without_checkpoints(self) -> None:
        """It may use the rest of its time."""
        self.write("saves/02_ddp/ddp", SAVES, executable=True)
        job = self.begin("lasts", "--no-checkpoints", self.path("lasts"))
        self.near_its_limit(job)
        time.sleep(2)
        self.expect("without checkpoints, near the limit", self.state(job), "RUNNING")
        self.write("lasts/enough", "")
        self.ends(job, 60, "COMPLETED", 0)

    def time_limit(self) -> None:
        """The signal that Slurm sends by itself, at most three minutes before the limit."""
        self.write("saves/02_ddp/ddp", SAVES, executable=True)
        folder = self.path("limit")
        job = self.begin("limit", "--checkpoints", folder, "--resume", folder, limit=3)
        if not jobs.until(lambda: self.state(job) == "PENDING", 90):
            self.fail(f"job {job} was not asked to save")
        self.goes_on(job)

    def begin(self, folder: str, *options: str, limit: int = 10) -> str:
        """Starts a job of SAVES, as its script asks for it, and waits until all ranks run. Returns its number."""
        os.makedirs(self.path(folder), exist_ok=True)
        words = ["--parsable", f"--time={limit}", "slurm/02_ddp.sbatch", *options]
        job = run("env", "-u", "SBATCH_REQUEUE", "sbatch", *words, WORKSHOP_BUILD=self.path("saves")).out.strip()
        if not jobs.until(lambda: self.output(job).count("saved: no") == 4, 60):
            self.fail(f"job {job} does not start: {self.output(job)}")
        return job

    def near_its_limit(self, job: str) -> None:
        self.expect("USR1", run("scancel", "--batch", "--signal=USR1", job).status, 0)

    def queues_again(self, job: str, times: int) -> None:
        """It has saved so many times and is in the queue; it starts soon."""
        queued = f"job.sh: the run has saved its state; job {job} goes back to the queue\n"
        if not jobs.until(lambda: self.output(job).count(queued) == times and self.state(job) == "PENDING", 60):
            self.fail(f"job {job} is not in the queue: {self.output(job)}")
        # Else it waits for two minutes. In the second in which it was stopped, the nodes would refuse to start it.
        run("scontrol", "update", f"JobId={job}", "StartTime=now+2")

    def goes_on(self, job: str) -> None:
        """All ranks save; the job is in the queue, then continues, and its output has both."""
        self.queues_again(job, 1)
        self.ends(job, 60, "COMPLETED", 0)
        for text, count in ((f"Job {job}: ", 2), ("has saved\n", 4), ("saved: no\n", 4), ("saved: yes\n", 4)):
            self.expect(f"job {job}: '{text}'", self.output(job).count(text), count)
        self.nothing_left(job)

    # ---- jobs side by side ----

    def side_by_side(self) -> None:
        """One is cancelled, one loses a rank, one goes on undisturbed."""
        script = "slurm/02_ddp.sbatch"
        # It lasts in real time, which a simulated machine's time does not guarantee.
        lasting = self.submit(
            script,
            "ddp",
            "--solution",
            "--epochs",
            "30",
            "--record",
            self.path("beside.found"),
            WORKSHOP_SLOW="collectives",
        )
        killed = self.submit(script, "ddp_overlap", "--solution", *ENDLESS)
        cancelled = self.submit("slurm/07_3d.sbatch", "--solution", "--tp", "2", *ENDLESS)
        for job in (lasting, killed, cancelled):
            self.starts(job)
        self.expect(
            "jobs at once",
            sorted(jobs.said("squeue", "-h", "-t", "RUNNING", "-o", "%A %N").splitlines()),
            sorted(f"{job} node[1-2]" for job in (lasting, killed, cancelled)),
        )
        for pid in self.processes(killed, rank=3):
            os.kill(pid, signal.SIGKILL)
        run("scancel", cancelled)
        self.ends(killed, 60, "FAILED")
        self.says(killed, "^srun: error: node2: task 3: Killed$")
        self.nothing_left(killed)
        self.ends(cancelled, 60, "CANCELLED")
        self.says(cancelled, f"JOB {cancelled} ON node1 CANCELLED AT")
        self.nothing_left(cancelled)
        alone = self.launch(
            4, self.solution("02_ddp", "ddp"), "--epochs", "30", "--record", self.path("beside.expected")
        )
        self.expect("the same alone", alone.status, 0)
        self.ends(lasting, 60, "COMPLETED", 0)
        self.same_training("beside the others", "beside.expected", "beside.found")
        self.nothing_left(lasting)

    # ---- a node's daemon dies ----

    def node_that_dies(self) -> None:
        """Slurm notices its silence. Ranks there cannot be reached until the daemon is back, which then ends
        them."""
        scripts = jobs.said("grep", "-L", "-e", "--no-requeue", *glob.glob("slurm/*.sbatch"))
        self.expect("scripts that say no --no-requeue", scripts, "")
        job = self.submit("slurm/02_ddp.sbatch", "--solution", *ENDLESS)
        self.starts(job)
        run("scontrol", "update", f"JobId={job}", "Requeue=0")
        os.kill(int(self.read("node2.pid")), signal.SIGKILL)
        self.ends(job, 60, "NODE_FAIL")
        # srun mostly says 'Node failure on node2', too, unless the request that ends it overtakes this news.
        self.says(job, f"JOB {job} ON node1 CANCELLED AT .* DUE TO NODE FAILURE")
        self.expect("the daemon of node2, anew", run("slurmd", "-N", "node2").status, 0)
        self.nothing_left(job)


def settings_of_site() -> dict[str, str]:
    """The environment that slurm/site.sh sets up: jobs for the cpu backend ask for no GPUs."""
    entries = run("bash", "-c", "source slurm/site.sh && exec env -0").out.split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def main(words: list[str]) -> int:
    os.chdir(jobs.ROOT)
    test = JobsTest(words[0], words[1])
    # Both nodes are this machine. Only the socket transport treats the ranks of one as remote for the other. This test
    # requeues some jobs.
    os.environ.update(
        WORKSHOP_BACKEND="cpu",
        WORKSHOP_BUILD=words[0],
        WORKSHOP_INTERFACE="lo",
        OMPI_MCA_btl="self,tcp",
        SBATCH_OUTPUT=test.path("%j.out"),
        SBATCH_REQUEUE="1",
    )
    os.environ.update(settings_of_site())
    alone = [test.time_limit] if "time_limit" in words[2:] else []
    return test.run_parts(
        alone
        + [
            test.every_chapter,
            test.places,
            test.first_rank_that_fails,
            test.submit_and_wait,
            test.submit_and_go_on,
            test.scaling,
            test.scaling_that_fails,
            test.without_mpi,
            test.saves_and_goes_on,
            test.requeued_until_done,
            test.without_checkpoints,
            test.side_by_side,
            test.node_that_dies,
        ],
        words[2:],
        "All jobs ended as they should",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""torchrun_test.py BUILD MEET [PART]...: tests slurm/torchrun.sbatch on the cluster that with_cluster.py starts, with
the torchrun in PATH or $TORCHRUN. MEET is a program that meets as those for the cuda backend do, and needs no GPU.
PART: only these functions of the class below."""

from __future__ import annotations

import os
import re
import shutil
import sys

import jobs

FAILS = """\
#!/usr/bin/env bash
echo "rank $RANK of $WORLD_SIZE, $LOCAL_RANK on its node, token $WORKSHOP_JOB_TOKEN, $*"
((RANK != 3)) || exit 7
sleep 600
"""


class TorchrunTest(jobs.Cluster):
    def __init__(self, build: str, meet: str):
        super().__init__()
        self.build = build
        self.write("programs/02_ddp/fails", FAILS, executable=True)
        shutil.copy(meet, self.path("programs/02_ddp/ddp"))

    def start(self, *words: str, **variables: str) -> str:
        """Submits a job that starts a program with torchrun. Returns its number."""
        return self.submit("--gpus-per-node=2", "slurm/torchrun.sbatch", "02_ddp", *words, **variables)

    def two_jobs_side_by_side(self) -> None:
        """They are on the same nodes: each rank meets those of its own job."""
        started = [self.start("ddp"), self.start("ddp")]
        ids = set()
        for job in started:
            self.ends(job, 60, "COMPLETED")
            self.says(
                job,
                rf"^Job {job}: .*/02_ddp/ddp on 2 rank\(s\) of each of 2 node\(s\), torchrun [0-9a-f]{{16}} at "
                r"127.0.0.1:[0-9]+,",
            )
            for rank in range(4):
                self.says(job, f"^rank {rank} met rank 0 of 4$")
            ids.update(re.findall("torchrun [0-9a-f]{16}", self.output(job)))
        self.expect("an id for each job", len(ids), 2)

    def rank_that_fails(self) -> None:
        """It ends all others."""
        job = self.start("fails", "--epochs", "3")
        self.ends(job, 60, "FAILED")
        for rank in range(4):
            self.says(job, f"^rank {rank} of 4, {rank % 2} on its node, token [0-9a-f]{{32}}, --epochs 3$")
        self.says(job, "exitcode *: 7 ")

    def cpu_backend(self) -> None:
        """Its ranks need MPI, which torchrun does not start."""
        job = self.start("ddp", "--solution", WORKSHOP_BUILD=self.build)
        self.ends(job, 60, "FAILED")
        self.says(
            job, "error: the cpu backend needs mpirun or srun --mpi=pmix to start several ranks. found only torchrun"
        )

    def without_torchrun(self) -> None:
        """One line."""
        job = self.start("ddp", TORCHRUN="/nowhere/torchrun")
        self.ends(job, 20, "FAILED")
        self.expect(
            "no torchrun",
            self.output(job),
            "slurm/torchrun: there is no '/nowhere/torchrun', which is part of PyTorch; set PATH or TORCHRUN\n",
        )


def main(words: list[str]) -> int:
    os.chdir(jobs.ROOT)
    torchrun = shutil.which(os.environ.get("TORCHRUN") or "torchrun")
    if not torchrun:
        print("skipped: no torchrun here; TORCHRUN may name one")
        return 77
    test = TorchrunTest(words[0], words[1])
    os.environ.update(
        TORCHRUN=torchrun,
        WORKSHOP_BACKEND="cpu",
        WORKSHOP_INTERFACE="lo",
        WORKSHOP_BUILD=test.path("programs"),
        SBATCH_OUTPUT=test.path("%j.out"),
    )
    os.environ.pop("OMP_NUM_THREADS", None)
    return test.run_parts(
        [test.two_jobs_side_by_side, test.rank_that_fails, test.cpu_backend, test.without_torchrun],
        words[2:],
        "All jobs ended as they should",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time PyTorch's own programs on the CPU beside the workshop's.

bench_torch.py LAUNCH FOLDER     tools/launch, and the folder with the solutions' programs

Prints one JSON object with PyTorch's version and
- microseconds per optimizer step of the course's 6-4-2 network, in one process and with DDP on two ranks (gloo over
  loopback), one thread a rank, without start-up, and the losses of the first epoch;
- milliseconds per step of a network that keeps a processor busy, the workshop's and PyTorch's in turn, best of several
  rounds: 4 x 1024, GELU, batch 128 a rank, fused AdamW; one rank with all cores, DDP on two with half of them each;
  PyTorch eager and, where there is a C++ compiler, compiled.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests" / "golden"))
sys.dont_write_bytecode = True  # no __pycache__ beside the golden files
import generate  # the programs themselves

ROUNDS = 5
EPOCHS = {1: 25, 2: 15}  # a round of each program, by ranks: some 0.4 s

WIDE_ROUNDS = 9
WIDTH, DEPTH, BATCH, LR = 1024, 4, 128, 0.001
WARM_UP, STEPS = 3, 10  # a round; the workshop's programs do not time their first three steps


def time_rank(rank, options, store, results):
    trainer = generate.Trainer(options, rank, store)
    losses = trainer.train_epoch(0)
    rounds = []
    for _ in range(ROUNDS):
        if options.ddp:
            dist.barrier()
        start = time.perf_counter()
        steps = sum(len(trainer.train_epoch(epoch)) for epoch in range(EPOCHS[options.world]))
        rounds.append((time.perf_counter() - start) * 1e6 / steps)
    results[rank] = {"us_per_step": statistics.median(rounds), "losses": losses}
    if options.ddp:
        dist.destroy_process_group()


def time_program(arguments):
    """Return what each rank measured."""
    options = generate.parse(arguments)
    with mp.Manager() as manager, tempfile.TemporaryDirectory() as folder:
        results = manager.dict()
        mp.spawn(time_rank, args=(options, f"{folder}/store", results), nprocs=options.world)
        return [results[rank] for rank in range(options.world)]


class Workshop:
    """One of the workshop's programs; a round is a run of it."""

    def __init__(self, launch, program, ranks):
        widths = ",".join([str(WIDTH)] * (DEPTH + 1))
        self.record = tempfile.NamedTemporaryFile(suffix=".jsonl")
        self.command = [launch, "-n", str(ranks), "--", program, "--layers", widths, "--activation", "gelu"]
        self.command += ["--optimizer", "adamw", "--lr", str(LR), "--batch-size", str(BATCH), "--epochs", "1"]
        self.command += ["--samples", str((WARM_UP + STEPS) * BATCH * ranks), "--record", self.record.name]

    def seconds_per_step(self):
        subprocess.run(self.command, check=True, stdout=subprocess.DEVNULL)
        with open(self.record.name) as lines:
            return json.loads(lines.readlines()[-1])["seconds_per_step"]

    def end(self):
        self.record.close()


class PyTorch:
    """Processes that make a round of steps whenever they are asked."""

    def __init__(self, ranks, compiled):
        self.folder = tempfile.TemporaryDirectory()
        self.pipes = []
        for rank in range(ranks):
            ours, theirs = mp.Pipe()
            mp.Process(target=serve_rank, args=(rank, ranks, compiled, self.folder.name, theirs), daemon=True).start()
            self.pipes.append(ours)

    def seconds_per_step(self):
        for pipe in self.pipes:
            pipe.send(True)
        return max(pipe.recv() for pipe in self.pipes)

    def end(self):
        for pipe in self.pipes:
            pipe.send(False)


def serve_rank(rank, ranks, compiled, folder, pipe):
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    torch.manual_seed(rank)
    model = generate.build_model([WIDTH] * (DEPTH + 1), nn.GELU)
    if ranks > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    network = torch.compile(model) if compiled else model
    inputs, targets = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)

    def step():
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(network(inputs), targets).backward()
        optimizer.step()

    while pipe.recv():
        for _ in range(WARM_UP):
            step()
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        pipe.send((time.perf_counter() - start) / STEPS)


def time_wide(launch, folder):
    """Return one entry for 1 and 2 ranks each: the best milliseconds per step of every contestant."""
    report = []
    for ranks, programs in ((1, ["01_single_gpu/mlp"]), (2, ["02_ddp/ddp", "02_ddp/ddp_overlap"])):
        contestants = {name.split("/")[1]: Workshop(launch, f"{folder}/{name}", ranks) for name in programs}
        contestants["PyTorch"] = PyTorch(ranks, compiled=False)
        if shutil.which(os.environ.get("CXX", "g++")):
            contestants["PyTorch, compiled"] = PyTorch(ranks, compiled=True)
        for contestant in contestants.values():
            contestant.seconds_per_step()
        best = dict.fromkeys(contestants, float("inf"))
        for _ in range(WIDE_ROUNDS):
            for name, contestant in contestants.items():
                best[name] = min(best[name], contestant.seconds_per_step())
        for contestant in contestants.values():
            contestant.end()
        report.append({"ranks": ranks, "ms": {name: round(seconds * 1e3, 3) for name, seconds in best.items()}})
    return report


def main():
    launch, folder = sys.argv[1:]
    single = time_program([])
    ddp = time_program(["--world", "2"])
    report = {
        "torch": torch.__version__,
        "mlp_us_per_step": round(single[0]["us_per_step"], 1),
        "ddp2_us_per_step": round(max(rank["us_per_step"] for rank in ddp), 1),
        "losses": {"mlp": [rank["losses"] for rank in single], "ddp2": [rank["losses"] for rank in ddp]},
        "wide": time_wide(launch, folder),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    mp.set_start_method("spawn")
    main()

#!/usr/bin/env python3
"""Time PyTorch's own programs on the CPU, for comparison with 01_single_gpu/mlp and 02_ddp/ddp.

Prints one JSON object: PyTorch's version, microseconds per optimizer step of the single process and of DDP on two ranks
(gloo over loopback), one thread a rank, without start-up; and the losses of the first epoch, by program and rank.
"""

import json
import pathlib
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests" / "golden"))
sys.dont_write_bytecode = True  # no __pycache__ beside the golden files
import generate  # the programs themselves

ROUNDS = 5
EPOCHS = {1: 25, 2: 15}  # a round of each program, by ranks: some 0.4 s


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


def main():
    single = time_program([])
    ddp = time_program(["--world", "2"])
    report = {
        "torch": torch.__version__,
        "mlp_us_per_step": round(single[0]["us_per_step"], 1),
        "ddp2_us_per_step": round(max(rank["us_per_step"] for rank in ddp), 1),
        "losses": {"mlp": [rank["losses"] for rank in single], "ddp2": [rank["losses"] for rank in ddp]},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()

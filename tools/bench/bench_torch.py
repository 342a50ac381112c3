#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time PyTorch programs on the CPU, for comparison with the workshop's.

bench_torch.py LAUNCH FOLDER     tools/launch, and the folder with the solutions' programs

Prints one JSON object with PyTorch's version and
- microseconds per optimizer step of the course's 6-4-2 network, in one process and with DDP on two ranks (gloo over
  loopback), one thread per rank, without start-up, and the losses of the first epoch;
- milliseconds per step of a network that keeps a processor busy, alternating between the workshop and PyTorch, best of
  several rounds: 4 x 1024, GELU, batch 128 per rank, fused AdamW; one rank with all cores, DDP on two ranks with half
  of them each; PyTorch eager and, if there is a C++ compiler, compiled;
- the same for a language model of 4 blocks, width 256, 8 heads, context 128, vocabulary 1,024, batch 8 per rank;
- the same for this model with 8 experts in each block, on one rank, beside two ways to write them in PyTorch.
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

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "golden"))
sys.dont_write_bytecode = True  # no __pycache__ next to the golden files
import generate  # the PyTorch programs

ROUNDS = 5
EPOCHS = {1: 25, 2: 15}  # ranks: epochs per round, which take some 0.4 s

WIDTH, DEPTH, BATCH, LR = 1024, 4, 128, 0.001
WARM_UP, STEPS = 3, 10  # steps per round; the workshop's programs do not time their first three steps


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
    """Return a list with each rank's results."""
    options = generate.parse(arguments)
    with mp.Manager() as manager, tempfile.TemporaryDirectory() as folder:
        results = manager.dict()
        mp.spawn(time_rank, args=(options, f"{folder}/store", results), nprocs=options.world)
        return [results[rank] for rank in range(options.world)]


class Wide:
    """The network of linear layers."""

    rounds = 9
    title = f"{DEPTH} x {WIDTH}, GELU, batch {BATCH} per rank, AdamW"
    programs = {1: ["01_single_gpu/mlp"], 2: ["02_ddp/ddp", "02_ddp/ddp_overlap"]}

    def arguments(self, ranks):
        widths = ",".join([str(WIDTH)] * (DEPTH + 1))
        return ["--layers", widths, "--activation", "gelu", "--optimizer", "adamw", "--lr", str(LR), "--batch-size",
                str(BATCH), "--samples", str((WARM_UP + STEPS) * BATCH * ranks)]

    @staticmethod
    def make():
        """Return a model, an input and a target, and the loss."""
        model = generate.build_model([WIDTH] * (DEPTH + 1), nn.GELU)
        return model, torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH), nn.functional.mse_loss


class Gpt:
    """The language model, on a text of random words."""

    rounds = 4
    blocks, width, heads, context, vocabulary, batch = 4, 256, 8, 128, 1024, 8
    title = f"gpt: {blocks} blocks, width {width}, {heads} heads, context {context}, batch {batch} per rank, AdamW"
    programs = {1: ["01_single_gpu/gpt"], 2: ["02_ddp/ddp", "02_ddp/ddp_overlap"]}

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        for name, samples in (("train", 2 * (WARM_UP + STEPS) * self.batch), ("valid", 1), ("test", 1)):
            words = (f"w{i % (self.vocabulary - 2)}" for i in range(samples * self.context + 1))
            pathlib.Path(self.folder.name, name + ".txt").write_text(" ".join(words))

    more = []  # options

    def arguments(self, ranks):
        sizes = [*self.more, "--blocks", self.blocks, "--width", self.width, "--heads", self.heads, "--context", self.context]
        model = ["--model", "gpt"] if ranks > 1 else []
        return [*model, "--text", self.folder.name, *map(str, sizes), "--batch-size", str(self.batch), "--max-steps",
                str(WARM_UP + STEPS)]

    @staticmethod
    def mlp():
        """Return what a block has behind its attention."""
        return nn.Sequential(nn.Linear(Gpt.width, 4 * Gpt.width), nn.GELU(), nn.Linear(4 * Gpt.width, Gpt.width))

    @classmethod
    def make(cls):
        """Return the same as Wide.make(). The layers use scaled_dot_product_attention."""

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.tokens = nn.Embedding(Gpt.vocabulary, Gpt.width)
                self.positions = nn.Embedding(Gpt.context, Gpt.width)
                self.blocks = nn.ModuleList(Block() for _ in range(Gpt.blocks))
                self.norm = nn.LayerNorm(Gpt.width)
                self.head = nn.Linear(Gpt.width, Gpt.vocabulary, bias=False)

            def forward(self, x):
                h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
                for block in self.blocks:
                    h = block(h)
                return self.head(self.norm(h))

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                width = Gpt.width
                self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
                self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
                self.mlp = cls.mlp()

            def forward(self, x):
                heads = (*x.shape[:2], Gpt.heads, -1)
                q, k, v = (part.reshape(heads).transpose(1, 2) for part in self.project(self.norm1(x)).chunk(3, -1))
                found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.out(found.transpose(1, 2).reshape(x.shape))
                return x + self.mlp(self.norm2(x))

        text = torch.randint(0, Gpt.vocabulary, (2, Gpt.batch, Gpt.context))
        model = Model()
        balanced = [module for module in model.modules() if isinstance(module, Mixture)]

        def loss(z, y):
            loss = nn.functional.cross_entropy(z.flatten(0, 1), y.flatten())
            return loss + Mixture.aux_loss * sum(m.balance.mean() for m in balanced) if balanced else loss

        return model, text[0], text[1], loss


class Mixture(nn.Module):
    """Experts in place of an MLP, the twin of chapter 09's: each computes the rows of its tokens."""

    experts, top_k, aux_loss = 8, 2, 0.01

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(Gpt.width, self.experts, bias=False)
        self.each = nn.ModuleList(Gpt.mlp() for _ in range(self.experts))

    def forward(self, x):
        scores = self.router(x).softmax(-1)
        top, chosen = scores.topk(self.top_k, -1)
        weights = top / top.sum(-1, keepdim=True)
        picked = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        self.balance = (picked.sum(1) * (self.experts / (self.top_k * x.shape[1])) * scores.mean(1)).sum(-1)
        return self.mixed(x.flatten(0, 1), weights.flatten(0, 1), chosen.flatten(0, 1)).view_as(x)

    def mixed(self, x, weights, chosen):
        """The rows are sorted by expert once, and added up once."""
        order = chosen.flatten().argsort(stable=True)
        tokens = order // self.top_k
        counts = torch.bincount(chosen.flatten(), minlength=self.experts).tolist()
        parts = [expert(rows) for expert, rows in zip(self.each, x[tokens].split(counts))]
        y = torch.cat(parts) * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, tokens, y)


class LoopedMixture(Mixture):
    """One expert after the other looks for its tokens, as most models in PyTorch do it."""

    def mixed(self, x, weights, chosen):
        y = torch.zeros_like(x)
        for e, expert in enumerate(self.each):
            tokens, place = (chosen == e).nonzero(as_tuple=True)
            y = y.index_add(0, tokens, expert(x[tokens]) * weights[tokens, place].unsqueeze(-1))
        return y


class Moe(Gpt):
    mlp = Mixture
    title = f"moe: gpt with {Mixture.experts} experts, top-{Mixture.top_k}; PyTorch sorts the rows"
    programs = {1: ["09_expert_parallel/moe"]}
    more = ["--experts", Mixture.experts, "--top-k", Mixture.top_k, "--aux-loss", Mixture.aux_loss]


class LoopedMoe(Moe):
    mlp = LoopedMixture
    title = f"moe: gpt with {Mixture.experts} experts, top-{Mixture.top_k}; PyTorch looks for the rows of each expert"


class Workshop:
    """One of the workshop's programs. A round is one run."""

    def __init__(self, launch, program, arguments, ranks):
        self.record = tempfile.NamedTemporaryFile(suffix=".jsonl")
        self.command = [launch, "-n", str(ranks), "--", program, *arguments, "--record", self.record.name]

    def seconds_per_step(self):
        subprocess.run(self.command, check=True, stdout=subprocess.DEVNULL)
        with open(self.record.name) as lines:
            return json.loads(lines.readlines()[-1])["seconds_per_step"]

    def end(self):
        self.record.close()


class PyTorch:
    """Processes that run a round of steps on request."""

    def __init__(self, kind, ranks, compiled):
        self.folder = tempfile.TemporaryDirectory()
        self.pipes = []
        for rank in range(ranks):
            ours, theirs = mp.Pipe()
            mp.Process(target=serve_rank, args=(kind, rank, ranks, compiled, self.folder.name, theirs), daemon=True).start()
            self.pipes.append(ours)

    def seconds_per_step(self):
        for pipe in self.pipes:
            pipe.send(True)
        return max(pipe.recv() for pipe in self.pipes)

    def end(self):
        for pipe in self.pipes:
            pipe.send(False)


def serve_rank(kind, rank, ranks, compiled, folder, pipe):
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    torch.manual_seed(rank)
    model, inputs, targets, loss = kind.make()
    if ranks > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    network = torch.compile(model) if compiled else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(network(inputs), targets).backward()
        optimizer.step()

    while pipe.recv():
        for _ in range(WARM_UP):
            step()
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        pipe.send((time.perf_counter() - start) / STEPS)


def time_large(launch, folder, kind):
    """Return an entry for 1 rank and one for 2: the best milliseconds per step of every contestant."""
    report = []
    for ranks, programs in kind.programs.items():
        arguments = kind.arguments(ranks)
        contestants = {name.split("/")[1]: Workshop(launch, f"{folder}/{name}", arguments, ranks) for name in programs}
        contestants["PyTorch"] = PyTorch(type(kind), ranks, compiled=False)
        if shutil.which(os.environ.get("CXX", "g++")):
            contestants["PyTorch, compiled"] = PyTorch(type(kind), ranks, compiled=True)
        for contestant in contestants.values():
            contestant.seconds_per_step()
        best = dict.fromkeys(contestants, float("inf"))
        for _ in range(kind.rounds):
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
        "large": [
            {"title": kind.title, "lines": time_large(launch, folder, kind)}
            for kind in (Wide(), Gpt(), Moe(), LoopedMoe())
        ],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    mp.set_start_method("spawn")
    main()

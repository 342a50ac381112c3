#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the language model with PyTorch on the CPU and write the results to golden files.

generate_gpt.py                      all golden files that this script makes
generate_gpt.py NAME ...             these (gpt_single, moe_ddp2, ...)
generate_gpt.py --out FILE OPTIONS   one run with options of your own (--help lists them)

The options are those of the workshop's programs, except --batch for --batch-size and --world for the number of ranks;
several ranks are 02_ddp/ddp with gloo. --experts puts a mixture of experts (chapter 09) in the place of each block's
MLP. Which experts a token takes jumps where two scores are equal: "margin" says how near a run came to such a place.
"""

import argparse
import collections
import json
import math
import os
import pathlib

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

FOLDER = pathlib.Path(__file__).resolve().parent
GOLDEN = {
    "gpt_single": "--epochs 2",
    "gpt_ddp2": "--world 2 --epochs 2 --warmup-steps 5 --lr-schedule cosine --clip-norm 1",
    "moe_single": "--epochs 2 --max-steps 40 --model-seed 5003 --experts 4 --aux-loss 0.01",
    "moe_ddp2": "--world 2 --max-steps 12 --model-seed 5001 --experts 4 --top-k 1 --clip-norm 1 --aux-loss 0.02"
    " --capacity-factor 1.25",
    "moe_capacity": "--context 12 --width 24 --batch 3 --max-steps 12 --accumulation-steps 2 --model-seed 3"
    " --experts 8 --top-k 3 --clip-norm 0.5 --aux-loss 0.05 --capacity-factor 0.7",
    "moe_top1": "--context 7 --batch 5 --max-steps 15 --warmup-steps 3 --model-seed 3 --experts 3 --top-k 1"
    " --aux-loss 0.1 --capacity-factor 1 --lr-schedule cosine",
    "moe_all": "--max-steps 15 --model-seed 1 --experts 5 --top-k 5 --aux-loss 0.1",
}


class Expert(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear1 = nn.Linear(width, 4 * width)
        self.linear2 = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.linear2(nn.functional.gelu(self.linear1(x)))


class MoEBlock(nn.Module):
    """nn.TransformerEncoderLayer(norm_first=True) with a mixture of experts as its MLP."""
    def __init__(self, width, heads, experts, top_k, capacity_factor):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(Expert(width) for _ in range(experts))
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.top_k, self.capacity_factor = top_k, capacity_factor
        self.balance = None  # of the last forward pass, [sequences]; what --aux-loss weighs
        self.margin = 1.0    # least difference so far between a score that was chosen and one that was not

    def mixture(self, x):  # [B, T, E]
        B, T, _ = x.shape
        n = len(self.experts)
        scores = self.router(x).softmax(-1)                      # [B, T, n]
        top, chosen = scores.topk(self.top_k, -1)                # [B, T, K]
        if self.top_k < n:
            edge = scores.topk(self.top_k + 1, -1).values
            self.margin = min(self.margin, (edge[..., -2] - edge[..., -1]).min().item())
        weights = top / top.sum(-1, keepdim=True)
        picked = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        self.balance = (picked.sum(1) * (n / (self.top_k * T)) * scores.mean(1)).sum(-1)
        gate = torch.zeros_like(scores).scatter(-1, chosen, weights)
        if self.capacity_factor > 0:
            places = math.ceil(self.capacity_factor * self.top_k * T / n)
            gate = gate * (picked.cumsum(1) <= places)
        self.load = picked.sum((0, 1))
        y = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            b, t = gate[..., e].nonzero(as_tuple=True)
            if len(b):
                y = y.index_put((b, t), gate[b, t, e].unsqueeze(-1) * expert(x[b, t]), accumulate=True)
            else:
                y = y + 0.0 * expert(x[:1, 0]).sum()             # every parameter has a gradient
        return y

    def forward(self, h, src_mask=None, is_causal=False):
        x = self.norm1(h)
        h = h + self.self_attn(x, x, x, attn_mask=src_mask, is_causal=is_causal, need_weights=False)[0]
        return h + self.mixture(self.norm2(h))


class GPT(nn.Module):
    def __init__(self, vocabulary, width, heads, blocks, context, experts=0, top_k=2, capacity_factor=0.0):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            MoEBlock(width, heads, experts, top_k, capacity_factor) if experts else
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
                                       norm_first=True) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return self.head(self.norm(h))


def read(folder, context, limit):
    words = {s: [w for line in open(f"{folder}/{s}.txt", encoding="utf-8") for w in line.split() + ["<eos>"]]
             for s in ("train", "valid", "test")}
    count = collections.Counter(w for w in words["train"] if w not in ("<unk>", "<eos>"))
    kept = [w for w, _ in count.most_common()]
    vocabulary = (["<unk>", "<eos>"] + kept)[:limit or None]
    number = {w: i for i, w in enumerate(vocabulary)}
    sets = {}
    for s, stream in words.items():
        t = torch.tensor([number.get(w, 0) for w in stream])
        n = (len(t) - 1) // context
        sets[s] = TensorDataset(t[:n * context].view(n, context), t[1:n * context + 1].view(n, context))
    return vocabulary, sets


def evaluate(model, data, batch):
    total = tokens = 0.0
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=batch):
            total += nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum").item()
            tokens += y.numel()
    return total / tokens


def run(rank, a, out):
    torch.set_num_threads(1)
    ddp = a.world > 1
    if ddp:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", rank=rank, world_size=a.world)
    vocabulary, sets = read(a.text, a.context, a.vocabulary)
    torch.manual_seed(a.model_seed)
    model = GPT(len(vocabulary), a.width, a.heads, a.blocks, a.context, a.experts, a.top_k, a.capacity_factor)
    net = DDP(model) if ddp else model
    if ddp:
        sampler = DistributedSampler(sets["train"], a.world, rank, shuffle=a.shuffle, seed=a.seed)
        loader = DataLoader(sets["train"], batch_size=a.batch, sampler=sampler)
    else:
        sampler = None
        loader = DataLoader(sets["train"], batch_size=a.batch, shuffle=a.shuffle,
                            generator=torch.Generator().manual_seed(a.seed))
    steps_an_epoch = math.ceil(len(loader) / a.accumulation_steps)
    total = min(a.epochs * steps_an_epoch, a.max_steps or a.epochs * steps_an_epoch)
    optimizer = torch.optim.AdamW(net.parameters(), lr=a.lr, weight_decay=a.weight_decay)

    def factor(t):
        if t < a.warmup_steps:
            return (t + 1) / a.warmup_steps
        if a.lr_schedule == "constant":
            return 1.0
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (t - a.warmup_steps) / max(1, total - 1 - a.warmup_steps)))

    result = {"losses": [], "norms": [], "valid": []}
    if a.experts:
        result["aux"] = []
    step = 0
    for epoch in range(a.epochs):
        if sampler:
            sampler.set_epoch(epoch)
        batches = list(loader)
        for first in range(0, len(batches), a.accumulation_steps):
            if step == total:
                break
            group = batches[first:first + a.accumulation_steps]
            tokens = sum(y.numel() for _, y in group)
            optimizer.zero_grad(set_to_none=True)
            loss_of_step = aux_of_step = 0.0
            sequences = sum(len(x) for x, _ in group)
            for i, (x, y) in enumerate(group):
                net.require_backward_grad_sync = i + 1 == len(group)
                loss = nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten(), reduction="sum") / tokens
                loss_of_step += loss.item()
                if a.experts:
                    aux = sum(b.balance.sum() for b in model.blocks) / sequences
                    aux_of_step += aux.item()
                    loss = loss + a.aux_loss * aux
                loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), a.clip_norm or float("inf"))
            for g in optimizer.param_groups:
                g["lr"] = a.lr * factor(step)
            optimizer.step()
            result["losses"].append(loss_of_step)
            result["norms"].append(norm.item())
            if a.experts:
                result["aux"].append(aux_of_step)
            step += 1
        result["valid"].append(evaluate(model, sets["valid"], a.batch))
    result["test"] = evaluate(model, sets["test"], a.batch)
    if a.experts:
        result["margin"] = min(b.margin for b in model.blocks)
    result["params"] = {n: {"l2": p.detach().double().norm().item(), "sum": p.detach().double().sum().item(),
                            "shape": list(p.shape), "first": p.detach().flatten()[:64].tolist()}
                        for n, p in model.named_parameters()}
    out[rank] = {"vocabulary": len(vocabulary), "samples": {s: len(d) for s, d in sets.items()}, **result}
    if ddp:
        dist.destroy_process_group()


def parser():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help="golden files to make; default: all")
    p.add_argument("--out", help="file to write")
    p.add_argument("--text", default="tests/golden/text", help="folder, seen from the repository's")
    for name, default in (("vocabulary", 0), ("context", 16), ("width", 16), ("heads", 4), ("blocks", 2), ("batch", 8),
                          ("epochs", 1), ("max-steps", 0), ("warmup-steps", 0), ("accumulation-steps", 1), ("world", 1),
                          ("seed", 12345), ("model-seed", 4321), ("experts", 0), ("top-k", 2), ("port", 29571)):
        p.add_argument("--" + name, type=int, default=default)
    for name, default in (("lr", 1e-3), ("weight-decay", 0.01), ("clip-norm", 0.0), ("aux-loss", 0.0),
                          ("capacity-factor", 0.0)):
        p.add_argument("--" + name, type=float, default=default)
    p.add_argument("--lr-schedule", choices=("constant", "cosine"), default="constant")
    p.add_argument("--no-shuffle", dest="shuffle", action="store_false")
    return p


def command(words, a):
    """The command line of the workshop's program for these words."""
    words = [{"--batch": "--batch-size"}.get(word, word) for word in words]
    if "--world" in words:
        at = words.index("--world")
        words = words[:at] + words[at + 2:]
    return (["--model", "gpt"] if a.world > 1 else []) + ["--text", a.text] + words


def write(path, words, a):
    with mp.Manager() as manager:
        out = manager.dict()
        if a.world == 1:
            run(0, a, out)
        else:
            mp.spawn(run, args=(a, out), nprocs=a.world)
        options = {k: v for k, v in vars(a).items() if k not in ("names", "out", "text", "port")}
        options["program"] = "02_ddp/ddp" if a.world > 1 else "09_expert_parallel/moe" if a.experts else "01_single_gpu/gpt"
        options["command"] = command(words, a)
        doc = {"torch": torch.__version__, "options": options, "ranks": [out[r] for r in range(a.world)]}
    pathlib.Path(path).write_text(json.dumps(doc))
    first = doc["ranks"][0]
    print(path, *(["margin", first["margin"]] if a.experts else []), "test loss", first["test"])


if __name__ == "__main__":
    import sys

    os.chdir(FOLDER.parent.parent)
    given = parser().parse_args()
    if given.out:
        own = [word for word in sys.argv[1:] if word not in ("--out", given.out, "--text", given.text)]
        write(given.out, own, given)
    for name in [] if given.out else given.names or GOLDEN:
        write(FOLDER / f"{name}.json", GOLDEN[name].split(), parser().parse_args(GOLDEN[name].split()))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time a step of the language model in PyTorch on a GPU, beside `gpt --model gpt` of the same sizes.

torch_gpt.py [--precision fp32|tf32|bf16] [--compile] [--attention eager|flash] [--width 768] [--heads 12]
             [--blocks 12] [--context 1024] [--batch-size 8] [--vocabulary 50257] [--steps 10]

tf32: float32 matrix products on the tensor cores, with 10 bits of each factor. bf16: autocast, weights in float32.
`eager` attention keeps the probabilities [T, T] of each head, as the workshop's programs do; `flash` is PyTorch's
scaled_dot_product_attention(), which does not. Prints one JSON object: the median milliseconds of a step (forward,
backward, clipping, AdamW), tokens per second, and the peak of the memory.
"""

import argparse
import json
import statistics

import torch
from torch import nn
from torch.nn import functional as F

WARM_UP = 5


class Block(nn.Module):
    def __init__(self, width, heads, flash):
        super().__init__()
        self.heads, self.flash = heads, flash
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x):
        samples, positions, width = x.shape
        q, k, v = (part.view(samples, positions, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(x).split(width, dim=2))
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
            unseen = torch.ones(positions, positions, dtype=torch.bool, device=x.device).triu(1)
            y = scores.masked_fill(unseen, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(samples, positions, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(o.vocabulary, o.width), nn.Embedding(o.context, o.width)
        self.blocks = nn.Sequential(*(Block(o.width, o.heads, o.attention == "flash") for _ in range(o.blocks)))
        self.norm, self.head = nn.LayerNorm(o.width), nn.Linear(o.width, o.vocabulary, bias=False)

    def forward(self, x, y):
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        return F.cross_entropy(self.head(self.norm(self.blocks(h))).flatten(0, 1).float(), y.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="fp32")
    parser.add_argument("--attention", choices=["eager", "flash"], default="eager")
    parser.add_argument("--compile", action="store_true")
    for name, value in {"width": 768, "heads": 12, "blocks": 12, "context": 1024, "batch-size": 8,
                        "vocabulary": 50257, "steps": 10}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    o = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = o.precision == "tf32"
    torch.manual_seed(1)
    model = GPT(o).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step_of = torch.compile(model) if o.compile else model
    x = torch.randint(o.vocabulary, (o.batch_size, o.context), device="cuda")
    y = torch.randint(o.vocabulary, (o.batch_size, o.context), device="cuda")
    times = []
    for step in range(WARM_UP + o.steps):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        with torch.autocast("cuda", torch.bfloat16, enabled=o.precision == "bf16"):
            loss = step_of(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        if step >= WARM_UP:
            times.append(begin.elapsed_time(end))
    median = statistics.median(times)
    print(json.dumps({"ms_per_step": round(median, 2), "tokens_per_s": round(o.batch_size * o.context / median * 1e3),
                      "peak_GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2), "torch": torch.__version__}))


if __name__ == "__main__":
    main()

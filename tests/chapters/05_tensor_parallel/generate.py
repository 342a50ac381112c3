#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train chapter 05's attention and sequence_parallel with PyTorch on the CPU: attention.json and sequence_parallel.json.

What they hold is described in tests/golden/README.md. The initial weights are those that PyTorch draws from the seed of
the runs that go through their samples in order, kModelSeedInOrder in common/run/options.cpp.
"""

import json
import pathlib

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

MODEL_SEED = 1507988244
DATA_SEED = 12345
LR = 0.1


class Attention(nn.Module):
    """Causal self-attention of samples [sequence * width]."""

    def __init__(self, sequence, width, heads):
        super().__init__()
        self.shape = (sequence, heads, width // heads)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        sequence, heads, head_width = self.shape
        positions = x.view(len(x), sequence, heads * head_width)
        q, k, v = (
            projection(positions).view(len(x), *self.shape).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        context = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(context.transpose(1, 2).reshape(positions.shape)).flatten(1)


def normed_pairs(widths):
    modules = []
    for width, hidden, output in zip(widths[:-2:2], widths[1::2], widths[2::2]):
        modules += [nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, output)]
    return nn.Sequential(*modules)


def dataset(samples, inputs, outputs):
    torch.manual_seed(DATA_SEED)
    pairs = [(torch.randn(inputs), torch.randn(outputs)) for _ in range(samples)]
    return TensorDataset(*(torch.stack(column) for column in zip(*pairs)))


def train(program, command, build, inputs, outputs, samples, batch):
    torch.set_num_threads(1)
    torch.manual_seed(MODEL_SEED)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    losses = []
    for _ in range(2):
        for x, y in DataLoader(dataset(samples, inputs, outputs), batch_size=batch):
            loss = functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    parameters = {name: shorten(p.flatten().tolist()) for name, p in model.named_parameters()}
    command += ["--samples", str(samples), "--batch-size", str(batch), "--epochs", "2", "--lr", str(LR)]
    golden = {
        "torch": torch.__version__,
        "options": {"program": f"05_tensor_parallel/{program}", "command": command, "world": 1},
        "ranks": [{"losses": shorten(losses), "params": parameters}],
    }
    path = pathlib.Path(__file__).parent / f"{program}.json"
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(f"{path}: {len(losses)} steps, loss {losses[0]:.6f} to {losses[-1]:.6f}")


def shorten(values):
    """Nine significant digits: enough to tell any two float32 apart."""
    return [float(f"{value:.9g}") for value in values]


def main():
    command = ["--sequence", "5", "--width", "16", "--heads", "8"]
    train("attention", command, lambda: Attention(5, 16, 8), 5 * 16, 5 * 16, 200, 32)
    command = ["--layers", "12,24,6,48,5", "--activation", "gelu"]
    train("sequence_parallel", command, lambda: normed_pairs([12, 24, 6, 48, 5]), 12, 5, 488, 24)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the workshop's model with PyTorch on the CPU and write the results to golden files.

generate.py                      all golden files that this script makes
generate.py NAME ...             these (single_default, ddp2_default, ...)
generate.py --out FILE OPTIONS   one run with options of your own (--help lists them)

The options are those of the workshop's programs. One rank is 01_single_gpu/mlp; several, or --ddp, are 02_ddp/ddp with
gloo. A golden file holds the options, the program and the command line that must reproduce the run, and for each rank
the loss of every step and the parameters after the last one.
"""

import argparse
import json
import os
import pathlib
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

GOLDEN = {
    "single_default": "",
    "single_noshuffle": "--no-shuffle",
    "single_model_seed": "--model-seed 67280421310721",
    "single_relu": "--layers 16,32,32,8 --activation relu",
    "single_gelu": "--layers 7,12,12,5 --activation gelu --epochs 3",
    "single_wide_input": "--layers 20,17,3",
    "single_odd_widths": "--layers 7,5,3 --samples 100 --epochs 3",
    "single_adamw": "--layers 16,32,8 --activation gelu --optimizer adamw --lr 0.001 --epochs 3",
    "single_weight_decay": "--weight-decay 0.1 --lr 0.1 --seed 7",
    "single_short_batch": "--samples 20 --epochs 3",
    "ddp1_default": "--ddp",
    "ddp2_default": "--world 2",
    "ddp2_model_seed": "--world 2 --model-seed 5",
    "ddp2_noshuffle": "--world 2 --layers 7,5,3 --activation relu --samples 100 --batch-size 16 --no-shuffle",
    "ddp3_uneven": "--world 3 --samples 1000 --epochs 2",
    "ddp4_adamw": "--world 4 --layers 16,32,8 --activation gelu --optimizer adamw --lr 0.001 --epochs 3",
    "ddp4_few_samples": "--world 4 --samples 3 --epochs 3",
    "bf16_sgd": "--layers 16,32,32,8 --activation relu --epochs 3 --lr 0.1 --precision bf16",
    "bf16_adamw": "--layers 16,32,8 --activation gelu --optimizer adamw --lr 0.001 --epochs 3 --precision bf16",
    "bf16_ddp2": "--world 2 --layers 16,32,8 --activation relu --epochs 3 --lr 0.1 --precision bf16",
}

ACTIVATIONS = {"none": None, "relu": nn.ReLU, "gelu": nn.GELU}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


class RandomTensorDataset(Dataset):
    """Standard normal inputs and targets. Seeds the default generator, from which the DataLoader then draws."""

    def __init__(self, samples, inputs, outputs, seed):
        torch.manual_seed(seed)
        self.pairs = [(torch.randn(inputs), torch.randn(outputs)) for _ in range(samples)]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


class Trainer:
    """Model, data and optimizer of one rank. Ranks meet through the file `store`."""

    def __init__(self, options, rank=0, store=None):
        torch.set_num_threads(1)
        if options.ddp:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.world)
        # The course's programs seed only their data set. A reproducible run must also seed the model.
        torch.manual_seed(options.model_seed)
        self.model = build_model(options.layers, ACTIVATIONS[options.activation])
        self.type = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.precision]
        self.model.to(self.type)
        self.network = DistributedDataParallel(self.model) if options.ddp else self.model
        decay = {} if options.weight_decay is None else {"weight_decay": options.weight_decay}
        # The optimizer updates the parameters or, if they are not float32, float32 copies of them.
        self.parameters = list(self.model.parameters())
        self.exact = self.parameters
        if options.precision != "fp32":
            self.exact = [parameter.detach().float().requires_grad_() for parameter in self.parameters]
        self.optimizer = OPTIMIZERS[options.optimizer](self.exact, lr=options.lr, **decay)
        self.loss = nn.MSELoss()
        dataset = RandomTensorDataset(options.samples, options.layers[0], options.layers[-1], options.seed)
        self.sampler = None
        if options.ddp:
            self.sampler = DistributedSampler(dataset, options.world, rank, shuffle=options.shuffle)
        shuffle = options.shuffle and not options.ddp
        self.loader = DataLoader(dataset, batch_size=options.batch, shuffle=shuffle, sampler=self.sampler)

    def train_epoch(self, epoch):
        """Return the loss of every step."""
        losses = []
        next(iter(self.loader))  # the course prints the size of the first batch, which draws random numbers
        if self.sampler:
            self.sampler.set_epoch(epoch)
        for inputs, targets in self.loader:
            loss = self.loss(self.network(inputs.to(self.type)).float(), targets)
            self.network.zero_grad(set_to_none=True)
            loss.backward()
            self.update()
            losses.append(loss.item())
        return losses


    def update(self):
        mixed = self.exact is not self.parameters
        if mixed:
            for exact, parameter in zip(self.exact, self.parameters):
                exact.grad = parameter.grad.float()
        self.optimizer.step()
        if mixed:
            with torch.no_grad():
                for exact, parameter in zip(self.exact, self.parameters):
                    parameter.copy_(exact)


def build_model(widths, activation):
    modules = []
    for index, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        if index > 0 and activation:
            modules.append(activation())
        modules.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*modules)


def run_rank(rank, options, store, results):
    trainer = Trainer(options, rank, store)
    losses = [loss for epoch in range(options.epochs) for loss in trainer.train_epoch(epoch)]
    parameters = {name: parameter.float().flatten().tolist() for name, parameter in trainer.model.named_parameters()}
    results[rank] = {"losses": shorten(losses), "params": {name: shorten(v) for name, v in parameters.items()}}
    if options.ddp:
        dist.destroy_process_group()


def shorten(values):
    """Round to nine significant digits, which identify any float32."""
    return [float(f"{value:.9g}") for value in values]


def run(options):
    """Train on options.world processes; return the content of a golden file."""
    with mp.Manager() as manager, tempfile.TemporaryDirectory() as folder:
        results = manager.dict()
        mp.spawn(run_rank, args=(options, f"{folder}/store", results), nprocs=options.world)
        ranks = [results[rank] for rank in range(options.world)]
    if any(rank["params"] != ranks[0]["params"] for rank in ranks):
        raise RuntimeError("the replicas differ")
    kept = {key: value for key, value in vars(options).items() if key not in ("names", "out", "ddp")}
    kept["program"] = "02_ddp/ddp" if options.ddp else "01_single_gpu/mlp"
    kept["command"] = options.command
    return {"torch": torch.__version__, "options": kept, "ranks": ranks}


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--world", type=int, default=1, help="ranks")
    parser.add_argument("--ddp", action="store_true", help="02_ddp/ddp even on one rank")
    group = parser.add_argument_group("options of the workshop's programs")
    shared = [
        group.add_argument("--layers", default="6,4,2"),
        group.add_argument("--activation", choices=ACTIVATIONS, default="none"),
        group.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd"),
        group.add_argument("--lr", type=float, default=0.01),
        group.add_argument("--weight-decay", type=float),
        group.add_argument("--samples", type=int, default=1024),
        group.add_argument("--batch-size", type=int, default=32, dest="batch"),
        group.add_argument("--epochs", type=int, default=1),
        group.add_argument("--no-shuffle", action="store_false", dest="shuffle"),
        group.add_argument("--seed", type=int, default=12345),
        group.add_argument("--model-seed", type=int),
        group.add_argument("--precision", choices=["fp32", "bf16"], default="fp32"),
    ]
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(GOLDEN)
    if unknown:
        parser.error(f"no golden file is called {', '.join(sorted(unknown))}; there are {', '.join(GOLDEN)}")
    options.command = []
    for action in shared:
        value = getattr(options, action.dest)
        if value != action.default:
            options.command += action.option_strings if action.nargs == 0 else [action.option_strings[0], str(value)]
    options.layers = [int(width) for width in options.layers.split(",")]
    options.ddp = options.ddp or options.world > 1
    if options.model_seed is None:
        # Seeds from which the course's own runs happened to start, as in common/options/options.cpp.
        options.model_seed = 1507988244 if not options.shuffle else 1952748940 if options.ddp else 3787541278
    return options


def main():
    options = parse()
    if options.out:
        files = {pathlib.Path(options.out): options}
    else:
        folder = pathlib.Path(__file__).parent
        files = {folder / f"{name}.json": parse(GOLDEN[name].split()) for name in options.names or GOLDEN}
    for path, settings in files.items():
        golden = run(settings)
        path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
        losses = golden["ranks"][0]["losses"]
        print(f"{path}: {len(losses)} steps, loss {losses[0]:.6f} to {losses[-1]:.6f}")


if __name__ == "__main__":
    main()

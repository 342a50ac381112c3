#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train AlexNet with PyTorch and torchvision on the CPU and write the results to golden files.

generate_alexnet.py            every alexnet_*.json of this folder, and the images/ that they use
generate_alexnet.py NAME ...   these (alexnet_224, alexnet_ddp2, ...)

The options are those of the workshop's programs. In addition to losses and parameters, a file has the gradients of the
first step: sum, norm and first values of each. Dropout is off, because PyTorch draws different masks.

If a ReLU's input is zero up to rounding, or a pool chooses between two values that are equal up to rounding, the gradient
has two possible values, and the machine's order of additions decides between them. No run comes near such a place: each
has a model seed that avoids it, and the script rejects other seeds.
"""

import argparse
import json
import os
import pathlib
import tempfile

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torchvision
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms

FOLDER = pathlib.Path(__file__).parent
TRAINED = "--no-shuffle --dropout 0 --optimizer sgd --lr 0.5 --epochs 3"
GOLDEN = {
    "alexnet_32": f"--image-size 32 --shrink 16 --batch-size 8 {TRAINED} --model-seed 1139",
    "alexnet_48": f"--image-size 48 --shrink 32 --batch-size 8 {TRAINED} --classes 12",
    "alexnet_64": f"--image-size 64 --shrink 16 --batch-size 8 {TRAINED}",
    "alexnet_100": f"--image-size 100 --shrink 16 --batch-size 8 {TRAINED}",
    "alexnet_224": f"--image-size 224 --shrink 32 --batch-size 8 {TRAINED} --model-seed 1154",
    "alexnet_torchvision": "--image-size 64 --batch-size 8 --no-shuffle --dropout 0 --optimizer sgd --lr 0.5 "
    "--max-steps 2 --model-seed 1140",
    "alexnet_ddp2": f"--world 2 --image-size 64 --shrink 16 --batch-size 4 {TRAINED}",
}
SIDE, IMAGES = 32, 3  # pixels, images per file
KEPT = 32  # values of each tensor
MARGIN = 1e-6  # distance from such places, in standard deviations of a layer's values; rounding is a tenth of it


def write_images():
    """Images of soft random spots, in the files and the format of CIFAR-10."""
    generator = numpy.random.default_rng(17)
    folder = FOLDER / "images"
    folder.mkdir(exist_ok=True)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    for file, name in enumerate(names):
        records = b""
        for image in range(IMAGES):
            coarse = generator.integers(0, 256, (4, 4, 3), dtype=numpy.uint8)
            soft = numpy.asarray(Image.fromarray(coarse).resize((SIDE, SIDE), Image.BICUBIC))
            records += bytes([(file * IMAGES + image) * 7 % 10]) + soft.transpose(2, 0, 1).tobytes()
        (folder / name).write_bytes(records)


class Images(Dataset):
    """Labels and images of these files, transformed as in the course's program."""

    def __init__(self, names, size):
        self.records = [
            record
            for name in names
            for record in numpy.fromfile(FOLDER / "images" / name, numpy.uint8).reshape(-1, 1 + 3 * SIDE * SIDE)
        ]
        self.transform = transforms.Compose(
            [
                transforms.Resize(round(size * 256 / 224)),
                transforms.CenterCrop(size),
                transforms.ToTensor(),
                transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
            ]
        )

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        label, pixels = int(self.records[index][0]), self.records[index][1:].reshape(3, SIDE, SIDE)
        return self.transform(Image.fromarray(pixels.transpose(1, 2, 0))), label


class AlexNet(nn.Module):
    """torchvision's AlexNet, with widths divided by `shrink` and a first stride that fits the image size."""

    def __init__(self, classes, size, shrink):
        super().__init__()
        c = [width // shrink for width in (64, 192, 384, 256, 256, 4096)]
        stride = 4 if size >= 63 else 2 if size >= 35 else 1
        self.features = nn.Sequential(
            nn.Conv2d(3, c[0], kernel_size=11, stride=stride, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(c[0], c[1], kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(c[1], c[2], kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(c[2], c[3], kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(c[3], c[4], kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            nn.Dropout(p=0),
            nn.Linear(c[4] * 6 * 6, c[5]),
            nn.ReLU(inplace=True),
            nn.Dropout(p=0),
            nn.Linear(c[5], c[5]),
            nn.ReLU(inplace=True),
            nn.Linear(c[5], classes),
        )

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def build_model(options):
    torch.manual_seed(options.model_seed)
    if options.shrink == 1 and options.size >= 63:
        return torchvision.models.alexnet(num_classes=options.classes, dropout=0.0)
    return AlexNet(options.classes, options.size, options.shrink)


def watch_margins(model):
    """Return a list to which every ReLU and max pool appends its smallest margin in every training step."""
    margins = []

    def of_relu(_, inputs):
        if inputs[0].requires_grad:
            margins.append((inputs[0].abs().min() / inputs[0].std()).item())

    def of_pool(pool, inputs):
        if inputs[0].requires_grad:
            windows = inputs[0].unfold(2, pool.kernel_size, pool.stride).unfold(3, pool.kernel_size, pool.stride)
            largest = windows.flatten(4).topk(2).values
            gaps = (largest[..., 0] - largest[..., 1])[largest[..., 0] > 0]
            margins.append((gaps.min() / inputs[0].std()).item())

    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.register_forward_pre_hook(of_relu)
        if isinstance(module, nn.MaxPool2d):
            module.register_forward_pre_hook(of_pool)
    return margins


def run_rank(rank, options, store, results):
    torch.set_num_threads(1)
    model = network = build_model(options)
    margins = watch_margins(model)
    data = Images([f"data_batch_{number}.bin" for number in range(1, 6)], options.size)
    sampler = None
    if options.world > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.world)
        network = DistributedDataParallel(model)
        sampler = DistributedSampler(data, options.world, rank, shuffle=False)
    loader = DataLoader(data, batch_size=options.batch, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    loss_of = nn.CrossEntropyLoss()
    losses, gradients = [], None
    for _ in range(options.epochs):
        for images, labels in loader:
            if options.max_steps and len(losses) == options.max_steps:
                break
            loss = loss_of(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            if gradients is None:
                gradients = {name: summary(parameter.grad) for name, parameter in model.named_parameters()}
            optimizer.step()
            losses.append(loss.item())
    with torch.no_grad():
        images, labels = zip(*Images(["test_batch.bin"], options.size))
        test = loss_of(model(torch.stack(images)), torch.tensor(labels)).item()
    parameters = {name: summary(parameter) for name, parameter in model.named_parameters()}
    result = {"losses": shorten(losses), "valid": [], "test": test, "params": parameters, "margin": min(margins)}
    results[rank] = result if options.world > 1 else result | {"grads": gradients}
    if options.world > 1:
        dist.destroy_process_group()


def summary(tensor):
    values = tensor.detach().flatten().double()
    return {"l2": values.norm().item(), "sum": values.sum().item(), "first": shorten(values[:KEPT].tolist())}


def shorten(values):
    """Round to nine significant digits, which identify any float32."""
    return [float(f"{value:.9g}") for value in values]


def run(options):
    """Train on options.world processes; return the content of a golden file, and the smallest margin."""
    with mp.Manager() as manager, tempfile.TemporaryDirectory() as folder:
        results = manager.dict()
        mp.spawn(run_rank, args=(options, f"{folder}/store", results), nprocs=options.world)
        ranks = [results[rank] for rank in range(options.world)]
    margin = min(rank.pop("margin") for rank in ranks)
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    return versions | {"options": vars(options), "ranks": ranks}, margin


def parse(command):
    parser = argparse.ArgumentParser()
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--image-size", type=int, default=224, dest="size")
    parser.add_argument("--shrink", type=int, default=1)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch-size", type=int, dest="batch")
    parser.add_argument("--no-shuffle", action="store_true")
    parser.add_argument("--dropout", type=float)
    parser.add_argument("--optimizer")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=0)
    parser.add_argument("--model-seed", type=int, default=1138)
    words = command.split()
    options = parser.parse_args(words)
    if "--world" in words:
        at = words.index("--world")
        del words[at : at + 2]
    options.program = "02_ddp/ddp" if options.world > 1 else "01_single_gpu/mlp"
    options.command = ["--model", "alexnet", "--images", "tests/golden/images"] + words
    return options


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names
    unknown = set(names) - set(GOLDEN)
    if unknown:
        parser.error(f"no golden file is called {', '.join(sorted(unknown))}; there are {', '.join(GOLDEN)}")
    if not names:
        write_images()
    for name in names or GOLDEN:
        golden, margin = run(parse(GOLDEN[name]))
        if margin < MARGIN:
            raise SystemExit(f"{name}: a value within {margin:.1g} of where gradients jump; choose another --model-seed")
        (FOLDER / f"{name}.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
        losses = golden["ranks"][0]["losses"]
        print(f"{name}: {len(losses)} steps, loss {losses[0]:.6f} to {losses[-1]:.6f}")


if __name__ == "__main__":
    main()

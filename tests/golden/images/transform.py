#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write transform.json: the results of torchvision's transforms, as in the course's program.

The input is a PIL image, as from torchvision.datasets.CIFAR10, with bytes from a formula. Keeps the sum and every
`stride`-th value of each result.
"""
import json
import pathlib

import torch
import torchvision
from PIL import Image
from torchvision import transforms

SIDE = 32


def pixels() -> torch.Tensor:
    """Bytes [3, SIDE, SIDE] with little pattern, including 0 and 255."""
    return torch.tensor([i * (i + 7919) // 16 % 256 for i in range(3 * SIDE * SIDE)], dtype=torch.uint8).view(3, SIDE, SIDE)


def transformed(image, size: int) -> torch.Tensor:
    return transforms.Compose(
        [
            transforms.Resize(round(size * 256 / 224)),
            transforms.CenterCrop(size),
            transforms.ToTensor() if isinstance(image, Image.Image) else transforms.ConvertImageDtype(torch.float32),
            transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ]
    )(image)


def main() -> None:
    image = Image.fromarray(pixels().permute(1, 2, 0).numpy())
    golden = {"torch": torch.__version__, "torchvision": torchvision.__version__, "sizes": []}
    for size, stride in ((32, 3), (33, 3), (64, 13), (96, 29), (224, 151)):
        values = transformed(image, size)
        other = transformed(pixels().float() / 255, size)
        print(f"size {size}: a tensor would differ by up to {(values - other).abs().max():.4f}")
        values = values.flatten().double()
        golden["sizes"].append(
            {
                "size": size,
                "stride": stride,
                "sum": round(values.sum().item(), 4),
                "values": [round(v, 7) for v in values[::stride].tolist()],
            }
        )
    path = pathlib.Path(__file__).with_name("transform.json")
    path.write_text(json.dumps(golden).replace('{"size"', '\n{"size"') + "\n")


if __name__ == "__main__":
    main()

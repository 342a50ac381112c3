# SPDX-License-Identifier: Apache-2.0
"""Searches the sizes of the pieces in best.cu of the golf tasks, on a model of the simulated machines.

    python3 solutions/golf/search.py all_to_all|tensor_overlap

The pieces use the link that limits the time on two streams with a communicator each, in turn. So a message may begin
while the previous one is still in flight, but not before that has left the link, and nothing waits for this: the sizes
must be such that it is so. Times are in ns."""
from __future__ import annotations

import math
import random
import sys
from typing import Callable

LATENCY, PER_BYTE = 2000, 0.1  # within a node
FAR_LATENCY, FAR_PER_BYTE = 10000, 1.0  # between nodes


class Crossing:
    """The messages between the nodes."""

    def __init__(self) -> None:
        self.number, self.left, self.ends, self.overlap = 0, 0.0, [0.0, 0.0], 0.0

    def send(self, ready: float, size: int) -> float:
        """Returns when a message arrives that can begin at `ready`."""
        way = self.number % 2
        begin = max(ready, self.ends[way])
        self.overlap += max(0.0, self.left - begin)
        self.left = begin + size * FAR_PER_BYTE
        self.ends[way] = self.left + FAR_LATENCY
        self.number += 1
        return self.ends[way]


FORWARDED = 3 * 200 / 256  # bytes that the rank with most forwards, or the one that gets most receives, per byte of a link


def all_to_all(sizes: list[int]) -> tuple[float, float]:
    """Returns the time, and by how much messages overlap. A size is what a link between the nodes carries, in bytes.
    From chunk 2 on, the first node forwards a chunk when the one before the previous one has arrived."""
    crossing, arrived = Crossing(), [0.0, 0.0]
    spread, collected = 0.0, LATENCY + 3 * 16384 * PER_BYTE  # the other node first exchanges its own messages
    for size in sizes:
        step = LATENCY + FORWARDED * size * PER_BYTE
        spread = max(spread, arrived[-2]) + step
        arrived.append(crossing.send(spread, size))
        collected = max(collected, arrived[-1]) + step
    return collected, crossing.overlap


def tensor_overlap(rows: list[int]) -> tuple[float, float]:
    """One group reduces a piece and gathers the one before the previous one; the groups are on two streams in turn."""
    compute, latency, per_row = 0.0, 4000, 0.75 * 512  # of a reduce-scatter or all-gather
    ends, left, overlap = [0.0, 0.0], 0.0, 0.0
    for number, piece in enumerate(rows):
        compute += piece * (2 * 2 * 128 * 128 + 128) / 80
        begin = max(compute, ends[number % 2])
        overlap += max(0.0, left - begin)
        left = begin + per_row * (piece + (rows[number - 2] if number > 1 else 0))
        ends[number % 2] = left + latency
    return max(ends) + latency + per_row * sum(rows[-2:]), overlap


def search(simulate: Callable[[list[int]], tuple[float, float]], total: int, count: int, unit: int, seed: int,
           steps: int = 80000) -> tuple[float, list[int]]:
    """Returns the best time of a random local search, with the sizes, multiples of `unit` whose sum is `total`. If
    there is none without overlap, the time is infinite."""
    chance = random.Random(seed)
    shape = [min(1.0, (place + 1) / 3, (count - place) / 3) for place in range(count)]
    sizes = [max(unit, int(total * height / sum(shape)) // unit * unit) for height in shape]
    sizes[count // 2] += total - sum(sizes)
    current = simulate(sizes)
    best, found = math.inf, sizes
    for step in range(steps):
        late = step / steps
        heat, price = 300 * (1 - late) ** 2 + 1e-9, 10 + 90 * late  # price: of overlap
        amount = unit * max(1, int(2 ** (chance.random() * 8)))
        give, take = chance.sample(range(count), 2)
        if sizes[give] <= amount:
            continue
        new = list(sizes)
        new[give] -= amount
        new[take] += amount
        result = simulate(new)
        gain = current[0] - result[0] + price * (current[1] - result[1])
        if gain > 0 or chance.random() < math.exp(gain / heat):
            sizes, current = new, result
            if result[1] == 0 and result[0] < best:
                best, found = result[0], new
    return best, found


# The model, what the sizes add up to, how many pieces to try, and what sizes are multiples of.
TASKS = {
    "all_to_all": (all_to_all, 262144, range(17, 22), 128),
    "tensor_overlap": (tensor_overlap, 256, range(28, 37), 1),
}


def main() -> None:
    simulate, total, counts, unit = TASKS[sys.argv[1]]
    for count in counts:
        time, sizes = min(search(simulate, total, count, unit, seed) for seed in range(4))
        print(f"{count:2} pieces: {time / 1e3:8.3f} us {[size // unit for size in sizes]}", flush=True)


if __name__ == "__main__":
    main()

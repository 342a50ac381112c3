# SPDX-License-Identifier: Apache-2.0
"""What tests/chapters/random_options.py draws, and what it lets programs do."""
import pytest
from support import load

random_options = load("tests/chapters/random_options.py")

HELP = """Trains a model.
Usage: 02_ddp/ddp [OPTIONS]

Options:
  -h,--help                   Print this help message and exit
  --layers N,N,…=6,4,2      widths of the layers
  --activation none|relu|gelu=none
                              activation between the layers
  --lr X=0.01; gpt: 0.001; on stories: 0.004; alexnet: 0.001
                              learning rate
  --shuffle,--no-shuffle{false}
                              a new order of the samples every epoch (default: on)
  --verbose                   print the batch size and steps
  --max-steps N=0             stop after this many steps
  --record FILE               write the run record
"""
KNOWN = {"--layers": "N,N,…", "--activation": "none|relu|gelu", "--lr": "X", "--shuffle": "", "--verbose": "",
         "--max-steps": "N", "--record": "FILE"}


def test_options_and_types():
    assert random_options.options_in(HELP) == KNOWN


@pytest.mark.parametrize("kind", ["N", "N,N,…", "X", "FILE", "FOLDER", "TEXT", "a|b"])
def test_every_type_has_values(kind):
    good, odd = (random_options.values_of("--x", kind, is_good) for is_good in (True, False))
    assert good and odd and (good != odd or kind in ("FILE", "TEXT"))


def test_what_takes_time_is_bounded():
    assert random_options.values_of("--max-steps", "N", True) == ["1", "2", "3", "-1", "2147483648", "x"]


def test_a_seed_always_draws_the_same():
    def drawn(seed):
        numbers, programs = random_options.Random(seed), {"a/x": KNOWN, "b/y": {"--model": "mlp|gpt|alexnet"}}
        return [str(random_options.draw(numbers, programs)) for _ in range(3000)]

    sets = drawn("1")
    assert sets == drawn("1") and sets != drawn("2") and len(set(sets)) > 100
    assert {"on 1 ranks: a/x", "on 2 ranks: b/y"} <= {" ".join(one.split()[:4]) for one in sets}
    assert all(" --max-steps=2 " in one for one in sets if "a/x" in one)
    assert all("--image-size=32 --shrink=32" in one for one in sets if "alexnet" in one)
    assert all(any(option in one for one in sets) for option in [*KNOWN, "--model=gpt", "--layers=6,8,4,2", "--lr=nan"])


@pytest.mark.parametrize("status,said,right", [
    (0, "", True), (0, "warning: a\nwarning: b\n", True), (1, "loss is nan\nmore\n", True), (2, "error: no\n", True),
    (2, "", False), (2, "error: no\nmore\n", False), (3, "error: no\n", False), (124, "", False), (139, "", False),
    (1, "order: a.cu:1 and b.cu:2\n", False), (0, "x.cpp:1: runtime error: overflow\n", False),
    (1, "==1==ERROR: AddressSanitizer: x\n", False), (1, "bounds: x\n", False)])
def test_how_programs_may_end(status, said, right):
    assert random_options.is_right(status, said) == right

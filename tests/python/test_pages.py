# SPDX-License-Identifier: Apache-2.0
"""What tools/pages takes for the same, and what it finds wrong in pages."""

import importlib.machinery
import importlib.util
import os

import pytest
from conftest import ROOT

loader = importlib.machinery.SourceFileLoader("pages", os.path.join(ROOT, "tools", "pages"))
pages = importlib.util.module_from_spec(importlib.util.spec_from_loader("pages", loader))
loader.exec_module(pages)


@pytest.mark.parametrize(
    "sample,output,simulated,same",
    [
        (["a", "b"], ["a", "b"], False, True),
        (["a", "b"], ["a", "c"], False, False),
        (["a", "…"], ["a", "b", "c"], False, True),
        (["…", "c"], ["a", "b", "c"], False, True),
        (["…", "b", "…"], ["a", "b", "c"], False, True),
        (["a … c"], ["a b c"], False, True),
        (["a"], ["a", "b"], False, False),
        (["took 3.1 ms"], ["took 12 ms"], False, True),
        (["took 3.1 ms"], ["took 12 ms"], True, False),
        (["20 GB/s   x"], ["1.25 GB/s x"], False, True),
        (["loss 1.256364"], ["loss 1.256365"], False, True),
        (["loss 1.256364"], ["loss 1.266364"], False, False),
        (["at x.h:17"], ["at x.h:18"], False, False),
        (["a (b) [c] *"], ["a (b) [c] *"], False, True),
        (["difference 1.2e-07"], ["difference 0.0e+00"], False, True),
    ],
)
def test_samples(sample, output, simulated, same):
    assert pages.agrees(sample, output, simulated) == same


def test_lines_are_brought_up_to_date():
    assert pages.brought_up_to_date(["old"], ["new", "lines"]) == ["new", "lines"]
    assert pages.brought_up_to_date(["…", "at x.h:17", "…"], ["TODO", "at x.h:18", "more"]) == ["…", "at x.h:18", "…"]


def test_plain_output():
    assert pages.plain("\x1b[31mred\x1b[0m\nold\rnew\n") == ["red", "new"]


def test_anchors_are_those_of_github():
    assert pages.anchors("# What it *costs*: α\n\n## Run\n```\n# no heading\n```\n## Run\n") >= {
        "what-it-costs-α",
        "run",
        "run-1",
    }
    assert "no-heading" not in pages.anchors("```\n# no heading\n```\n")


def test_links_and_marks(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", str(tmp_path))
    (tmp_path / "b.md").write_text("# There\n")
    (tmp_path / "a.md").write_text(
        "[x](b.md#there) [y](b.md#not) [z](c.md) [w](https://e.org/x) `[v](d.md)`\n"
        "```sh\nls\n```\n\n```\nprinted\n```\n\n<!-- example -->\n```\nmade up\n```\n"
    )
    assert list(pages.check_links("a.md")) == ["a.md: b.md has no heading '#not'", "a.md: there is no c.md"]
    assert list(pages.check_marks("a.md")) == ["a.md:6: no comment says what prints this block (tools/pages)"]


@pytest.mark.parametrize(
    "before,comment,shown",
    [
        ("`./workshop run 02 -n 2`:", "output: ./workshop run 02 -n 2", True),
        ("`./workshop run 02 -n\n2 -- --lr 1`:", "measured: ./workshop run 02 -n 2 -- --lr 1 | tail -1", True),
        ("```sh\n\nX=1 ./workshop run 02 \\\n  -n 2   # why\nls\n```", "measured: X=1 ./workshop run 02 -n 2; slow", True),
        ("`./workshop run 02 -n 2`:", "output: X=1 ./workshop run 02 -n 2", False),
        ("`./workshop run 02 -n 2`:", "output: ./workshop run 02 -n 2 -- --lr 1", False),
        ("`./workshop run 02 ddp_overlap -n 2`:", "output: ./workshop run 02 -n 2", False),
        ("./workshop run 02 -n 2:", "output: ./workshop run 02 -n 2", False),
        ("`./workshop run 02 -n 2`\n# Next", "output: ./workshop run 02 -n 2", False),
        ("`./workshop run 02 -n 2`" + 20 * "\n", "output: ./workshop run 02 -n 2", False),
        ("<!-- example -->\n```\n./workshop run 02\n```", "output: ./workshop run 02", False),
        ("`./workshop run 02 -n 2`, with `--lr 1`:", "output: ./workshop run 02 -n 2 -- --lr 1", True),
        ("`./workshop run 02 -- --lr 1`, with `--lr 2`:", "output: ./workshop run 02 -- --lr 2", True),
        ("`./workshop run 02 -- --lr 1`, without `--lr`:", "output: ./workshop run 02", True),
        ("`./workshop run 02 -- --record r`:", "output: f=$(mktemp); ./workshop run 02 -- --record $f >f; cat $f", True),
        ("`./workshop run 02 -n 1`:", "output: f=$(mktemp); ./workshop run 02 -n 2 -- --record $f; cat $f", False),
        ("Nothing:", "output: ls", True),
        ("Nothing:", "example", True),
    ],
)
def test_samples_show_their_command(before, comment, shown, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", str(tmp_path))
    (tmp_path / "a.md").write_text(f"# Run\n\n{before}\n\n<!-- {comment} -->\n```\nprinted\n```\n")
    assert (not list(pages.check_commands("a.md"))) == shown


def test_a_sample_may_begin_with_its_command(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", str(tmp_path))
    (tmp_path / "a.md").write_text("<!-- measured: ./workshop demo -->\n```\n$ ./workshop demo\nprinted\n```\n")
    assert not list(pages.check_commands("a.md"))


def test_places_are_those_of_the_solution(tmp_path):
    solution = pages.read("solutions/02_ddp/ddp.h").split("\n")
    (tmp_path / "fillings" / "02_ddp").mkdir(parents=True)
    (tmp_path / "fillings" / "02_ddp" / "ddp.h").write_text("\n".join(solution[:9] + ["inserted"] * 7 + solution[9:]))
    programs = pages.Programs(str(tmp_path))
    place = [None, "02_ddp/ddp.h", "30"]
    assert programs.in_solution(place) == "02_ddp/ddp.h:23"
    assert programs.in_solution([None, "02_ddp/ddp.h", "12"]) == "02_ddp/ddp.h:10"

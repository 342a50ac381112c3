# SPDX-License-Identifier: Apache-2.0
"""What tests/order/each_mark_is_missed.py looks for, and where."""
import os
import re

from conftest import ROOT
from support import load

each_mark_is_missed = load("tests/order/each_mark_is_missed.py")


def test_lines_with_marks():
    source = ("int x;\n  CUDA_CHECK(cudaEventRecord(a, s));\n  CUDA_CHECK(cudaEventCreate(&a));\n"
              "  CUDA_CHECK(cudaStreamWaitEvent(s, a, 0));\n  // cudaEventRecord\n")
    assert each_mark_is_missed.lines_with_marks(source) == [2, 4]


def test_findings_name_two_places():
    said = "order: a.cu:3 (kernel, which writes) and b.cu:4 (ncclSend, which reads): record"
    assert each_mark_is_missed.finding(f"loss 1\n{said}\nmore\n") == said
    assert not each_mark_is_missed.finding("order: a.cu:3 (kernel) is not waited for\n")
    assert not each_mark_is_missed.finding("loss 1\n")


def test_each_file_that_ctest_names_has_runs():
    with open(os.path.join(ROOT, "tests", "order", "CMakeLists.txt"), encoding="utf-8") as file:
        files = re.search(r"foreach\(where ([^)]*)\)", file.read())[1].split()
    assert files and all(each_mark_is_missed.runs_of(name) for name in files)
    assert not each_mark_is_missed.runs_of("99_x/a.cu")
    assert each_mark_is_missed.runs_of("06_fsdp/fsdp.h")[1][-1] == "--no-prefetch"

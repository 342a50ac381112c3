# SPDX-License-Identifier: Apache-2.0
"""What tests/expect_status promises."""

import os
import subprocess

import pytest
from conftest import ROOT


@pytest.mark.parametrize(
    "words,status,first_line",
    [
        (["3", "sh", "-c", "exit 3"], 0, ""),
        (["3", "echo", "shown"], 1, "shown"),
        (["-e", "^a+$", "0", "echo", "aaa"], 0, ""),
        (["-e", "^b$", "0", "echo", "aaa"], 1, "aaa"),
        (["-s", "^cannot", "0", "sh", "-c", "echo cannot; exit 77"], 77, "cannot"),
        (["-s", "^cannot", "0", "sh", "-c", "echo TODO; exit 77"], 1, "TODO"),
    ],
)
def test_expect_status(words, status, first_line):
    done = subprocess.run(
        [os.path.join(ROOT, "tests", "expect_status"), *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.partition("\n")[0]) == (status, first_line)

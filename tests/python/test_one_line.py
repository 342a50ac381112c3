# SPDX-License-Identifier: Apache-2.0
"""What tests/chapters/one_line.py promises."""
import subprocess

import pytest
from conftest import ROOT

NOTE = "echo note: 2 ranks share 1 GPU; echo note: 3 parts share 1 GPU; echo 'warning: 1 GPU stays idle';"


@pytest.mark.parametrize("status,pattern,command,passes", [
    ("2", "^error: a", "echo error: a >&2; exit 2", True),
    ("2", "^error: a", "printf 'error: a'; exit 2", True),
    ("2", "^error: a", f"{NOTE} echo error: a; exit 2", True),
    ("0", "^aa$", r"printf 'a\0a\n'", True),
    ("137", "", "echo x; kill -KILL $$", True),
    ("1", "^error: a", "echo error: a; exit 2", False),
    ("2", "^error: b", "echo error: a; exit 2", False),
    ("2", "^error: a", "echo error: a; echo more; exit 2", False),
    ("2", "^error: a", "echo error: a; echo more >&2; exit 2", False),
    ("2", "^error: a", f"{NOTE} exit 2", False),
    ("2", "^error: a", "exit 2", False)])
def test_one_line(status, pattern, command, passes):
    one_line = [f"{ROOT}/tests/python/with_python", f"{ROOT}/tests/chapters/one_line.py"]
    done = subprocess.run([*one_line, status, pattern, "sh", "-c", command], capture_output=True, text=True, timeout=60,
                          check=False)
    assert (done.returncode == 0) == passes
    assert passes == (done.stdout == "") and done.stderr == ""
    assert passes or done.stdout.rstrip("\n").endswith(f"expected {status} and one line that matches: {pattern}")

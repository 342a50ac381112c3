# SPDX-License-Identifier: Apache-2.0
"""Runs main() of a module of the package beside this file: main.py MODULE [ARGUMENT]..."""
import sys

if sys.version_info < (3, 9):
    sys.exit("%s: %s is Python %d.%d; install 3.9 or newer, or name one in WORKSHOP_PYTHON"
             % ((sys.argv[1], sys.executable) + sys.version_info[:2]))

import importlib
import os

for number in (0, 1, 2):  # one that is closed would soon be another file
    try:
        os.fstat(number)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the first free number
sys.stdin = sys.stdin or open(0, closefd=False)
sys.stdout = sys.stdout or open(1, "w", closefd=False)
sys.stderr = sys.stderr or open(2, "w", closefd=False)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.exit(importlib.import_module("workshop." + sys.argv[1]).main(sys.argv[2:]))

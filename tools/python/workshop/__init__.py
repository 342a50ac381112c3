# SPDX-License-Identifier: Apache-2.0
"""The workshop's command, launcher and checks. Python 3.9 and newer, standard library only (tools/python/README.md)."""

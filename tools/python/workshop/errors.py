# SPDX-License-Identifier: Apache-2.0
"""How a command ends early."""


class Refused(Exception):
    """A command that cannot be carried out as it was typed: one line on stderr, status 2."""


class Failed(Exception):
    """A command that failed; what there is to say has been said."""

    def __init__(self, status: int = 1):
        super().__init__(status)
        self.status = status

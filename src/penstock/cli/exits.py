# SPDX-License-Identifier: Apache-2.0
"""The exit statuses of all commands, and the error that carries one.

Where: commands raise `CommandFailed`; `main` prints its sentence and ends with its status. `docs/reference/cli.md` has
the table.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from penstock.core.errors import PenstockError


class Exit(IntEnum):
    """Exit status of a command, for scripts."""

    text: str

    def __new__(cls, status: int, text: str) -> Self:
        made = int.__new__(cls, status)
        made._value_ = status
        made.text = text
        return made

    OK = 0, "it is done"
    FAILED = 1, "the cluster refused, or something failed on the way; the message says what"
    USAGE = 2, "the command was called wrongly, or a setting cannot be used"
    NOT_FOUND = 3, "the named tenant, namespace, topic or other object does not exist"
    NOT_ALLOWED = 4, "the caller is not authenticated, or may not do this"
    NO_ANSWER = 5, "nobody answered at the address, or not in time"
    BAD_NEWS = 6, "it was answered, and the answer is bad news: `why` found a limit, `doctor` a fault"
    NOT_YET = 7, "it was accepted, and `--wait` ended before all brokers showed its effect"
    INTERRUPTED = 130, "Ctrl-C"


class CommandFailed(PenstockError):
    """A command could not do what it was asked; the message says why and what to do next."""

    def __init__(self, message: str, status: Exit = Exit.FAILED) -> None:
        self.status = status
        super().__init__(message)


def wrong(message: str) -> CommandFailed:
    """Return the error of a wrong call."""
    return CommandFailed(message, Exit.USAGE)


def did_you_mean(name: str, known: list[str]) -> str:
    """Return the known name that a misspelt one is near to, as the end of a sentence; empty if there is none."""
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), by_lower := {one.lower(): one for one in known}, 1)
    return f"; do you mean {by_lower[near[0]]}?" if near else ""

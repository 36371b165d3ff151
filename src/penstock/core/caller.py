# SPDX-License-Identifier: Apache-2.0
"""Who asks, as one broker tells another: the caller that it has authenticated, or the broker itself.

Why: a connection between brokers proves that a broker asks, not for whom. The broker that is asked authorizes the
caller again, so it can do nothing there that it could not do itself.
Where: the checks of the admin API prove a caller and set `CALLER`; requests to other brokers carry it in `HEADER`.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.core.carried_role import decode_role, encode_role

# Read only on connections from other brokers; a client that sends it achieves nothing.
HEADER: Final = "x-penstock-caller"
_CALLER: Final = "caller"
_BROKER: Final = "broker"


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller of the admin port of some broker.

    Attributes:
        role: as proven there; empty if the brokers authenticate nobody.
        proven_by: the method of authentication that proved it, such as `token`.
        original_role: for whom it asks, if it is a proxy.
    """

    role: str
    proven_by: str
    original_role: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerItself:
    """A broker that does work of its own, such as deleting the partitions of a topic."""

    number: int


Asker: TypeAlias = Caller | BrokerItself

NOBODY: Final = Caller("", "none")
# The caller of the current request; NOBODY if it was not authenticated.
CALLER: Final[ContextVar[Caller]] = ContextVar("CALLER", default=NOBODY)


def encode_asker(asker: Asker) -> str:
    """Return the value of the header."""
    if isinstance(asker, BrokerItself):
        return f"{_BROKER};{asker.number}"
    roles = (asker.role, asker.proven_by, *(() if asker.original_role is None else (asker.original_role,)))
    return ";".join((_CALLER, *map(encode_role, roles)))


def decode_asker(text: str) -> Asker:
    """Return what `encode_asker` has encoded. Raises ValueError for other texts."""
    kind, *rest = text.split(";")
    if kind == _CALLER and len(rest) in {2, 3}:
        return Caller(*map(decode_role, rest))
    if kind == _BROKER and len(rest) == 1 and rest[0].isascii() and rest[0].isdigit():
        return BrokerItself(int(rest[0]))
    raise ValueError(f"{text!r} does not say who asks")

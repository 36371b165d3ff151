# SPDX-License-Identifier: Apache-2.0
"""Caller of a request between brokers: the one that a broker has authenticated, or the broker itself.

Why: a connection between brokers proves that a broker asks, not for whom. The broker that is asked authorizes the
caller again, so it can do nothing there that it could not do itself.
Where: the checks of the admin API prove a caller and set `CALLER`; requests to other brokers carry it in `HEADER`.
"""

from __future__ import annotations

import base64
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.core.errors import AuthorizationFailed
from penstock.core.units import KIB

# ---------------------------------------------------------------------------------------------------------------------
# A role as the text of a header: any string of Python survives unchanged, and no other text is accepted.
#
# Why: values of headers lose spaces at their ends, and have no characters beyond Latin-1. A role that changes on its
# way is another role. Where: requests that one process passes on to another for a caller.


def encode_role(role: str) -> str:
    """Return the role as letters, digits, `-` and `_`."""
    return base64.urlsafe_b64encode(role.encode("utf-8", "surrogatepass")).decode("ascii").rstrip("=")


def decode_role(text: str) -> str:
    """Return the role that `encode_role` has encoded. Raises ValueError for a text that is not its result."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    role = data.decode("utf-8", "surrogatepass")
    if encode_role(role) != text:
        raise ValueError(f"{text!r} is not a role as it is encoded in headers")
    return role


# ---------------------------------------------------------------------------------------------------------------------
# Which roles a proxy may pass on: those that arrive in an HTTP header exactly as they were written.
#
# Why: Pulsar's header X-Original-Principal is plain text. HTTP drops spaces at both ends of a value, has no control
# characters, and does not say how other letters than ASCII are encoded. A role that is changed on its way is the role
# of somebody else: `"admin "` would arrive as `"admin"`. CONNECT could carry more, but a role that the protocol knows
# and the admin port does not would be two clients, so the same rule is for both. Where: a proxy asks before it passes a
# role on, by CONNECT or by HTTP; a broker when such a header arrives.

# Brokers refuse a CONNECT whose `original_principal` is longer (`wire.bounds`); heads of requests have room for it.
ROLE_CHARS_MAX: Final = KIB
_SHOWN_CHARS: Final = 100


def check_passed_role(role: str) -> None:
    """Raises AuthorizationFailed, with the reason, unless this role survives being passed on."""
    if not role:
        why = "it is empty"
    elif len(role) > ROLE_CHARS_MAX:
        why = f"it has {len(role)} characters, and may have {ROLE_CHARS_MAX}"
    elif not role.isascii() or not role.isprintable():
        why = "it has other characters than letters, digits, signs and spaces of ASCII"
    elif role != role.strip():
        why = "it begins or ends with a space, which HTTP drops"
    else:
        return
    raise AuthorizationFailed(f"role {role[:_SHOWN_CHARS]!r} cannot be passed on unchanged: {why}; use another role")


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

# SPDX-License-Identifier: Apache-2.0
"""One open transaction, and what it needs of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.units import NS_PER_MS
from penstock.governance.budget import Charge
from penstock.storage.transaction_rows import OPEN, StoredTransaction

if TYPE_CHECKING:
    import asyncio

    from penstock.core.transaction_id import TransactionId
    from penstock.governance.budget import Row

# Memory of a transaction, and of each topic and subscription in it, in bytes.
TRANSACTION_BYTES: Final = 1_000
PART_BYTES: Final = 900


class Part(NamedTuple):
    """A topic that a transaction may send to, or a subscription in which it may acknowledge."""

    ledger_id: int
    topic: str  # in full
    subscription: str  # empty: the topic itself


class Transaction:
    """An open transaction.

    Attributes:
        id: as clients know it.
        owner: the role that opened it; empty without authentication.
        started_ms: wall time.
        timeout_ms: after which it is aborted.
        deadline_ns: monotonic time of that.
        parts: what belongs to it, in the order in which it was added.
        brokers: others, at which it may have parts.
        ending: done when it has ended; None while it is open.
        commit: while it is ending: how.
        decided: whether it is committed, though not in all its topics yet.
        in_doubt: whether it may be: nobody knows whether its commit was stored.
        unknown: whether its coordinator, which is another broker's, must be asked whose it is and for how long.
        taken_up: whether it was open before the start: perhaps rows of parts are stored that are not in `parts`.
        charge: its memory.
    """

    __slots__ = (
        "brokers",
        "charge",
        "commit",
        "deadline_ns",
        "decided",
        "ending",
        "id",
        "in_doubt",
        "owner",
        "parts",
        "started_ms",
        "taken_up",
        "timeout_ms",
        "unknown",
    )

    def __init__(
        self,
        transaction: TransactionId,
        owner: str,
        memory: Row,
        *,
        started_ms: int,
        timeout_ms: int,
        deadline_ns: int,
    ) -> None:
        self.id = transaction
        self.owner = owner
        self.started_ms = started_ms
        self.timeout_ms = timeout_ms
        self.deadline_ns = deadline_ns
        self.parts: dict[Part, None] = {}
        self.brokers: set[int] = set()
        self.ending: asyncio.Future[None] | None = None
        self.commit = self.decided = self.in_doubt = self.unknown = self.taken_up = False
        self.charge = Charge(memory)

    @property
    def since_ns(self) -> int:
        """When it was opened, monotonic; after a restart as if the clock had gone on."""
        return self.deadline_ns - self.timeout_ms * NS_PER_MS

    @property
    def is_open(self) -> bool:
        """Whether it is neither ending nor decided."""
        return self.ending is None and not self.decided

    @property
    def status(self) -> str:
        """As Pulsar calls it."""
        if self.is_open:
            return "OPEN"
        return "COMMITTING" if self.commit else "ABORTING"

    @property
    def topics(self) -> list[str]:
        """The names of its topics, and of those of its subscriptions, each once."""
        return list(dict.fromkeys(part.topic for part in self.parts))

    def stored(self, status: int = OPEN) -> StoredTransaction:
        """The transaction as it is stored."""
        return StoredTransaction(self.id, status, self.started_ms, self.timeout_ms, self.owner)

# SPDX-License-Identifier: Apache-2.0
"""The sessions of all connected clients.

Where: `commands` adds each session and removes it when its client disconnects; the broker's tick and stop, revocation
and snapshots iterate over them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from penstock.governance.holds import HoldKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.broker.commands.session import Session


# Clients that are told apart; refusals of more are counted together.
REFUSED_KEPT_MAX: Final = 1_000


class Sessions(Collection["Session"]):
    """A set of sessions. All methods are called on the event loop."""

    def __init__(self) -> None:
        self._refused: Counter[tuple[str, int]] = Counter()
        self._sessions: dict[Session, None] = {}  # in the order of connecting

    def __contains__(self, session: object) -> bool:
        return session in self._sessions

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session: Session) -> None:
        self._sessions[session] = None

    def discard(self, session: Session) -> None:
        self._sessions.pop(session, None)

    def refused(self, address: str, command: int) -> None:
        """Count a command of a client that was refused because it exceeds a bound."""
        key = (address, command)
        if key not in self._refused and len(self._refused) >= REFUSED_KEPT_MAX:
            key = ("", command)
        self._refused[key] += 1

    def take_refused(self) -> Mapping[tuple[str, int], int]:
        """Return how many commands were refused since the last call, by address of the client and type."""
        refused, self._refused = self._refused, Counter()
        return refused

    def check_alive(self, now_ns: int) -> None:
        for session in list(self._sessions):
            session.check_alive(now_ns)

    def mute_publishers(self, *, stalled: bool) -> None:
        """While a disk write is stalled, do not read from publishers: their messages would only fill the memory."""
        for session in self._sessions:
            if stalled and session.producers:
                session.connection.mute(HoldKind.STORAGE)
            elif not stalled:
                session.connection.unmute(HoldKind.STORAGE)

    def disconnect_producers(self) -> None:
        """Tell all producers of persistent topics to reconnect, which they can when `check_writable` lets them."""
        for session in list(self._sessions):
            for producer in list(session.producers.values()):
                if producer.topic.persistent:
                    session.disconnect_producer(producer)

    def disconnect_members(self) -> None:
        """Tell all producers and consumers to reconnect."""
        for session in list(self._sessions):
            for producer in list(session.producers.values()):
                session.disconnect_producer(producer)
            for consumer in list(session.consumers.values()):
                session.disconnect_consumer(consumer)

    def close(self, reason: str) -> None:
        """Close all connections after sending what is queued."""
        for session in list(self._sessions):
            session.connection.close_after_flush(reason)

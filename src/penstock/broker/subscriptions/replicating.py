# SPDX-License-Identifier: Apache-2.0
"""Replicator of a subscription, as those below `broker.replication` see it, and those above.

Where: `broker.replication.replicator` is the one kind; statistics and explanations read its attributes, topics end it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from penstock.core.units import NS_PER_S


class SubscribedReplicator(ABC):
    """Consumer of a cursor `pulsar.repl.CLUSTER`.

    Attributes:
        cluster: that it sends to.
        problem: why it does not go on; None: it does, or waits for entries.
        since_ns: since when.
        connection: address of the broker there; empty while its producer is closed.
        connected_ms: when its producer was opened last, in ms since 1970.
        out_bytes: on their way.
    """

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.problem: str | None = None
        self.since_ns = 0
        self.connection = ""
        self.connected_ms = 0
        self.out_bytes = 0

    def delay_s(self, now_ns: int) -> int:
        """Return for how long nothing has gone on, in seconds; 0 while it does."""
        return 0 if self.problem is None else (now_ns - self.since_ns) // NS_PER_S

    @abstractmethod
    def end(self) -> None:
        """Stop for good."""

    @abstractmethod
    def resume(self) -> None:
        """Go on after a pause."""

    @abstractmethod
    def receipt(self) -> None:
        """The oldest entry that was sent is stored there."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Give up what is on its way: the connection is over, or the producer is."""

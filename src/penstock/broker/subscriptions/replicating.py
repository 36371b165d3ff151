# SPDX-License-Identifier: Apache-2.0
"""Replicator of a subscription, and its places in other clusters, as those see them that are not `broker.replication`.

Where: `broker.replication.replicator` and `broker.replication.snapshots` have the one kind of each; statistics and
explanations read the attributes of replicators, topics end them, and cursors tell places that they have moved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping

# The property that a replicated subscription is stored with. Clients neither see nor set it.
REPLICATED: Final = "pulsar.replicated.subscription"


def without_replicated(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a subscription that are its clients'."""
    return {key: value for key, value in properties.items() if key != REPLICATED}


def with_replicated(properties: Mapping[str, str], *, replicated: bool) -> dict[str, str]:
    """Return the properties of a subscription as they are stored."""
    return without_replicated(properties) | ({REPLICATED: "true"} if replicated else {})


class PlacesElsewhere(ABC):
    """Places of a subscription in other clusters."""

    @abstractmethod
    def passed(self) -> None:
        """The cursor has moved: tell the other clusters, if it has passed a place that they know."""

    @abstractmethod
    def told(self) -> None:
        """Another cluster has moved the cursor, and tells all others itself."""


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

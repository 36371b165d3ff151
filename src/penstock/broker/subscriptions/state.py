# SPDX-License-Identifier: Apache-2.0
"""Shared state of the parts of one subscription: its cursor, consumers, read position and counters.

Why a class of its own: reading, delivering, acknowledging and moving use it without knowing each other.
Where: `Subscription` derives from it, and passes itself to its parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.subscriptions.cursor_memory import CursorMemory
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.broker.subscriptions.consumer import Consumer, Gate, SubscribedTopic
    from penstock.broker.subscriptions.dispatcher import Dispatcher
    from penstock.broker.subscriptions.holds import DispatchHolds
    from penstock.broker.subscriptions.pending_acks import PendingAcks, Undelivered
    from penstock.broker.subscriptions.replicating import PlacesElsewhere, SubscribedReplicator
    from penstock.governance.budget import Row
    from penstock.governance.delayed_view import DelayedDeliveryView
    from penstock.storage.cursor import Cursor

EXCLUSIVE: Final = codec.CommandSubscribe.Exclusive
SHARED: Final = codec.CommandSubscribe.Shared
FAILOVER: Final = codec.CommandSubscribe.Failover
KEY_SHARED: Final = codec.CommandSubscribe.Key_Shared

# As Pulsar spells them; `Key_Shared` is the one with an underscore.
TYPE_NAMES: Final[Mapping[int, str]] = {
    EXCLUSIVE: "Exclusive",
    SHARED: "Shared",
    FAILOVER: "Failover",
    KEY_SHARED: "Key_Shared",
}


class SubscriptionState:
    """The state of one subscription. Times are 0 for never."""

    __slots__ = (
        "acks",
        "bytes_out",
        "consumers",
        "cursor",
        "dispatcher",
        "dropped",
        "durable",
        "expired",
        "fenced",
        "gate",
        "holds",
        "idle_since_ns",
        "kind",
        "last_acked_ms",
        "last_consumed_ms",
        "last_expired_ms",
        "last_flow_ms",
        "memory",
        "messages_out",
        "messages_redelivered",
        "name",
        "of_broker",
        "pending",
        "places",
        "read_entry_id",
        "replicator",
        "rewound_ns",
        "through_proxy",
        "topic",
        "undelivered",
        "view",
    )

    def __init__(self, topic: SubscribedTopic, name: str, *, cursor: Cursor, durable: bool, memory: Row) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.pending: PendingAcks | None = None  # of open transactions; None without any
        self.undelivered: Cursor | Undelivered = cursor  # what dispatch asks for entries to deliver
        self.rewound_ns = 0  # turn in which the read position was moved back: what is older was perhaps sent before
        self.durable = durable
        self.memory = CursorMemory(cursor, memory, topic.ledger_id)
        self.kind: int = EXCLUSIVE
        self.consumers: list[Consumer] = []
        self.dispatcher: Dispatcher | None = None  # None without consumers
        self.gate: Gate | None = None  # None without a dispatch rate limit
        self.holds: DispatchHolds | None = None  # None before its dispatch is stopped for the first time
        # View of the topic's delayed messages; None without Shared consumers.
        self.view: DelayedDeliveryView | None = None
        self.read_entry_id = cursor.mark_delete + 1  # the next new entry
        self.fenced = False  # being reset or deleted: no consumer attaches, nothing is delivered
        self.of_broker = False  # its consumer is another broker of this cluster, whom no dispatch limit concerns
        self.through_proxy = False  # one of its consumers came through a proxy, which may limit messages
        self.places: PlacesElsewhere | None = None  # None while its place is not told to other clusters
        self.replicator: SubscribedReplicator | None = None  # whose cursor this is; None: that of clients
        self.dropped = 0  # non-persistent entries dropped for lack of permits
        self.expired = 0  # entries acknowledged by expiry
        self.messages_out = 0
        self.bytes_out = 0
        self.messages_redelivered = 0
        self.acks = 0  # whole entries
        self.idle_since_ns = 0  # since when it has no consumers; 0 with consumers
        self.last_flow_ms = 0
        self.last_consumed_ms = 0
        self.last_acked_ms = 0
        self.last_expired_ms = 0

    @property
    def backlog(self) -> int:
        return self.cursor.backlog(self.topic.last_entry_id) if self.topic.persistent else 0

    def charge(self) -> None:
        self.memory.measure()

    def release(self) -> None:
        """Release the cursor's charge: the subscription is deleted, or its topic unloaded."""
        self.places = None
        self.memory.release()

    def delay_nothing(self) -> None:
        """Remove the view of delayed messages: the subscription ends, or has a single active consumer."""
        if self.view is not None:
            self.topic.leave_delayed(self)
        self.view = None

    def acknowledged_for_view(self, entry_ids: Sequence[int]) -> None:
        """Remove acknowledged entries from the delayed messages."""
        if self.view is not None:
            self.view.acknowledged(entry_ids)
            self.view.update_mark_delete_position(self.cursor.mark_delete)

    def tell_of_end(self) -> None:
        """Tell each consumer once that a terminated topic is completely acknowledged."""
        if not self.topic.terminated or self.backlog or self.topic.holds_back:
            return
        for consumer in self.consumers:
            if not consumer.told_of_end:
                consumer.told_of_end = True
                consumer.outlet.write_frame(codec.reached_end_of_topic(consumer.consumer_id))

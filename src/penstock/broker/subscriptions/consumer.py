# SPDX-License-Identifier: Apache-2.0
"""A connected consumer: its identity, its permits, and its counters.

Where: a session makes one for each SUBSCRIBE; its subscription keeps it while it is connected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.accounting.totals import NOT_SEEN
from penstock.broker.subscriptions.entry_counts import EntryCounts
from penstock.broker.subscriptions.key_shared import AUTO_SPLIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.subscriptions.key_shared import KeySharing
    from penstock.broker.subscriptions.ports import Client, ConsumedSubscription, Outlet


class Consumer:
    """One connected consumer of a subscription.

    `permits` counts messages, not entries, and may become negative when a batch was larger than the permits (FLOW). In
    Shared and Key_Shared subscriptions, `pending_acks` maps each delivered and unacknowledged entry to its number of
    unacknowledged messages; `unacked` is their sum. Times are 0 for never, and read once per run.
    """

    __slots__ = (
        "acks",
        "blocked",
        "bytes_out",
        "charged_bytes",
        "connected_at_ms",
        "consumer_id",
        "entries_out",
        "epoch",
        "key_sharing",
        "last_acked_ms",
        "last_consumed_ms",
        "last_flow_ms",
        "messages_out",
        "messages_redelivered",
        "metadata",
        "name",
        "outlet",
        "pending_acks",
        "permits",
        "priority_level",
        "read_position_when_joining",
        "reads_compacted",
        "seen",
        "session",
        "subscription",
        "takes_any_schema",
        "told_of_end",
        "unacked",
    )

    def __init__(
        self,
        *,
        session: Client,
        outlet: Outlet,
        consumer_id: int,
        name: str,
        priority_level: int,
        subscription: ConsumedSubscription,
        epoch: int | None,
        connected_at_ms: int,
        metadata: Mapping[str, str] | None = None,
        key_sharing: KeySharing = AUTO_SPLIT,
    ) -> None:
        self.session = session
        self.outlet = outlet
        self.consumer_id = consumer_id
        self.name = name
        self.priority_level = priority_level
        self.subscription = subscription
        self.epoch = epoch
        self.connected_at_ms = connected_at_ms
        self.metadata: Mapping[str, str] = metadata or {}
        self.key_sharing = key_sharing
        self.charged_bytes = 0  # charged to the sessions' memory, see `session_memory`
        # It subscribed with AUTO_CONSUME: it accepts any schema.
        self.reads_compacted = False
        self.takes_any_schema = False
        self.permits = 0
        self.pending_acks = EntryCounts()
        self.unacked = 0
        self.blocked = False  # it has the maximum number of unacknowledged messages
        self.told_of_end = False
        self.messages_out = 0
        self.entries_out = 0
        self.bytes_out = 0
        self.seen = NOT_SEEN  # by usage records
        self.messages_redelivered = 0
        self.acks = 0  # in messages; in Exclusive and Failover subscriptions in entries
        self.last_flow_ms = 0
        self.last_acked_ms = 0
        self.last_consumed_ms = 0
        self.read_position_when_joining = 0  # the next entry to deliver when it was attached

    @property
    def address(self) -> str:
        """Address of its client, as `host:port`."""
        return self.outlet.peer

    @property
    def client_version(self) -> str:
        """Name and version sent by its client."""
        return self.session.client_version

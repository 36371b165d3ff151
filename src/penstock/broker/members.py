# SPDX-License-Identifier: Apache-2.0
"""Producers and consumers as the broker sees them: who they are and what they have counted.

Where: a session makes them; topics and subscriptions hold them while they are connected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.session import Session
    from penstock.broker.subscription import Subscription
    from penstock.broker.topic import Topic


class Producer:
    """One connected writer of one topic."""

    __slots__ = ("bytes_in", "epoch", "messages_in", "name", "producer_id", "session", "topic")

    def __init__(self, *, session: Session, producer_id: int, name: str, topic: Topic, epoch: int) -> None:
        self.session = session
        self.producer_id = producer_id
        self.name = name
        self.topic = topic
        self.epoch = epoch
        self.messages_in = 0
        self.bytes_in = 0


class Consumer:
    """One connected reader of one subscription.

    `permits` counts messages, not entries, and may go below zero when a batch was larger than what was left (FLOW).
    `pending` maps each entry that was sent and not yet acknowledged to its message count, in shared subscriptions.
    """

    __slots__ = (
        "acks",
        "blocked",
        "bytes_out",
        "connected_at_ms",
        "consumer_id",
        "epoch",
        "messages_out",
        "messages_redelivered",
        "name",
        "pending",
        "permits",
        "priority_level",
        "session",
        "subscription",
        "unacked",
    )

    def __init__(
        self,
        *,
        session: Session,
        consumer_id: int,
        name: str,
        priority_level: int,
        subscription: Subscription,
        epoch: int | None,
        connected_at_ms: int,
    ) -> None:
        self.session = session
        self.consumer_id = consumer_id
        self.name = name
        self.priority_level = priority_level
        self.subscription = subscription
        self.epoch = epoch
        self.connected_at_ms = connected_at_ms
        self.permits = 0
        self.pending: dict[int, int] = {}
        self.unacked = 0
        self.blocked = False
        self.messages_out = 0
        self.bytes_out = 0
        self.messages_redelivered = 0
        self.acks = 0

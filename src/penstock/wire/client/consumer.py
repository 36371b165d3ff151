# SPDX-License-Identifier: Apache-2.0
"""A consumer: how many messages the broker may still send to it, and when to allow more.

Why half: to grant each message's permit by itself would cost a command for each; to wait until none is left would let
the broker wait for a round trip.
Where: `ClientConnection.subscribe` opens one and grants its permits; a reader in bulk counts with `took`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.wire.codec import CommandSubscribe


class Consumer:
    """One consumer of one topic, or of one partition.

    Attributes:
        body: the command that opens it; `consumer_id` is unique on a connection.
        permits: messages that the broker may still send. Below 0 when it sent a larger batch than that.
        permits_max: to how many they are refilled, once less than half of that is left; 0 for never.
    """

    __slots__ = ("body", "permits", "permits_max")

    def __init__(self, body: CommandSubscribe, *, permits_max: int = 0) -> None:
        self.body = body
        self.permits = 0
        self.permits_max = permits_max

    @property
    def consumer_id(self) -> int:
        """Its id on any connection that it is opened on."""
        return self.body.consumer_id

    @property
    def topic(self) -> str:
        """The full name of its topic."""
        return self.body.topic

    def opened(self) -> None:
        """Note that it is open, the first time or once more: the broker has no permits of it."""
        self.permits = 0

    def took(self, messages: int) -> None:
        """So many messages came."""
        self.permits -= messages

    def refill(self) -> int:
        """How many permits to grant now; they count as granted."""
        if self.permits >= (self.permits_max + 1) // 2:
            return 0
        missing = self.permits_max - self.permits
        self.permits = self.permits_max
        return missing

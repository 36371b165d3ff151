# SPDX-License-Identifier: Apache-2.0
"""One consumer of one topic on a connection of its own: from a message id on, or on a durable subscription.

Why a connection each: what it brings is read in bulk, in place, and must belong to one topic only; and whatever happens
to the process, the broker ends the subscription with the connection.
Where: `EntryReader` reads with one, planning asks where topics begin and end, `commit` moves a durable cursor.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Self

from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.wire import codec

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.spark.client.cluster import Cluster
    from penstock.spark.client.connection import Connection

_CONSUMER_ID: Final = 1
_EXCLUSIVE: Final = 0
_CUMULATIVE: Final = 1
# So long the first message of a topic is waited for before there is none.
FIRST_TIMEOUT_S: Final = 2.0


class Subscription:
    """A consumer. Use it in a `with`, or close it: that ends the connection, and with it all but a durable cursor."""

    def __init__(self, cluster: Cluster, body: codec.CommandSubscribe, what: str) -> None:
        """Made by `reading` and `durable`."""
        self.topic = body.topic
        self.connection = _subscribed(cluster, body, what)
        self._body = body
        self.permits = 0  # that the broker still has

    @classmethod
    def reading(cls, cluster: Cluster, topic: str, start: MessageId, *, compacted: bool = False) -> Self:
        """Read from `start` on, leaving no trace. Tried again while the answer is one that passes.

        Raises:
            Refused: TOPIC_NOT_FOUND, AUTHORIZATION_ERROR …; and what `Connection` raises.
        """
        body = codec.CommandSubscribe(
            topic=topic,
            subscription=f"spark-{os.urandom(8).hex()}",
            subType=_EXCLUSIVE,  # type: ignore[arg-type]  # enums are numbers
            consumer_id=_CONSUMER_ID,
            request_id=0,
            durable=False,
            read_compacted=compacted,
            force_topic_creation=False,
        )
        body.start_message_id.ledgerId = start.ledger_id % 2**64
        body.start_message_id.entryId = start.entry_id % 2**64
        return cls(cluster, body, f"reading {topic}")

    @classmethod
    def durable(cls, cluster: Cluster, topic: str, name: str, *, earliest: bool = True) -> Self:
        """Take the durable subscription of this name; made if it is not there, at the topic's beginning or its end.

        Raises:
            Refused: CONSUMER_BUSY when somebody else has it …; and what `Connection` raises.
        """
        body = codec.CommandSubscribe(
            topic=topic,
            subscription=name,
            subType=_EXCLUSIVE,  # type: ignore[arg-type]
            consumer_id=_CONSUMER_ID,
            request_id=0,
            initialPosition=int(earliest),  # type: ignore[arg-type]
            force_topic_creation=False,
        )
        return cls(cluster, body, f"taking subscription {name} of {topic}")

    def grant(self, permits: int) -> None:
        """Let the broker send so many messages more."""
        flow = codec.CommandFlow(consumer_id=_CONSUMER_ID, messagePermits=permits)
        self.connection.write(codec.encode(codec.BaseCommand.FLOW, flow))
        self.permits += permits

    def last_id(self) -> MessageId | None:
        """Of the last message that there is; None when there is none. Its index is that in its batch."""
        body = codec.CommandGetLastMessageId(consumer_id=_CONSUMER_ID, request_id=0)
        answer = self.connection.request(body, what=f"asking for the last message of {self.topic}")
        said = answer.last_message_id
        if said.ledgerId >= 2**63 or said.entryId >= 2**63:  # -1, in fields without a sign
            return None
        return MessageId(said.ledgerId, said.entryId, max(0, said.batch_index))

    def id_at(self, publish_ms: int) -> MessageId:
        """Of the first message published at this time or later, or behind the last one; moves there itself."""
        what = f"looking for messages of {self.topic} by their time"
        seek = codec.CommandSeek(consumer_id=_CONSUMER_ID, request_id=0, message_publish_time=publish_ms)
        self.connection.request(seek, what=what)
        self.connection.request(self._body, what=what)  # A seek ends the consumer; the subscription stays.
        body = codec.CommandGetLastMessageId(consumer_id=_CONSUMER_ID, request_id=0)
        before = self.connection.request(body, what=what).consumer_mark_delete_position
        entry_id = before.entryId if before.entryId < 2**63 else -1
        return MessageId(before.ledgerId, entry_id + 1)

    def first_id(self, timeout_s: float = FIRST_TIMEOUT_S) -> MessageId | None:
        """Of the next entry, which is waited for; None when none comes."""
        self.grant(1)
        while (came := self.connection.next_frame(timeout_s)) is not None:
            if came.kind == codec.BaseCommand.MESSAGE:
                return MessageId(came.body.message_id.ledgerId, came.body.message_id.entryId)
        return None

    def acknowledge_before(self, position: MessageId) -> None:
        """Acknowledge, durably, every entry before this one; an entry that is read in part waits for the rest."""
        if position.entry_id <= 0:
            return  # Nothing of this ledger; those before it went with the acknowledgement that reached their end.
        body = codec.CommandAck(consumer_id=_CONSUMER_ID, ack_type=_CUMULATIVE, request_id=0)  # type: ignore[arg-type]
        place = body.message_id.add()
        place.ledgerId, place.entryId = position.ledger_id, position.entry_id - 1
        self.connection.request(body, what=f"moving the subscription of {self.topic} to {position}")

    def close(self) -> None:
        """End it."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def earliest_id(cluster: Cluster, topic: str) -> MessageId | None:
    """Of the first entry that the topic still has; None when it has none."""
    with Subscription.reading(cluster, topic, EARLIEST) as subscription:
        return subscription.first_id()


def _subscribed(cluster: Cluster, body: codec.CommandSubscribe, what: str) -> Connection:
    def attempt() -> Connection:
        connection = cluster.open_once(body.topic)
        try:
            connection.request(body, what=what)
        except BaseException:
            connection.close()
            raise
        return connection

    return cluster.insist(attempt)

# SPDX-License-Identifier: Apache-2.0
"""One consumer of one topic on a connection of its own: from a message id on, or on a durable subscription.

Why a connection each: what it brings is read in bulk, in place, and must belong to one topic only; and whatever happens
to the process, the broker ends the subscription with the connection.
Where: `EntryReader` reads with one, planning asks where topics begin and end, `commit` moves a durable cursor.

What is asked of a consumer is asked again, of a new one, when the connection ends or the topic moves in between. What
is read is not read again: only the reader knows where it was.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from penstock.core.position import Position
from penstock.spark.client.cluster import AT_ONCE_MAX
from penstock.spark.client.errors import ClientError, ConnectionLost, Refused, RequestTimedOut
from penstock.spark.client.message_id import EARLIEST, MessageId, signed
from penstock.wire import codec
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.events import ConsumerClosed, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import TypeVar

    from penstock.spark.client.cluster import Cluster
    from penstock.spark.client.connection import Connection

    T = TypeVar("T")

_EXCLUSIVE: Final = 0


class Subscription:
    """A consumer. Use it in a `with`, or close it: that ends the connection, and with it all but a durable cursor."""

    def __init__(self, cluster: Cluster, body: codec.CommandSubscribe, what: str) -> None:
        """Made by `reading` and `durable`."""
        self.topic = body.topic
        self._cluster = cluster
        self.consumer = Consumer(body)
        self._what = what
        self._is_over = False
        self.connection = cluster.insist(self._open)

    @classmethod
    def reading(cls, cluster: Cluster, topic: str, start: MessageId, *, compacted: bool = False) -> Self:
        """Read from `start` on, leaving no trace. Tried again while the answer is one that passes.

        Raises:
            Refused: TOPIC_NOT_FOUND, AUTHORIZATION_ERROR …; and what `Connection` raises.
        """
        return cls(cluster, reading_body(topic, start, compacted=compacted), f"reading {topic}")

    @classmethod
    def durable(cls, cluster: Cluster, topic: str, name: str, *, earliest: bool = True) -> Self:
        """Take the durable subscription of this name; made if it is not there, at the topic's beginning or its end.

        Raises:
            Refused: CONSUMER_BUSY when another consumer has it …; and what `Connection` raises.
        """
        body = codec.CommandSubscribe(
            topic=topic,
            subscription=name,
            subType=_EXCLUSIVE,  # type: ignore[arg-type]
            consumer_id=0,
            request_id=0,
            initialPosition=int(earliest),  # type: ignore[arg-type]
            force_topic_creation=False,
        )
        return cls(cluster, body, f"taking subscription {name} of {topic}")

    def refill(self, window: int) -> None:
        """Let the broker have so many messages on their way."""
        self.consumer.permits_max = window
        self.connection.flow(self.consumer)

    def last_id(self) -> MessageId | None:
        """Of the last message that there is; None when there is none. Its index is that in its batch."""
        return self._asked(lambda: self._last_id()[0])

    def _last_id(self) -> tuple[MessageId | None, MessageId]:
        """The same, and the position before the message that this consumer gets next."""
        body = codec.CommandGetLastMessageId(consumer_id=self.consumer.consumer_id, request_id=0)
        answer = self.connection.request(body, what=f"asking for the last message of {self.topic}")
        last, before = (
            MessageId(signed(said.ledgerId), signed(said.entryId), max(0, said.batch_index))
            for said in (answer.last_message_id, answer.consumer_mark_delete_position)
        )
        return (None if last.ledger_id < 0 or last.entry_id < 0 else last), before

    def id_at(self, publish_ms: int) -> MessageId:
        """Of the first message published at this time or later, or behind the last one; moves there itself."""
        return self._asked(lambda: self._id_at(publish_ms))

    def _id_at(self, publish_ms: int) -> MessageId:
        what = f"looking for messages of {self.topic} by their time"
        seek = codec.CommandSeek(consumer_id=self.consumer.consumer_id, request_id=0, message_publish_time=publish_ms)
        self.connection.request(seek, what=what)
        self.connection.subscribe(self.consumer, what)  # A seek ends the consumer; the subscription stays.
        return self._next_place()

    def next_place(self) -> MessageId:
        """Where the next entry is; it may also be at the beginning of a later ledger."""
        return self._asked(self._next_place)

    def _next_place(self) -> MessageId:
        return place_after(self._last_id()[1])

    def first_id(self) -> MessageId | None:
        """Of the next entry, which is waited for; None when there is none.

        Raises:
            RequestTimedOut: there is one, and it does not come.
        """
        return self._asked(self._first_id)

    def _first_id(self) -> MessageId | None:
        # A broker that is slow must not be taken for one that has nothing: that would read as loss of data.
        last, before = self._last_id()
        if last is None or last[:2] <= before[:2]:
            return None
        timeout_s = self._cluster.endpoint.operation_timeout_s
        self.connection.flow(self.consumer, 1)
        while (event := self.connection.next_event(timeout_s)) is not None:
            if isinstance(event, Message):
                return MessageId(*event.position)
            if isinstance(event, ConsumerClosed):
                raise self._moved()
        raise RequestTimedOut(str(self.connection.address), f"our wish to read {self.topic}", timeout_s)

    def acknowledge_before(self, position: MessageId) -> None:
        """Acknowledge, durably, every entry before this one; an entry that is read in part waits for the rest."""
        if position.entry_id <= 0:
            return  # Nothing of this ledger; those before it went with the acknowledgement that reached their end.
        last = Position(position.ledger_id, position.entry_id - 1)
        what = f"moving the subscription of {self.topic} to {position}"
        self._asked(lambda: self.connection.acknowledge(self.consumer, last, what))

    def release(self) -> None:
        """End it, and keep the connection for the next topic: to close a consumer is cheaper than to connect anew."""
        try:
            self.connection.unsubscribe(self.consumer)
        except ClientError:
            self.connection.close()
        else:
            self._cluster.give_back(self.connection)

    def close(self) -> None:
        """End it."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- topics that move --------------------------------------------------------------------------------------------

    def _open(self) -> Connection:
        """Look the topic's broker up, connect and subscribe; one attempt."""
        connection = self._cluster.open_once(self.topic)
        self.consumer.body.consumer_id = connection.new_consumer_id()
        try:
            connection.subscribe(self.consumer, self._what)
        except BaseException:
            connection.close()
            raise
        return connection

    def _asked(self, question: Callable[[], T]) -> T:
        """Ask, and again of a new consumer when this one ends before the answer."""

        def attempt() -> T:
            if self._is_over:
                self.connection, self._is_over = self._open(), False
            try:
                return question()
            except ClientError as error:
                # What is asked of a consumer that was just closed is refused, with one code or another.
                moved = isinstance(error, Refused) and self._was_closed()
                self._is_over = True
                self.connection.close()
                if moved:
                    raise self._moved() from error
                raise

        return self._cluster.insist(attempt)

    def _was_closed(self) -> bool:
        """Whether the broker has said that the consumer is over."""
        return any(isinstance(event, ConsumerClosed) for event in self.connection.remains())

    def _moved(self) -> ConnectionLost:
        return ConnectionLost(str(self.connection.address), "the broker closed the consumer: the topic moves")


def reading_body(
    topic: str, start: MessageId, *, consumer_id: int = 0, compacted: bool = False
) -> codec.CommandSubscribe:
    """Return the command that opens a consumer from `start` on, which leaves no trace."""
    body = codec.CommandSubscribe(
        topic=topic,
        subscription=f"spark-{os.urandom(8).hex()}",
        subType=_EXCLUSIVE,  # type: ignore[arg-type]  # enums are numbers
        consumer_id=consumer_id,
        request_id=0,
        durable=False,
        read_compacted=compacted,
        force_topic_creation=False,
    )
    body.start_message_id.ledgerId = start.ledger_id % 2**64
    body.start_message_id.entryId = start.entry_id % 2**64
    return body


def place_after(before: MessageId) -> MessageId:
    """Return where the entry after this one is; before the first one, brokers name one with a negative id."""
    return MessageId(before.ledger_id, max(0, before.entry_id + 1))


def earliest_id(cluster: Cluster, topic: str) -> MessageId | None:
    """Of the first entry that the topic still has; None when it has none."""
    with Subscription.reading(cluster, topic, EARLIEST) as subscription:
        return subscription.first_id()


def beginning(cluster: Cluster, topic: str) -> MessageId:
    """Return where the topic begins, as the broker names it: also if nobody sees the entry that is there."""
    with Subscription.reading(cluster, topic, EARLIEST) as subscription:
        return subscription.next_place()


def following_ids(cluster: Cluster, topic: str, places: Sequence[MessageId]) -> dict[MessageId, MessageId]:
    """Of the first entry that the topic has at each of these places or behind it, where there must be one.

    Why by reading: a reader gets the next entry that is there, whatever removed those before it, or whoever else has
    their ids. Raises RequestTimedOut when one does not come; and what `Connection` raises.
    """
    found: dict[MessageId, MessageId] = {}

    def attempt(part: Sequence[MessageId]) -> None:
        with cluster.open_once(topic) as connection:
            found.update(_following_ids(connection, topic, part, cluster.endpoint.operation_timeout_s))

    for start in range(0, len(places), AT_ONCE_MAX):
        cluster.insist(partial(attempt, places[start : start + AT_ONCE_MAX]))
    return found


def _following_ids(
    connection: Connection, topic: str, places: Sequence[MessageId], timeout_s: float
) -> dict[MessageId, MessageId]:
    what = f"our wish to read {topic} at {places[0]}"
    consumers: dict[int, tuple[MessageId, Consumer]] = {}
    asked = []
    for place in places:
        number = connection.new_consumer_id()
        consumer = Consumer(reading_body(topic, place, consumer_id=number))
        consumers[number] = place, consumer
        asked.append(connection.begin_subscribe(consumer, what))
    answers, _ = connection.answers(asked, what)
    for answer in answers.values():
        if isinstance(answer, Refused):
            raise answer
    for _, consumer in consumers.values():
        connection.flow(consumer, 1)
    found: dict[MessageId, MessageId] = {}
    while len(found) < len(consumers):
        event = connection.next_event(timeout_s)
        if event is None:
            raise RequestTimedOut(str(connection.address), what, timeout_s)
        if isinstance(event, ConsumerClosed):
            raise ConnectionLost(str(connection.address), "the broker closed the consumer: the topic moves")
        if isinstance(event, Message):
            found[consumers[event.consumer_id][0]] = MessageId(*event.position)
    return found

# SPDX-License-Identifier: Apache-2.0
"""Ends of many topics, and counts of their messages, by consumers that are kept on a few connections.

Why kept: a stream asks for every micro-batch. To look up, connect and subscribe for each topic each time took half a
second for 16 partitions; to ask consumers that are there costs one round trip for all of them. A topic with a consumer
is not deleted as inactive either, as long as its connection is used every half minute.
Where: `Planner` has one. The consumers read nothing: they begin at the end, and grant no permits.

Brokers of penstock count messages (`CommandGetLastMessageId.count`, docs/adr/0043); others ignore the question.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.spark.client.cluster import AT_ONCE_MAX, parts_of
from penstock.spark.client.errors import ClientError, Refused
from penstock.spark.client.message_id import EARLIEST, MessageId, signed
from penstock.wire import codec
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.events import ConsumerClosed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.spark.client.cluster import Cluster
    from penstock.spark.client.connection import Connection
    from penstock.wire.client.events import Event
    from penstock.wire.client.frames import Body
    from penstock.wire.client.lookup import Owner

_LATEST: Final = 2**63 - 1


class Query(NamedTuple):
    """Count whole entries from `start` on, before `end`, up to these limits; None for none."""

    start: MessageId
    end: MessageId | None = None
    messages_max: int | None = None
    bytes_max: int | None = None
    publish_time: bool = False


class Count(NamedTuple):
    """Counts of a range; messages of the first entry that `start` has passed are counted, too."""

    next_id: MessageId  # the first entry that was not counted
    entries: int
    messages: int
    bytes: int
    next_messages: int  # of that entry, if it was what exceeded a limit
    next_publish_ms: int  # when it was published; 0 if there is none, or it was not asked for


class Seen(NamedTuple):
    """One topic: where it ends, and the count if one was asked for and the broker counts."""

    end: MessageId  # behind the last message; the beginning if there is none
    counted: Count | None = None


@dataclass(slots=True)
class _Held:
    """A consumer that is open."""

    connection: Connection
    consumer: Consumer


class Watch:
    """Asks about topics. For one thread; close it."""

    def __init__(self, cluster: Cluster, *, compacted: bool = False) -> None:
        """Ask brokers of this cluster; if `compacted`, for the ends of the compacted topics."""
        self._cluster = cluster
        self._compacted = compacted
        self._connections: dict[Owner, Connection] = {}
        self._held: dict[str, _Held] = {}
        self._last_consumer_id = 0
        self._session = os.urandom(8).hex()
        self._counts: bool | None = None

    @property
    def counts(self) -> bool:
        """Whether brokers count messages, as far as is known: that they do is assumed until they were asked."""
        return self._counts is not False

    @property
    def is_known_to_count(self) -> bool:
        """Whether brokers have counted messages already."""
        return self._counts is True

    def ask(self, queries: Mapping[str, Query | None]) -> dict[str, Seen | None]:
        """Ask about each of these topics, all at once; None for one that does not exist.

        Raises:
            Refused, ClientError: as `Subscription.reading`; what may pass is tried again until the endpoint's
                `operation_timeout_s` is over.
        """
        found: dict[str, Seen | None] = {}
        for part in parts_of(queries, AT_ONCE_MAX):
            left = {topic: queries[topic] for topic in part}
            self._cluster.insist(partial(self._attempt, left, found))
        return {topic: found[topic] for topic in queries}

    def close(self) -> None:
        """Close all connections, and with them the consumers."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._held.clear()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _attempt(self, left: dict[str, Query | None], found: dict[str, Seen | None]) -> None:
        """Move answered topics from `left` to `found`; raises if any is left."""
        self._drop_dead()
        new = [topic for topic in left if topic not in self._held]
        trouble = self._open(new, left, found)
        by_connection: dict[Connection, dict[int, str]] = {}
        for topic, query in left.items():
            if (held := self._held.get(topic)) is not None:
                asked = by_connection.setdefault(held.connection, {})
                asked[held.connection.begin(_body(held.consumer, query), _what(topic))] = topic
        for connection, asked in by_connection.items():
            answers, events = self._answers(connection, asked, f"our questions about {len(asked)} topics")
            self._forget_closed(connection, events)
            for request_id, answer in answers.items():
                topic = asked[request_id]
                if isinstance(answer, Refused):
                    # Also what the broker says about a consumer that it has just closed: a new one tells.
                    self._held.pop(topic, None)
                    if topic in new and not answer.may_pass:
                        raise answer
                    trouble = _Again(answer)
                else:
                    found[topic] = _seen(answer)
                    if left.pop(topic) is not None:
                        self._counts = answer.HasField("counted")
        if trouble is not None:
            raise trouble

    def _open(
        self, topics: list[str], left: dict[str, Query | None], found: dict[str, Seen | None]
    ) -> ClientError | None:
        """Open consumers of these topics; moves those that do not exist to `found`. Returns what may pass."""
        if not topics:
            return None
        trouble: ClientError | None = None
        opening: dict[Connection, dict[int, tuple[str, Consumer]]] = {}
        refusals: list[tuple[str, Refused]] = []
        for topic, owner in self._cluster.owners(topics).items():
            if isinstance(owner, Refused):
                refusals.append((topic, owner))
                continue
            connection = self._connection_to(owner)
            consumer = self._consumer(topic)
            asked = opening.setdefault(connection, {})
            asked[connection.begin_subscribe(consumer, f"reading {topic}")] = topic, consumer
        for connection, asked in opening.items():
            answers, events = self._answers(connection, asked, f"our wish to read {len(asked)} topics")
            for request_id, answer in answers.items():
                topic, consumer = asked[request_id]
                if isinstance(answer, Refused):
                    refusals.append((topic, answer))
                else:
                    self._held[topic] = _Held(connection, consumer)
            self._forget_closed(connection, events)
        for topic, refused in refusals:
            if refused.is_missing_topic:
                found[topic] = None
                del left[topic]
            elif refused.may_pass:
                trouble = refused
            else:
                raise refused
        return trouble

    def _answers(
        self, connection: Connection, asked: Iterable[int], what: str
    ) -> tuple[dict[int, Body | Refused], list[Event]]:
        """`Connection.answers`; a connection that fails is closed, and not used again."""
        try:
            return connection.answers(asked, what)
        except ClientError:
            connection.close()
            self._connections = {owner: one for owner, one in self._connections.items() if one is not connection}
            self._held = {topic: held for topic, held in self._held.items() if held.connection is not connection}
            raise

    def _connection_to(self, owner: Owner) -> Connection:
        connection = self._connections.get(owner)
        if connection is None:
            connection = self._connections[owner] = self._cluster.connect(owner)
        return connection

    def _consumer(self, topic: str) -> Consumer:
        self._last_consumer_id += 1
        body = codec.CommandSubscribe(
            topic=topic,
            subscription=f"spark-{self._session}-{self._last_consumer_id}",
            subType=0,  # type: ignore[arg-type]  # exclusive; enums are numbers
            consumer_id=self._last_consumer_id,
            request_id=0,
            durable=False,
            read_compacted=self._compacted,
            force_topic_creation=False,
        )
        # At the end: a cursor at the beginning would show a backlog that is never read.
        body.start_message_id.ledgerId = body.start_message_id.entryId = _LATEST
        return Consumer(body)

    def _drop_dead(self) -> None:
        """Forget connections that have ended, with their consumers."""
        for owner, connection in list(self._connections.items()):
            if not connection.is_alive():
                connection.close()
                del self._connections[owner]
        alive = set(self._connections.values())
        self._held = {topic: held for topic, held in self._held.items() if held.connection in alive}

    def _forget_closed(self, connection: Connection, events: Iterable[object]) -> None:
        """Forget consumers that the broker has closed: their topics move, or were deleted."""
        closed = {event.consumer_id for event in events if isinstance(event, ConsumerClosed)}
        if closed:
            self._held = {
                topic: held
                for topic, held in self._held.items()
                if held.connection is not connection or held.consumer.consumer_id not in closed
            }


class _Again(Refused):
    """A consumer is gone: ask a new one."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.code, refused.said, refused.what)
        self.may_pass = True


def _what(topic: str) -> str:
    return f"asking for the last message of {topic}"


def _body(consumer: Consumer, query: Query | None) -> codec.CommandGetLastMessageId:
    body = codec.CommandGetLastMessageId(consumer_id=consumer.consumer_id, request_id=0)
    if query is not None:
        start = query.start
        body.count.ledger_id, body.count.entry_id = start.ledger_id % 2**64, max(0, start.entry_id)
        if query.messages_max is not None:
            body.count.messages_max = query.messages_max
        if query.bytes_max is not None:
            body.count.bytes_max = query.bytes_max
        if query.end is not None:
            body.count.end_entry_id = max(0, query.end.entry_id)
        body.count.publish_time = query.publish_time
    return body


def _seen(answer: Body) -> Seen:
    last = answer.last_message_id
    ledger_id, entry_id = signed(last.ledgerId), signed(last.entryId)
    end = EARLIEST if ledger_id < 0 or entry_id < 0 else MessageId(ledger_id, entry_id + 1)
    if not answer.HasField("counted"):
        return Seen(end)
    said = answer.counted
    next_id = MessageId(said.ledger_id, said.next_entry_id)
    count = Count(next_id, said.entries, said.messages, said.bytes, said.next_messages, said.next_publish_time)
    return Seen(end, count)

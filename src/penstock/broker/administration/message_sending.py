# SPDX-License-Identifier: Apache-2.0
"""Admin operations that send messages: one that somebody has typed, and those of a dead letter topic once more.

Why the rules of a producer: a message over REST must not get where a client's would be refused. It is checked as a
PRODUCER and a SEND are, and charged to the same limits; but nothing waits here: where a SEND would, it is refused.
Where: called by the admin API. A topic of another broker raises ServedElsewhere, and the request is passed on.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.access import Action
from penstock.broker.elsewhere import of_topic
from penstock.broker.publishing.own_entries import OwnEntry
from penstock.broker.schemas.checks.model import SchemaType
from penstock.broker.schemas.schema_registry import version_bytes
from penstock.core.caller import CALLER
from penstock.core.errors import (
    ConsumerBusy,
    NotAllowed,
    PenstockError,
    PreconditionFailed,
    ProducerBusy,
    TopicNotFound,
)
from penstock.core.hashing import java_string_hash
from penstock.core.names import TopicName
from penstock.core.position import Position
from penstock.core.system_topics import is_record_topic
from penstock.wire import dead_letters
from penstock.wire.errors import ProtocolError
from penstock.wire.messages import messages_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.access import Access
    from penstock.broker.administration.finder import Finder
    from penstock.broker.elsewhere import Elsewhere
    from penstock.broker.log_reads import LogReads
    from penstock.broker.policies.quotas import Quotas
    from penstock.broker.publishing.own_entries import OwnEntries
    from penstock.broker.publishing.rates import Rates
    from penstock.broker.schemas.schema_registry import SchemaRegistry
    from penstock.broker.subscriptions.acknowledging import CursorSaves
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.partitions import Partitions
    from penstock.broker.topics.placement import Placement
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.wire.messages import Message

# The producer in messages that are sent here.
WRITER: Final = "penstock-admin"
# Entries of a dead letter topic that one request looks at.
REDRIVEN_MAX: Final = 100
# Messages of one of its entries: all of them are in memory until they are sent.
BATCH_MAX: Final = 10_000
# Types of schemas whose values nobody types as text.
_BINARY: Final = frozenset({SchemaType.AVRO, SchemaType.PROTOBUF, SchemaType.PROTOBUF_NATIVE})
_MESSAGES: Final = "/admin/v3/messages/"


class Sent(NamedTuple):
    """Where a message is now."""

    topic: str
    position: Position


class Redriven(NamedTuple):
    """Outcome of one request.

    Attributes:
        sent: how many messages to which topic.
        left: entries that are not acknowledged yet.
        stopped: why it has stopped before the end, and at which entry; None: it has not.
    """

    sent: dict[str, int]
    left: int
    stopped: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSending:
    """Sends messages. All methods are called on the event loop."""

    access: Access
    topics: TopicDirectory
    partitions: Partitions
    quotas: Quotas[Topic]
    schemas: SchemaRegistry
    rates: Rates
    reads: LogReads
    entries: OwnEntries
    cursors: CursorSaves
    finder: Finder
    placement: Placement
    elsewhere: Elsewhere
    check_writable: Callable[[TopicName], None]
    clock: Clock
    redriving: set[str]  # topics; of the broker, whoever has asked

    async def send(self, name: TopicName, message: Message, *, is_text: bool = False) -> Sent:
        """Store a message, of a partitioned topic in a partition by its key; returns when it is durable.

        Args: is_text: somebody has typed its value.

        Raises:
            PenstockError: a producer would not get it there either, or would have to wait.
        """
        if not name.is_persistent:
            raise NotAllowed(f"Sending over REST to a non-persistent topic is not supported: {name} stores nothing")
        if is_record_topic(str(name)):
            raise NotAllowed(f"{name} is a topic of the brokers: only they publish to it")
        self.check_writable(name)
        count = self.partitions.count(name)
        if not count and not self.topics.exists(name):
            raise TopicNotFound(str(name))
        target = name.of_partition(_partition(message, count)) if count else name
        topic = await self.topics.get_or_create(target, create=True)
        version = await self._checked(topic, message, is_text=is_text)
        entry = message.entry(WRITER, self.clock.wall_ms(), version)
        _check_size_and_delay(topic, message, len(entry), self.clock.wall_ms())
        topic.check_publishable()
        self.rates.charge_publish(topic, len(entry))
        position = Position(topic.ledger_id, topic.next_entry_id)
        await self.entries.append(topic, [OwnEntry(entry, 1)])
        return Sent(topic.text, position)

    async def _checked(self, topic: Topic, message: Message, *, is_text: bool) -> bytes:
        """Check what a new producer is checked for; returns the version of the topic's schema, empty for none."""
        if topic.system:
            raise NotAllowed(f"{topic.text} is a topic of the brokers: only they publish to it")
        topic.check_publishable()
        await self.quotas.check_producer(topic)
        if topic.policies.encryption_required:
            raise NotAllowed(f"Encryption is required in {topic.text}: send with a client that has the keys")
        if topic.write_access.holder is not None:
            holder = topic.write_access.holder.name
            raise ProducerBusy(f"{topic.text} has an exclusive producer, {holder!r}: nobody else may publish to it")
        schema = self.schemas.latest(topic.name)
        if schema is None:
            return await self.schemas.attach_producer(topic, None)
        if is_text and message.value is not None and schema.schema.type in _BINARY:
            kind = schema.schema.type.name
            raise PreconditionFailed(f"{topic.text} has a schema of type {kind}: send its encoded value as valueBase64")
        return version_bytes(schema.version)

    # -- dead letters

    async def redrive(self, name: TopicName, into: TopicName | None) -> Redriven:
        """Send the next dead letters to where they came from, or to `into`, and acknowledge those that are stored.

        A request that is cut off leaves a message in both topics, never in none.

        Raises:
            ConsumerBusy: `penstock redrive` does the same now.
            PenstockError: the topic cannot be read.
        """
        if not name.is_persistent:
            raise NotAllowed(f"Redriving a non-persistent topic is not supported: {name} stores nothing")
        caller, own = CALLER.get(), dead_letters.SUBSCRIPTION
        self.access.require(caller.role, caller.original_role, Action.CONSUME, name, subscription=own)
        topic = await self.finder.topic(name, "Redriving")
        if topic.text in self.redriving:
            raise ConsumerBusy(f"{topic.text} is being redriven: wait until that has ended")
        self.redriving.add(topic.text)
        try:
            return await self._redrive(topic, into)
        finally:
            self.redriving.discard(topic.text)

    async def _redrive(self, topic: Topic, into: TopicName | None) -> Redriven:
        subscription = await self._subscription(topic)
        sent: dict[str, int] = {}
        stopped = None
        for _ in range(min(REDRIVEN_MAX, subscription.backlog)):
            entry_id = subscription.cursor.nth_unacknowledged(0, topic.first_entry_id)
            try:
                await self._send_on(topic, entry_id, into, sent)
            except PenstockError as error:
                stopped = f"message {topic.ledger_id}:{entry_id} is not sent: {error}"
                break
            subscription.moves.acknowledge_one(entry_id)
        await self.cursors.save(subscription)
        return Redriven(sent, subscription.backlog, stopped)

    async def _subscription(self, topic: Topic) -> Subscription:
        name = dead_letters.SUBSCRIPTION
        if name not in topic.subscriptions:
            await topic.open_subscription(name, durable=True, start=topic.first_entry_id)
        found = topic.subscriptions[name]
        if found.consumers:
            raise ConsumerBusy(f"subscription {name} of {topic.text} has a consumer: a redrive goes on elsewhere")
        return found

    async def _send_on(self, topic: Topic, entry_id: int, into: TopicName | None, sent: dict[str, int]) -> None:
        self.rates.check_read(topic)
        entry = await self.reads.read_entry(topic.ledger_id, entry_id)
        if entry is None:
            raise PreconditionFailed("it cannot be read")
        decode = partial(messages_in, entry, Position(topic.ledger_id, entry_id))
        try:
            messages = await self.reads.in_thread(lambda: list(islice(decode(), BATCH_MAX + 1)))
        except ProtocolError as error:
            raise PreconditionFailed(str(error)) from error
        self.rates.charge_read(topic, len(messages), len(entry))
        if len(messages) > BATCH_MAX:
            raise PreconditionFailed(f"it is a batch of more than {BATCH_MAX:,} messages: use `penstock redrive`")
        for message in messages:
            if message.is_encrypted or message.is_chunk:
                what = "encrypted" if message.is_encrypted else "in chunks"
                raise NotAllowed(f"it is {what}: only a client can send it again")
            origin = dead_letters.origin(message)
            if into is None and origin is None:
                raise PreconditionFailed("it does not say where it came from: name a topic to send it to")
            target = into if into is not None else TopicName.parse(origin or "")
            await self._send_to(target, dead_letters.as_it_was(message))
            sent[str(target)] = sent.get(str(target), 0) + 1

    async def _send_to(self, target: TopicName, message: Message) -> None:
        """Send to a topic of any broker, with the rights of the caller."""
        caller = CALLER.get()
        self.access.require(caller.role, caller.original_role, Action.PRODUCE, target)
        count = self.partitions.count(target)
        broker = self.placement.broker_of(target.of_partition(_partition(message, count)) if count else target)
        if broker in {None, self.placement.own}:
            await self.send(target, message)
        else:
            path = of_topic(target).replace("/admin/v2/", _MESSAGES, 1)
            await self.elsewhere.ask(broker or 0, "POST", path, message.as_json())


def _partition(message: Message, count: int) -> int:
    """Return the partition of a message: by its key as clients choose it, else by its value.

    Not by chance: a request that is passed on to the partition's broker must find the same one there.
    """
    key = message.key_bytes()
    number = java_string_hash(key) if key is not None else zlib.crc32(message.value or b"")
    return number % max(1, count)


def _check_size_and_delay(topic: Topic, message: Message, nbytes: int, now_ms: int) -> None:
    bytes_max = topic.policies.max_message_bytes
    if nbytes > bytes_max > 0:
        raise NotAllowed(f"Exceed maximum message size: {nbytes} bytes, {topic.text} takes {bytes_max}")
    delayed = topic.policies.delayed_delivery
    if delayed.active and 0 < delayed.max_ms < message.deliver_at_ms - now_ms:
        raise NotAllowed(f"Exceeds max allowed delivery delay of {delayed.max_ms} milliseconds")

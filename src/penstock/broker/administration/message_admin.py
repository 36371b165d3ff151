# SPDX-License-Identifier: Apache-2.0
"""Admin operations that read messages and positions of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.administration.subscription_admin import entry_at
from penstock.broker.topics.topic import subscribed_topic
from penstock.core.errors import NotAllowed, NotFound, PreconditionFailed
from penstock.core.position import Position
from penstock.wire import metadata
from penstock.wire.errors import ProtocolError
from penstock.wire.masking import Mask

if TYPE_CHECKING:
    from penstock.broker.administration.finder import Finder
    from penstock.broker.limits import LimitsInForce
    from penstock.broker.log_reads import LogReads
    from penstock.broker.policies.quotas import Quotas
    from penstock.broker.publishing.rates import Rates
    from penstock.broker.topics.topic import Topic
    from penstock.core.names import TopicName

NOTHING = Position(-1, -1)


class RawMessage(NamedTuple):
    """An entry as stored: with checksum and metadata, compressed as it was sent."""

    ledger_id: int
    entry_id: int
    partition: int
    entry: bytes


class Start(NamedTuple):
    """Where a page of entries begins: at `position`, else at the first entry, or behind the last; and so many before.

    A position that was trimmed is the first entry that is kept.
    """

    position: Position | None
    latest: bool
    back: int


class EntryPage(NamedTuple):
    """Consecutive entries of a topic.

    Attributes:
        next: where the next page begins; behind the last entry, what is published later will be there.
        last_entry_id: of the topic.
        damaged: entries that cannot be read, and were left out.
    """

    entries: list[RawMessage]
    next: Position
    last_entry_id: int
    damaged: int


class MessageAdmin:
    """Reads messages of a topic or of one partition.

    A message that is read here counts for the dispatch limits of its topic: else it would be a way around them.
    """

    def __init__(
        self, *, reads: LogReads, quotas: Quotas[Topic], rates: Rates, finder: Finder, limits: LimitsInForce
    ) -> None:
        self._reads = reads
        self._quotas = quotas
        self._rates = rates
        self._finder = finder
        self._limits = limits

    @property
    def mask(self) -> Mask:
        """Names that are masked in messages that people look at."""
        limits = self._limits()
        return Mask(limits.masked_properties, limits.masked_fields)

    def check_unmasked(self) -> None:
        """Raises NotAllowed where messages are masked: whole entries cannot be."""
        if self.mask:
            raise NotAllowed(
                "messages are masked here (maskedMessageProperties, maskedMessageFields), and this route returns them "
                "as they are stored: use /admin/v3/messages, or a client"
            )

    async def peek(self, name: TopicName, subscription: str, nth: int) -> RawMessage:
        """The nth unacknowledged entry of a subscription, counted from 1. Raises NotFound."""
        _check_stored(name, "Peek messages")
        found = await self._finder.subscription(name, subscription, "Peek messages")
        topic = subscribed_topic(found)
        if 0 < nth <= found.backlog:
            entry_id = found.cursor.nth_unacknowledged(nth - 1, topic.first_entry_id)
            if entry_id <= topic.last_entry_id:
                return await self._read(topic, entry_id)
        raise NotFound("Message not found")

    async def get(self, name: TopicName, position: Position) -> RawMessage:
        """The entry at a position. Raises NotFound."""
        _check_stored(name, "Get message by id")
        topic = await self._finder.topic(name, "Get message by id")
        if position.ledger_id != topic.ledger_id:
            raise NotFound("Message id not found")
        return await self._read(topic, position.entry_id)

    async def examine(self, name: TopicName, initial_position: str, nth: int) -> RawMessage:
        """The nth entry, counted from 1, from the `earliest` or the `latest` position."""
        _check_stored(name, "Examine messages")
        topic = await self._finder.topic(name, "Examine messages")
        if topic.last_entry_id < topic.first_entry_id:
            raise PreconditionFailed("Could not examine messages due to the total message is zero")
        first, last = topic.first_entry_id, topic.last_entry_id
        wanted = first + nth - 1 if initial_position == "earliest" else last - nth + 1
        return await self._read(topic, min(max(wanted, first), last))

    async def page(self, name: TopicName, start: Start, *, entries_max: int, bytes_max: int) -> EntryPage:
        """Return entries in their order, by one read of the log. Raises NotFound for a position of another topic.

        One entry may have more bytes than `bytes_max`; then it is the only one.
        """
        _check_stored(name, "Read messages")
        topic = await self._finder.topic(name, "Read messages")
        ledger_id, last = topic.ledger_id, topic.last_entry_id
        entry_id = last + 1 if start.latest else topic.first_entry_id
        if start.position is not None:
            if start.position.ledger_id != ledger_id:
                raise NotFound(f"{name} has no message {start.position}: all of its messages are {ledger_id}:…")
            entry_id = start.position.entry_id
        entry_id = min(max(entry_id - start.back, topic.first_entry_id), last + 1)
        if entry_id > last:
            return EntryPage([], Position(ledger_id, entry_id), last, 0)
        self._rates.check_read(topic)
        count = min(entries_max, last + 1 - entry_id)
        found = await self._reads.read(ledger_id, entry_id, bytes_max=bytes_max, entries_max=count)
        aborted = topic.transactions.aborted if topic.transactions is not None else ()
        entries = [
            RawMessage(ledger_id, number, topic.partition, bytes(entry))
            for batch in found.batches
            for number, entry in batch.entries()
            if number <= last and number not in aborted  # Behind the last one is an open transaction.
        ]
        if entries:
            # As producers said: to decode thousands of entries would stop the loop for long.
            messages = sum(sum(one.message_counts or [len(one.entry_ids)]) for one in found.batches)
            self._rates.charge_read(topic, messages, sum(len(one.entry) for one in entries))
        next_entry_id = min(max(found.next_entry_id, entry_id + 1), last + 1)
        return EntryPage(entries, Position(ledger_id, next_entry_id), last, len(found.damaged))

    async def last_id(self, name: TopicName) -> tuple[Position, int]:
        """Position of the last entry, and the batch index of its last message, or -1; (-1, -1) for no entry."""
        _check_stored(name, "GetLastMessageId")
        topic = await self._finder.topic(name, "GetLastMessageId")
        if topic.last_entry_id < topic.first_entry_id:
            return NOTHING, -1
        entry = await self._reads.read_entry(topic.ledger_id, topic.last_entry_id)
        try:
            size = metadata.batch_size(entry) if entry is not None else None
        except ProtocolError:
            size = None
        return Position(topic.ledger_id, topic.last_entry_id), (size or 0) - 1

    async def id_by_time(self, name: TopicName, wall_ms: int) -> Position:
        """The first entry published at this time (ms since 1970) or later; the position after the last one if none."""
        _check_stored(name, "Get message id by timestamp")
        topic = await self._finder.topic(name, "Get message id by timestamp")
        return Position(topic.ledger_id, await self._reads.first_published_since(topic, wall_ms))

    async def id_by_index(self, name: TopicName, index: int) -> Position:
        """Always refused: this broker assigns no message index. Raises TopicNotFound, PreconditionFailed."""
        await self._finder.topic(name, "Get message id by index")
        raise PreconditionFailed(f"GetMessageIDByIndex {index} is not allowed when broker entry metadata is disabled")

    async def backlog_size(self, name: TopicName, position: Position) -> int:
        """Estimated bytes from this entry to the end of the topic."""
        _check_stored(name, "Get backlog size")
        topic = await self._finder.topic(name, "Get backlog size for a topic")
        start = entry_at(topic, position)
        return await self._quotas.bytes_from(topic, start)

    async def _read(self, topic: Topic, entry_id: int) -> RawMessage:
        self.check_unmasked()
        self._rates.check_read(topic)
        entry = await self._reads.read_entry(topic.ledger_id, entry_id)
        if entry is None:
            raise NotFound("Message not found")
        self._rates.charge_read(topic, _messages_in(entry), len(entry))
        return RawMessage(topic.ledger_id, entry_id, topic.partition, entry)


def _messages_in(entry: bytes) -> int:
    try:
        return metadata.batch_size(entry) or 1
    except ProtocolError:
        return 1


def _check_stored(name: TopicName, doing: str) -> None:
    if not name.is_persistent:
        raise NotAllowed(f"{doing} on a non-persistent topic is not allowed")

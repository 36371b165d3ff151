# SPDX-License-Identifier: Apache-2.0
"""A producer: its name, its sequence ids, and the entries that the broker has not answered yet.

Why it outlives its connection: an entry stays here until its receipt has come. When the connection ends or the topic
moves, the same producer is opened on another connection, under the same name, and what was not answered is sent again.
On a topic that deduplicates, the broker says at that point which sequence id it has stored last under this name; up to
there nothing is sent again, and nothing is stored twice.
Where: `ClientConnection.open_producer` opens one, `send` sends with it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.wire.client.entries import send_head
from penstock.wire.codec import BaseCommand, CommandProducer, MessageMetadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from penstock.core.checksum import Buffer
    from penstock.wire.codec import CommandProducerSuccess, Schema

NOTHING_STORED: Final = -1


class PendingSend(NamedTuple):
    """An entry that was sent, as it was sent."""

    sequence_id: int
    highest_sequence_id: int
    head: bytes
    payload: Buffer


class Producer:
    """One producer of one topic, or of one partition.

    Attributes:
        producer_id: its id on any connection that it is opened on; unique there.
        name: as given, or as the broker chose it.
        last_sequence_id: the highest that the topic has stored under this name, as of the last opening; -1 when there
            is none, or the topic does not deduplicate.
        next_sequence_id: of the next message, when the caller gives none.
        schema_version: the broker's name of the schema.
        topic_epoch: of a producer that has the topic to itself.
        pending: entries that were sent and not answered, in their order.
        pending_bytes: of their payloads.
    """

    __slots__ = (
        "_access_mode", "_encrypts", "_name_is_given", "_openings", "_schema", "_single", "last_sequence_id", "name",
        "next_sequence_id", "pending", "pending_bytes", "producer_id", "schema_version", "topic", "topic_epoch",
    )  # fmt: skip

    def __init__(
        self,
        producer_id: int,
        topic: str,
        *,
        name: str = "",
        schema: Schema | None = None,
        access_mode: int = 0,
        encrypts: bool = False,
    ) -> None:
        """Nothing is sent yet. `access_mode` is the number of a `ProducerAccessMode`.

        A producer that `encrypts` says so to the broker; its caller does it.
        """
        self.producer_id, self.topic, self.name = producer_id, topic, name
        self.last_sequence_id = NOTHING_STORED
        self.next_sequence_id = 0
        self.schema_version = b""
        self.topic_epoch: int | None = None
        self.pending: deque[PendingSend] = deque()
        self.pending_bytes = 0
        self._name_is_given = bool(name)
        self._schema = schema
        self._access_mode = access_mode
        self._encrypts = encrypts
        self._openings = 0
        # The SEND of every entry with one message: to fill in a number takes a third of the time of making a command.
        self._single = BaseCommand(type=BaseCommand.SEND)

    def opening(self) -> CommandProducer:
        """The command that opens it, the first time or once more."""
        body = CommandProducer(
            topic=self.topic,
            producer_id=self.producer_id,
            request_id=0,
            epoch=self._openings,
            user_provided_producer_name=self._name_is_given,
        )
        if self.name:
            body.producer_name = self.name
        if self._schema is not None:
            body.schema.CopyFrom(self._schema)
        if self._encrypts:
            body.encrypted = True
        if self._access_mode:
            body.producer_access_mode = self._access_mode  # type: ignore[assignment]
        if self.topic_epoch is not None:
            body.topic_epoch = self.topic_epoch
        return body

    def opened(self, answer: CommandProducerSuccess) -> None:
        """Note that it is open: entries that the topic has stored are no longer pending; send the others again."""
        if not self._openings:
            self.next_sequence_id = answer.last_sequence_id + 1
        self._openings += 1
        self.name, self.last_sequence_id = answer.producer_name, answer.last_sequence_id
        self.schema_version = answer.schema_version
        self.topic_epoch = answer.topic_epoch if answer.HasField("topic_epoch") else None
        while self.pending and self.pending[0].highest_sequence_id <= self.last_sequence_id:
            self._forget_oldest()

    def metadata(self, publish_time_ms: int, sequence_id: int | None = None) -> MessageMetadata:
        """The metadata of the next entry, or of one with this sequence id."""
        sequence_id = self.next_sequence_id if sequence_id is None else sequence_id
        about = MessageMetadata(producer_name=self.name, sequence_id=sequence_id, publish_time=publish_time_ms)
        if self.schema_version:
            about.schema_version = self.schema_version
        return about

    def add(
        self,
        about: MessageMetadata,
        payload: Buffer,
        *,
        messages: int = 1,
        is_chunk: bool = False,
        is_marker: bool = False,
    ) -> PendingSend:
        """Make an entry and keep it until it is answered.

        Args:
            about: its metadata, complete. Messages of a batch have consecutive sequence ids from that one on, unless it
                says how far they go (`highest_sequence_id`).
            payload: as it goes over the wire; must not change before the receipt.
            messages: how many the entry holds.
            is_chunk: whether it is a piece of a larger message.
            is_marker: whether it is for the other broker, and not for consumers.
        """
        first = about.sequence_id
        highest = about.highest_sequence_id or first + messages - 1
        plain = messages == 1 and not is_chunk and not is_marker
        command = self._single if plain else BaseCommand(type=BaseCommand.SEND)
        send = command.send
        send.producer_id, send.sequence_id = self.producer_id, first
        if messages > 1:
            send.num_messages, send.highest_sequence_id = messages, highest
        if is_chunk:
            send.is_chunk = True
        if is_marker:
            send.marker = True
        made = PendingSend(first, highest, send_head(command, about, payload), payload)
        self.pending.append(made)
        self.pending_bytes += len(payload)
        self.next_sequence_id = highest + 1
        return made

    def answered(self, sequence_id: int) -> bool:
        """Take a receipt; False when the entry was answered before (it was sent twice).

        Raises:
            ProtocolError: receipts come in the order of the entries, and this one does not.
        """
        if not self.pending or sequence_id < self.pending[0].sequence_id:
            return False
        if sequence_id > self.pending[0].sequence_id:
            due = self.pending[0].sequence_id
            raise ProtocolError(f"a receipt for {sequence_id} where {due} of {self.topic} was due")
        self._forget_oldest()
        return True

    def _forget_oldest(self) -> None:
        self.pending_bytes -= len(self.pending.popleft().payload)


class ForwardingProducer(Producer):
    """A producer of entries that other producers have made, whose sequence ids do not grow.

    A broker answers the SENDs of a producer in their order, so a receipt is that of the oldest entry, whatever numbers
    it has: those of the SEND, or where the entry is in the cluster that it comes from. What is pending when the
    connection ends is not sent again: the owner reads it again.
    """

    __slots__ = ()

    def answered(self, sequence_id: int) -> bool:
        """Take a receipt; False when nothing is pending."""
        del sequence_id
        if not self.pending:
            return False
        self._forget_oldest()
        return True

# SPDX-License-Identifier: Apache-2.0
"""Checks of single SENDs, for topics that need more than a checksum.

Why apart from publish: most topics need no checks, and their publishes must not pay for them. A producer is `careful`
if a check here applies to it.
Where: publish calls `refusal` for each entry of a careful producer; `refresh` is called when policies change, when
deduplication is enabled or disabled, and for each new producer.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from penstock.broker.publishing.replicated import Replicator
from penstock.core.errors import PenstockError, ProducerBusy, ProducerFenced, TopicTerminated, WireCode
from penstock.wire import metadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.broker.publishing.producer import Producer


# ---------------------------------------------------------------------------------------------------------------------
# Producer access modes: which producers may share a topic, and which must wait.
#
# Why epochs: an exclusive producer that lost its connection must not continue if another producer was granted the topic
# since. Each exclusive grant has an epoch, one above the last; a reconnecting producer sends the epoch of its grant.
# Where: `producers` calls `decide` for each new producer and carries out the verdict; the topic keeps a `WriteAccess`.
# Pure: no clock, no sockets; promoted or refused producers are notified by `producers`.

# Granting epochs one by one never gets this far. Older versions stored epochs sent by clients, which are ignored.
EPOCHS_STOP: Final = 2**62


class AccessMode(IntEnum):
    """How a producer wants to share its topic; values of the protocol's `ProducerAccessMode`."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class Writers(NamedTuple):
    """The current producers of a topic."""

    connected: int  # producers, including the exclusive one
    exclusive: str | None  # name of the exclusive producer, also while its grant is being stored
    waiting: int
    epoch: int | None  # of the last exclusive grant; None if there was none


class Join(NamedTuple):
    """Attach as a shared producer."""

    epoch: int | None


class Hold(NamedTuple):
    """Attach exclusively with this epoch; with `fence`, after all other producers were fenced."""

    epoch: int
    fence: bool


class Wait(NamedTuple):
    """Wait behind the producers that wait already."""


Verdict: TypeAlias = Join | Hold | Wait


def decide(mode: AccessMode, shown_epoch: int | None, writers: Writers) -> Verdict:
    """Decide how a producer is attached.

    Args:
        mode: the requested access mode.
        shown_epoch: the epoch of its earlier grant, if it reconnects.
        writers: the current producers.

    Raises:
        ProducerBusy: it wants to share, and another producer has the topic exclusively or waits for it.
        ProducerFenced: it wants exclusive access, and another producer has it, or had it since.
    """
    held = writers.exclusive is not None or writers.waiting > 0
    if mode is AccessMode.SHARED:
        if held:
            raise ProducerBusy(f"Topic has an existing exclusive producer: {writers.exclusive}")
        return Join(writers.epoch)
    if mode is AccessMode.EXCLUSIVE:
        if held:
            raise ProducerFenced(f"Topic has an existing exclusive producer: {writers.exclusive}")
        if writers.connected:
            raise ProducerFenced("Topic has existing shared producers")
    elif mode is AccessMode.WAIT_FOR_EXCLUSIVE and (held or writers.connected):
        return Wait()
    # Checked before fencing: a fenced producer that reconnects must not fence its successor.
    if shown_epoch is not None and writers.epoch is not None and shown_epoch < writers.epoch:
        raise ProducerFenced(
            f"Topic epoch has already moved. Current epoch: {writers.epoch}, Producer epoch: {shown_epoch}"
        )
    # An epoch above the current one was granted by a deleted topic of this name, or never. It is ignored: continuing
    # from it could exhaust the numbers.
    epoch = next_epoch(writers.epoch) if shown_epoch is None or shown_epoch != writers.epoch else shown_epoch
    return Hold(epoch, fence=mode is AccessMode.EXCLUSIVE_WITH_FENCING and (held or writers.connected > 0))


def next_epoch(epoch: int | None) -> int:
    return 0 if epoch is None else epoch + 1


class Writer(Protocol):
    """A producer, as seen by other producers."""

    name: str


class Waiting(NamedTuple):
    """A waiting producer, and a future: a result when it is promoted, an error when it is refused."""

    producer: Writer
    turn: asyncio.Future[None]
    since_ns: int  # monotonic


class WriteAccess:
    """The exclusive producer of a topic, and the waiting ones; most topics have neither."""

    __slots__ = ("epoch", "holder", "waiting")

    def __init__(self, epoch: int | None = None) -> None:
        self.epoch = None if epoch is None or epoch >= EPOCHS_STOP else epoch
        self.holder: Writer | None = None
        self.waiting: deque[Waiting] = deque()

    def seen(self, connected: int) -> Writers:
        """The writers that a new producer finds, with this number of connected producers."""
        return Writers(
            connected=connected,
            exclusive=None if self.holder is None else self.holder.name,
            waiting=len(self.waiting),
            epoch=self.epoch,
        )

    def leave_queue(self, producer: Writer) -> None:
        self.waiting = deque(one for one in self.waiting if one.producer is not producer)

    def turn_away_waiting(self, error: Exception) -> None:
        waiting, self.waiting = self.waiting, deque()
        for one in waiting:
            if not one.turn.done():
                one.turn.set_exception(error)


class Reason(NamedTuple):
    """The error that answers one SEND."""

    code: WireCode
    message: str


def refresh(topic: PublishedTopic) -> None:
    """Update which producers are careful; disconnect those that must encrypt and do not."""
    for producer in list(topic.producers.values()):
        if topic.policies.encryption_required and not producer.encrypted:
            producer.session.disconnect_producer(producer)
        else:
            producer.careful = is_careful(producer)


def is_careful(producer: Producer) -> bool:
    """Whether the entries of this producer must be checked one by one."""
    topic = producer.topic
    return (
        producer.encrypted
        or topic.deduplication is not None
        or topic.bounds_messages
        or _delay_max_ms(topic) > 0
        or producer.replicator is Replicator.BY_POSITIONS
    )


def _delay_max_ms(topic: PublishedTopic) -> int:
    delayed = topic.policies.delayed_delivery
    return delayed.max_ms if delayed.active else 0


def passes_all(producer: Producer, lengths: Sequence[int]) -> bool:
    """Whether no entry can be refused, judged by their lengths alone."""
    topic = producer.topic
    bytes_max = topic.policies.max_message_bytes
    if topic.terminated or producer.encrypted or _delay_max_ms(topic):
        return False
    return bytes_max <= 0 or max(lengths) <= bytes_max


def refusal(producer: Producer, data: memoryview, offset: int, length: int, *, chunk: bool) -> Reason | None:
    """Why this entry is refused, or None."""
    topic = producer.topic
    if topic.terminated:
        return reason_of(TopicTerminated(topic.text))
    bytes_max = topic.policies.max_message_bytes
    if length > bytes_max > 0 and not chunk:
        return Reason(
            WireCode.NOT_ALLOWED_ERROR, f"Exceed maximum message size: {length} bytes, {topic.text} takes {bytes_max}"
        )
    delay_max_ms = _delay_max_ms(topic)
    if not producer.encrypted and not delay_max_ms:
        return None
    try:
        said = metadata.decode(data[offset : offset + length])
    except ProtocolError as error:
        return Reason(WireCode.METADATA_ERROR, str(error))
    if producer.encrypted and not said.encryption_keys:
        return Reason(WireCode.METADATA_ERROR, "Messages must be encrypted")
    if delay_max_ms and said.deliver_at_time - said.publish_time > delay_max_ms:
        return Reason(WireCode.NOT_ALLOWED_ERROR, f"Exceeds max allowed delivery delay of {delay_max_ms} milliseconds")
    return None


def is_last_chunk(entry: memoryview) -> bool:
    """Whether a chunk is the last one of its message."""
    return not metadata.is_followed_chunk(entry)


def reason_of(error: PenstockError) -> Reason:
    return Reason(error.wire_code, str(error))

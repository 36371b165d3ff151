# SPDX-License-Identifier: Apache-2.0
"""Checks of single SENDs, for topics that need more than a checksum.

Why apart from publish: most topics need no checks, and their publishes must not pay for them. A producer is `careful`
if a check here applies to it.
Where: publish calls `refusal` for each entry of a careful producer; `refresh` is called when policies change, when
deduplication is enabled or disabled, and for each new producer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.core.errors import PenstockError, TopicTerminated, WireCode
from penstock.wire import metadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.broker.publishing.producer import Producer


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
    return producer.encrypted or topic.deduplication is not None or topic.bounds_messages or _delay_max_ms(topic) > 0


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

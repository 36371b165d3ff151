# SPDX-License-Identifier: Apache-2.0
"""Disconnecting the clients of a topic without losing messages that they have sent.

- `fenced` is set: no producer or consumer can attach, and new SENDs are not accepted.
- Accepted messages become durable and are acknowledged. Only then are producers told to reconnect, so none of them
  sends a stored message again.

Where: unloading, terminating, truncating and deleting a topic begin with this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.wire import codec

if TYPE_CHECKING:
    from penstock.broker.log_reads import LogReads
    from penstock.broker.topics.topic import Topic

UNSOLICITED: Final = 2**64 - 1


async def detach(topic: Topic, reads: LogReads) -> None:
    """Disconnect all clients of the topic. On return all accepted messages are durable and acknowledged."""
    topic.fenced = True
    for subscription in list(topic.subscriptions.values()):
        for consumer in list(subscription.consumers):
            consumer.session.disconnect_consumer(consumer)
        subscription.fenced = True
    await disconnect_producers(topic, reads)


async def disconnect_producers(topic: Topic, reads: LogReads) -> None:
    """Tell all producers to reconnect, once their accepted messages are acknowledged."""
    producers = list(topic.producers.values())
    for producer in producers:
        producer.session.forget_producer(producer)
        producer.session.remember_closed(producer.producer_id)
    await reads.settled()
    for producer in producers:
        producer.session.reply(codec.close_producer(producer.producer_id, UNSOLICITED))

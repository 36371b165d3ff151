# SPDX-License-Identifier: Apache-2.0
"""Taking a topic from its clients, without losing what they have sent.

1. `fenced`: no producer or consumer joins, and SENDs that still come are not taken.
2. What was accepted becomes durable and is answered; only then are producers told to connect anew, so that none of them
   sends again what is stored already.

Where: whatever ends a topic, or turns its producers away, begins with this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.wire import codec

if TYPE_CHECKING:
    from penstock.broker.log_reads import LogReads
    from penstock.broker.topics.topic import Topic

UNSOLICITED: Final = 2**64 - 1


async def detach(topic: Topic, reads: LogReads) -> None:
    """Take the topic from all its clients; when this returns, all that was accepted is durable and answered."""
    topic.fenced = True
    for subscription in list(topic.subscriptions.values()):
        for consumer in list(subscription.consumers):
            consumer.session.disconnect_consumer(consumer)
        subscription.fenced = True
    await disconnect_producers(topic, reads)


async def disconnect_producers(topic: Topic, reads: LogReads) -> None:
    """Tell all producers to connect anew, once what they have sent is answered."""
    leaving = list(topic.producers.values())
    for producer in leaving:
        producer.session.forget_producer(producer)
        producer.session.remember_closed(producer.producer_id)
    await reads.settled()
    for producer in leaving:
        producer.session.reply(codec.close_producer(producer.producer_id, UNSOLICITED))

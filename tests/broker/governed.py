# SPDX-License-Identifier: Apache-2.0
"""What tests of policies share: looking at a topic, publishing at a given time, changing the configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.testing.client import Type, entry, frame, send
from tests.net.harness import TOPIC, Client, topic_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.subscriptions.subscription import Subscription
    from tests.net.harness import Harness

NAMESPACE = "public/default"
OTHER = "persistent://public/default/other"
MINUTE_MS = 60_000


def subscription_of(harness: Harness, name: str = "s") -> Subscription:
    """A subscription of the topic."""
    return topic_of(harness).subscriptions[name]


def configure(harness: Harness, **changes: Any) -> None:  # noqa: ANN401 - whatever the key takes
    """Change the configuration, as at run time."""
    limits = harness.broker.limits
    harness.broker.limits_in_force.now = replace(limits, policies=replace(limits.policies, **changes))
    harness.broker.policies.refresh()


async def publish_now(harness: Harness, client: Client, payloads: Sequence[bytes], *, ago_ms: int = 0) -> None:
    """Publish messages, stamped with the time of the test's clock or an earlier one, and await their receipts."""
    first = topic_of(harness).next_entry_id
    published_ms = harness.clock.wall_ms() - ago_ms
    for sequence_id, payload in enumerate(payloads, first):
        client.write(send(0, sequence_id, entry(payload, sequence_id=sequence_id, publish_time=published_ms)))
    await client.receipts(len(payloads))


async def subscribe(
    harness: Harness, name: str = "s", *, permits: int = 0, topic: str = TOPIC, durable: bool = True
) -> Client:
    """A client with a consumer of a Shared subscription, from the first entry on."""
    client = await Client.connected(harness.port)
    await client.request(
        Type.SUBSCRIBE,
        Type.SUCCESS,
        topic=topic,
        subscription=name,
        consumer_id=0,
        subType=1,
        initialPosition=1,
        durable=durable,
    )
    if permits:
        client.write(frame(Type.FLOW, consumer_id=0, messagePermits=permits))
    return client


def acknowledge_through(harness: Harness, entry_id: int, name: str = "s") -> None:
    """As if its consumer had acknowledged everything up to this entry."""
    subscription_of(harness, name).acknowledge_through(entry_id)

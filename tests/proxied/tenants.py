# SPDX-License-Identifier: Apache-2.0
"""A tenant's clients, which reach a broker directly or through a proxy.

Where: tests of what must hold either way. The fixture `tenant` gives each of them both ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.broker.composition.administration import administration
from penstock.core.names import TopicName
from penstock.testing.client import Type, frame
from tests.net.harness import Client, topic_of

if TYPE_CHECKING:
    from penstock.broker.topics.topic import Topic
    from tests.broker.throttled import Sensors
    from tests.net.harness import Harness
    from tests.proxied.harness import Proxied


@dataclass
class Tenant:
    """A client's way to a broker: directly, or through a proxy."""

    broker: Harness
    sensors: Sensors
    proxy: Proxied | None

    async def connected(self) -> Client:
        if self.proxy is None:
            return await Client.connected(self.broker.port)
        client = await Client.open(self.proxy.port)
        hello: dict[str, Any] = {"proxy_to_broker_url": self.proxy.target}
        client.write(frame(Type.CONNECT, client_version="test", protocol_version=20, **hello))
        await client.expect(Type.CONNECTED)
        return client

    async def producing(self, topic: str, **fields: object) -> Client:
        client = await self.connected()
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=topic, producer_id=0, **fields)
        return client

    async def refused(self, topic: str, **fields: object) -> int:
        """Why no producer of a topic is made."""
        client = await self.connected()
        answer = await client.request(Type.PRODUCER, Type.ERROR, topic=topic, producer_id=0, **fields)
        return answer.error.error

    async def subscribed(self, topic: str, subscription: str = "s", permits: int = 0, **fields: object) -> Client:
        client = await self.connected()
        await client.request(
            Type.SUBSCRIBE, Type.SUCCESS, topic=topic, subscription=subscription, consumer_id=0, subType=1,
            initialPosition=1, **fields,
        )  # fmt: skip
        if permits:
            client.write(frame(Type.FLOW, consumer_id=0, messagePermits=permits))
        return client

    def topic(self, name: str) -> Topic:
        return topic_of(self.broker, name)


async def made(tenant: Tenant, name: str) -> None:
    """The partitioned topic of a partition exists."""
    topic = TopicName.parse(name)
    if topic.partition >= 0:
        await administration(tenant.broker.broker).topics.create_partitioned(topic.parent, 1)


def namespace_of(name: str) -> str:
    return str(TopicName.parse(name).namespace_name)


async def policy(tenant: Tenant, name: str, what: str, value: object) -> None:
    """Set a policy of the namespace of a topic."""
    await tenant.broker.broker.policies.set_namespace(namespace_of(name), what, value)

# SPDX-License-Identifier: Apache-2.0
"""Several clusters on one loop, each a broker by itself, that replicate to each other."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from penstock.broker.composition.administration import administration
from penstock.core.checksum import seal
from penstock.core.names import NamespaceName
from penstock.core.service_urls import Addresses, ServiceUrls
from penstock.testing.client import Type
from penstock.testing.loop import VirtualLoop
from penstock.wire.pulsar_pb2 import BaseCommand, MessageMetadata
from tests.net.harness import Harness, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TOPIC = "persistent://public/default/t"
TOPIC_NAMESPACE = NamespaceName.parse("public/default")


@asynccontextmanager
async def cluster(directory: Path, name: str, **how: Any) -> AsyncIterator[Harness]:  # noqa: ANN401
    """A broker that is a cluster by itself, whose lookups lead to it."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    sock = loop.network.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1] + 1  # the next one
    sock.close()
    secure = f"pulsar+ssl://127.0.0.1:{port + 1}" if "tls" in how else None
    urls = Addresses(service=ServiceUrls(f"pulsar://127.0.0.1:{port}", secure))
    async with running(directory / name, **{"cluster_name": name, "addresses": urls, **how}) as harness:
        assert (harness.port, harness.tls_port) == (port, port + 1)
        yield harness


def stored(harness: Harness) -> list[bytes]:
    topic = harness.broker.topics.get(TOPIC)
    if topic is None:
        return []
    result = harness.broker.log.read(topic.ledger_id, 0, bytes_max=1 << 24, entries_max=10_000)
    return [bytes(entry) for batch in result.batches for _, entry in batch.entries()]


async def replicate(harness: Harness, to: Harness | int, name: str, clusters: list[str], **data: Any) -> None:  # noqa: ANN401
    """Set what administrators set: where a cluster is, and that a namespace has its messages in these clusters."""
    admin = administration(harness.broker)
    port = to if isinstance(to, int) else to.port
    await admin.clusters.create(name, {"brokerServiceUrl": f"pulsar://127.0.0.1:{port}", **data})
    await admin.tenants.update("public", {"allowedClusters": clusters})
    await admin.policies.set_replication(TOPIC_NAMESPACE, clusters)


def sending(sequence_id: int, payload: bytes, **said: Any) -> bytes:  # noqa: ANN401
    about = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=7, **said).SerializeToString()
    entry = seal(len(about).to_bytes(4, "big") + about + payload)
    command = BaseCommand(type=Type.SEND)
    command.send.producer_id, command.send.sequence_id = 0, sequence_id
    command.send.num_messages = said.get("num_messages_in_batch", 1)
    data = command.SerializeToString()
    return (4 + len(data) + len(entry)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data + entry

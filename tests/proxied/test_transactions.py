# SPDX-License-Identifier: Apache-2.0
"""Transactions of a client behind a proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.system_topics import COORDINATORS
from penstock.testing.client import Type
from tests.broker.consuming import SHARED, subscription_of
from tests.broker.transacting import TransactingPeer
from tests.net.harness import running
from tests.proxied.harness import KEEP_ALIVE_NS, proxied

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_proxy_passes_transactions_on(tmp_path: Path) -> None:
    async with (
        running(tmp_path, keep_alive_ns=KEEP_ALIVE_NS) as broker,
        proxied(broker, authenticates=False) as proxy,
    ):
        looking = await proxy.connected("")
        asked = {"topic": COORDINATORS, "metadata_auto_creation_enabled": False}
        kind, answer = Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE
        assert (await looking.request(kind, answer, **asked)).partitionMetadataResponse.partitions == 1
        peer = TransactingPeer(await proxy.connected("", proxy_to_broker_url=proxy.target))
        await peer.ask(Type.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
        await peer.produce()
        await peer.subscribe(SHARED)
        await peer.publish(b"in")
        transaction = await peer.open()
        await peer.add_topics(transaction)
        await peer.add_subscription(transaction)
        await peer.acknowledge_in(transaction, await peer.message())
        await peer.send_in(transaction, b"out")
        assert subscription_of(broker).backlog == 1
        await peer.commit(transaction)
        assert await peer.payloads(1) == [b"out"]
        assert subscription_of(broker).cursor.mark_delete == 0

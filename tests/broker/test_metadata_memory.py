# SPDX-License-Identifier: Apache-2.0
"""Stored metadata whose size clients choose stays within its row, and is known again after a restart."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.errors import TooManyRequests
from penstock.core.names import TopicName
from penstock.core.units import KIB
from penstock.testing.client import Type, entry, send
from penstock.wire.pulsar_pb2 import Schema
from tests.net.harness import Client, Harness, running

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 200 * KIB


async def use_schema(client: Client, number: int, nbytes: int = 60_000) -> None:
    """A producer on a topic of its own, whose schema is that long."""
    definition = b'{"type":"record","name":"R","doc":"%b","fields":[]}' % (b"d" * nbytes)
    await client.request(
        Type.PRODUCER,
        Type.PRODUCER_SUCCESS,
        topic=f"persistent://public/default/t{number}",
        producer_id=number,
        schema={"name": "R", "type": Schema.Type.Avro, "schema_data": definition},
    )


def used(harness: Harness) -> int:
    return harness.broker.metadata_memory.used_bytes


async def test_schemas_have_a_bound_in_all_which_is_known_after_a_restart(tmp_path: Path) -> None:
    for again in (False, True):
        async with running(tmp_path, metadata_bytes=SIZE) as harness:
            client = await Client.connected(harness.port)
            for number in range(3):
                await use_schema(client, number)  # What is stored already takes nothing.
            # The client's helper asserts that it is let in; what it was told instead is in the message.
            with pytest.raises(AssertionError, match=r"TooManyRequests\s.*delete others, or raise metadataMB"):
                await use_schema(client, 3)
            assert 180_000 < used(harness) < SIZE
            if again:
                await administration(harness.broker).topics.delete(
                    TopicName.parse("persistent://public/default/t0"), force=True
                )
                await client.expect(Type.CLOSE_PRODUCER)
                await use_schema(client, 3)
                assert 180_000 < used(harness) < SIZE


async def test_names_that_deduplication_remembers_have_a_bound_and_go_with_their_topic(tmp_path: Path) -> None:
    async with running(tmp_path, metadata_bytes=SIZE) as harness:
        await harness.broker.policies.set_namespace("public/default", "deduplication", True)
        most = 0
        for number in range(100):  # They take an eighth: those that left first are forgotten.
            client = await Client.connected(harness.port)
            name = f"{number:03d}" + "n" * 4_000
            await client.request(
                Type.PRODUCER, Type.PRODUCER_SUCCESS,
                topic="persistent://public/default/t", producer_id=0, producer_name=name,
            )  # fmt: skip
            client.write(send(0, 0, entry(b"x", producer=name)))
            await client.expect(Type.SEND_RECEIPT)
            await client.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=0)
            await client.close()
            most = max(most, used(harness))
        assert 4_000 < most <= SIZE // 8 + 5_000
        await administration(harness.broker).topics.delete(TopicName.parse("persistent://public/default/t"), force=True)
        assert used(harness) == 0


async def test_properties_that_administrators_set_at_once_fit_the_bound(tmp_path: Path) -> None:
    topic = TopicName.parse("persistent://public/default/t")
    async with running(tmp_path, metadata_bytes=SIZE) as harness:
        admin = administration(harness.broker).subscriptions
        for number in range(6):
            await admin.create(topic, f"s{number}")
        long = {"text": "p" * 60_000}
        outcomes = await asyncio.gather(
            *(admin.update_properties(topic, f"s{number}", long) for number in range(6)), return_exceptions=True
        )
        assert [type(one) for one in outcomes] == [type(None)] * 3 + [TooManyRequests] * 3
        assert 170_000 < used(harness) < SIZE

# SPDX-License-Identifier: Apache-2.0
"""Entries of replicators: stored once whatever is sent again, and answered as their replicators expect it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.publishing.replicated import MARKER, POSITION_PROPERTY, Origin, Replicator, origin_of
from penstock.core.checksum import seal
from penstock.testing.client import Type, frame
from penstock.wire.codec import FeatureFlags
from penstock.wire.pulsar_pb2 import BaseCommand, MessageMetadata
from tests.net.harness import Client, Harness, running, topic_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TOPIC = "persistent://public/default/t"
NAME = "pulsar.repl.west-->test"
DUPLICATE = (2**64 - 1, 2**64 - 1)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with running(tmp_path) as harness:
        await harness.broker.policies.set_namespace("public/default", "deduplication", value=True)
        yield harness
        for client in Client.opened:
            await client.close()
        Client.opened.clear()


async def replicating(harness: Harness, *, positions: bool, topic: str = TOPIC) -> Client:
    """A client with a replicator as producer 0, which knows receipts by positions or does not."""
    client = await Client.open(harness.port)
    flags = FeatureFlags(supports_repl_dedup_by_lid_and_eid=positions)
    client.write(frame(Type.CONNECT, client_version="west", protocol_version=21, feature_flags=flags))
    answer = await client.expect(Type.CONNECTED)
    assert answer.connected.feature_flags.supports_repl_dedup_by_lid_and_eid
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=topic, producer_id=0, producer_name=NAME)
    return client


def sending(sequence_id: int, producer: str = "p", position: str | None = None, **said: Any) -> bytes:  # noqa: ANN401
    """A SEND of an entry of another cluster."""
    about = MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=1, replicated_from="west")
    if position is not None:
        about.properties.add(key=POSITION_PROPERTY, value=position)
    command = BaseCommand(type=Type.SEND)
    command.send.producer_id, command.send.sequence_id = 0, sequence_id
    for name, value in said.items():
        if name in {"marker", "is_chunk"}:
            setattr(command.send, name, value)
        else:
            setattr(about, name, value)
    metadata = about.SerializeToString()
    stored = seal(len(metadata).to_bytes(4, "big") + metadata + b"%d" % sequence_id)
    data = command.SerializeToString()
    return (4 + len(data) + len(stored)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data + stored


async def receipt(client: Client) -> tuple[int, int, int | None]:
    """The ids of a receipt, and the entry id; None for a duplicate."""
    got = (await client.expect(Type.SEND_RECEIPT)).send_receipt
    position = (got.message_id.ledgerId, got.message_id.entryId)
    return got.sequence_id, got.highest_sequence_id, None if position == DUPLICATE else position[1]


async def test_entries_with_positions_are_known_by_them_and_so_are_their_receipts(harness: Harness) -> None:
    client = await replicating(harness, positions=True)
    # The producer there numbers its messages anew, which loses none of them.
    client.write(sending(5, position="7:0") + sending(0, position="7:1") + sending(0, "q", position="9:0"))
    assert [await receipt(client) for _ in range(3)] == [(7, 0, 0), (7, 1, 1), (9, 0, 2)]
    client.write(sending(0, position="7:1") + sending(0, "q", position="9:0") + sending(1, "q", position="9:1"))
    assert [await receipt(client) for _ in range(3)] == [(7, 1, None), (9, 0, None), (9, 1, 3)]


async def test_entries_of_older_replicators_are_known_by_their_first_producers(harness: Harness) -> None:
    client = await replicating(harness, positions=False)
    client.write(sending(5) + sending(0, "q") + sending(1, "q") + sending(6))
    assert [await receipt(client) for _ in range(4)] == [(5, 0, 0), (0, 0, 1), (1, 0, 2), (6, 0, 3)]
    client.write(sending(5) + sending(1, "q") + sending(7))
    assert [await receipt(client) for _ in range(3)] == [(5, 0, None), (1, 0, None), (7, 0, 4)]


@pytest.mark.parametrize("positions", [True, False])
async def test_what_was_replicated_is_known_after_a_restart(tmp_path: Path, *, positions: bool) -> None:
    first, second, third = ("7:0", "7:1", "7:2") if positions else (None, None, None)
    sent = sending(0, position=first) + sending(0, "q", position=second)
    async with running(tmp_path) as harness:
        await harness.broker.policies.set_namespace("public/default", "deduplication", value=True)
        client = await replicating(harness, positions=positions)
        client.write(sent)
        assert [(await receipt(client))[2] for _ in range(2)] == [0, 1]
        # Without its last snapshot, as after a kill.
        harness.broker.catalog.put_document("dedup", TOPIC, None, lambda _error: None)
        await client.close()
    async with running(tmp_path) as harness:
        client = await replicating(harness, positions=positions)
        client.write(sent + sending(1, position=third))
        assert [(await receipt(client))[2] for _ in range(3)] == [None, None, 2]
        await client.close()


async def test_each_chunk_with_a_position_is_stored_once(harness: Harness) -> None:
    client = await replicating(harness, positions=True)
    chunks = [
        sending(3, position=f"7:{number}", is_chunk=True, uuid="u", num_chunks_from_msg=2, chunk_id=number)
        for number in range(2)
    ]
    client.write(b"".join(chunks))
    assert [await receipt(client) for _ in range(2)] == [(7, 0, 0), (7, 1, 1)]
    client.write(b"".join(chunks))
    assert [await receipt(client) for _ in range(2)] == [(7, 0, None), (7, 1, None)]


@pytest.mark.parametrize(("positions", "highest"), [(True, MARKER), (False, 0)])
async def test_a_marker_is_answered_and_not_stored(harness: Harness, *, positions: bool, highest: int) -> None:
    client = await replicating(harness, positions=positions)
    client.write(sending(8, marker=True, marker_type=10) + sending(9, position="7:3"))
    assert await receipt(client) == (8, highest, None)
    assert (await receipt(client))[2] == 0
    assert topic_of(harness).last_entry_id == 0


async def test_receipts_name_positions_without_deduplication_too_but_not_on_topics_that_store_nothing(
    harness: Harness,
) -> None:
    await harness.broker.policies.set_namespace("public/default", "deduplication", value=False)
    client = await replicating(harness, positions=True)
    client.write(sending(5, position="7:0") + sending(5, position="7:0"))
    assert [await receipt(client) for _ in range(2)] == [(7, 0, 0), (7, 0, 1)]
    client = await replicating(harness, positions=True, topic="non-persistent://public/default/t")
    client.write(sending(5))
    assert (await receipt(client))[:2] == (5, 0)


async def test_names_that_come_with_entries_take_no_more_memory_than_those_of_producers(harness: Harness) -> None:
    client = await replicating(harness, positions=False)
    bytes_max = harness.broker.metadata_memory.topic_names_bytes_max
    long = "x" * 60_000
    for number in range(2 * bytes_max // len(long)):
        client.write(sending(0, f"{number}{long}"))
        assert (await receipt(client))[2] == number
    deduplication = topic_of(harness).deduplication
    assert deduplication is not None
    assert deduplication.ids.nbytes <= bytes_max + len(long)


@pytest.mark.parametrize("value", ["", "7", "7:", ":1", "7:x", "-7:1", "7:1:2", f"{10**20}:1", "\u0667:1"])
def test_a_position_that_cannot_be_read_is_none(value: str) -> None:
    said = MessageMetadata(producer_name="p", sequence_id=4, publish_time=1, replicated_from="west")
    said.properties.add(key=POSITION_PROPERTY, value=value)
    assert origin_of(Replicator.BY_POSITIONS, said) == Origin("p", 4, 4)

# SPDX-License-Identifier: Apache-2.0
"""Compaction: what is kept, against a model; and a broker that compacts, trims, restarts and loses its topic meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker import compaction
from penstock.broker.compacting import Outcome, Stored, TwoPasses
from penstock.broker.topic_states import COMPACTED_LEDGER, COMPACTION_SUBSCRIPTION
from penstock.core.checksum import is_sealed, seal
from penstock.core.errors import AlreadyExists, NotAllowed
from penstock.storage.latest_keys import LatestKeys
from penstock.testing.client import Type, frame
from penstock.wire import batches, metadata
from penstock.wire import compression as codecs
from penstock.wire.pulsar_pb2 import BaseCommand, MessageMetadata, SingleMessageMetadata
from tests.net.harness import Client, Harness, running, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

    from penstock.broker.topic import Topic

TOPIC = "persistent://public/default/t"
Message = tuple[str | None, bytes]  # key and payload


# ------------------------------------------------------------------------------------------------------------ messages


def sealed(said: MessageMetadata, payload: bytes) -> bytes:
    encoded = said.SerializeToString()
    return seal(len(encoded).to_bytes(4, "big") + encoded + payload)


def single(key: str | None, payload: bytes, **said: Any) -> bytes:  # noqa: ANN401
    """An entry with one message."""
    return sealed(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, partition_key=key, **said), payload)


def batch(messages: Sequence[Message], compression: int = codecs.NONE, **said: Any) -> bytes:  # noqa: ANN401
    """An entry with many."""
    payload = b""
    for key, body in messages:
        member = SingleMessageMetadata(partition_key=key, payload_size=len(body)).SerializeToString()
        payload += len(member).to_bytes(4, "big") + member + body
    kind, packed = codecs.compress(compression, payload)
    assert kind == compression
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        num_messages_in_batch=len(messages),
        compression=compression,  # type: ignore[arg-type]
        uncompressed_size=len(payload),
        **said,
    )
    return sealed(metadata, packed)


def messages_in(entry: bytes) -> list[tuple[int, str, bytes]]:
    """Index (-1 when it is no batch), key and payload of each message that is left of an entry."""
    assert is_sealed(entry)
    said = metadata.decode(entry)
    if not said.HasField("num_messages_in_batch"):
        return [(-1, said.partition_key, bytes(batches.payload_of(entry)))]
    payload = batches.decompressed(entry, said)
    found = list(batches.members(payload, said.num_messages_in_batch))
    return [
        (index, one.key or "", payload[one.stop - one.message_bytes : one.stop])
        for index, one in enumerate(found)
        if not one.compacted_out
    ]


def compact(entries: Iterable[tuple[int, bytes]]) -> tuple[dict[int, bytes], Outcome]:
    """Compact in memory; what is kept, by entry id."""
    stored = [Stored(entry_id, entry, 1) for entry_id, entry in entries]
    kept: list[Stored] = []
    keys = LatestKeys()
    try:
        outcome = TwoPasses(read=lambda: iter(stored), write=kept.extend, keys=keys, pause=lambda: None).run()
    finally:
        keys.close()
    return {one.entry_id: bytes(one.entry) for one in kept}, outcome


# -------------------------------------------------------------------------------------------------------- what is kept

message = st.tuples(st.sampled_from((None, "a", "b", "c", "ä")), st.sampled_from((b"", b"1", b"22")))
one_entry = st.one_of(message, st.lists(message, min_size=1, max_size=4))
topics = st.lists(one_entry, max_size=12)


def encoded(content: Message | list[Message]) -> bytes:
    return batch(content) if isinstance(content, list) else single(*content)


def model(content: Sequence[Message | list[Message]]) -> list[tuple[int, int, str, bytes]]:
    """What must be left: entry id, index, key and payload of the last message of each key, unless it is empty."""
    latest: dict[str, tuple[int, int, str, bytes]] = {}
    for entry_id, one in enumerate(content):
        for index, (key, payload) in enumerate(one) if isinstance(one, list) else [(-1, one)]:
            if key is not None:
                latest.pop(key, None)
                if payload:
                    latest[key] = (entry_id, index, key, payload)
    return sorted(latest.values())


def left_in(kept: dict[int, bytes]) -> list[tuple[int, int, str, bytes]]:
    return [(entry_id, *one) for entry_id, entry in kept.items() for one in messages_in(entry)]


@settings(deadline=None)
@given(content=topics)
def test_of_each_key_the_last_message_is_left_at_its_old_place(content: list[Message | list[Message]]) -> None:
    kept, _ = compact(enumerate(map(encoded, content)))
    assert left_in(kept) == model(content)


@settings(deadline=None)
@given(content=topics, cut=st.integers(0, 12))
def test_compacting_in_two_steps_is_compacting_once(content: list[Message | list[Message]], cut: int) -> None:
    entries = list(enumerate(map(encoded, content)))
    first, _ = compact(entries[:cut])
    second, _ = compact([*first.items(), *entries[cut:]])
    assert left_in(second) == model(content)


@settings(deadline=None)
@given(content=topics)
def test_every_message_is_kept_or_counted_as_dropped(content: list[Message | list[Message]]) -> None:
    kept, outcome = compact(enumerate(map(encoded, content)))
    total = sum(len(one) if isinstance(one, list) else 1 for one in content)
    assert len(left_in(kept)) + outcome.messages_dropped == total
    assert outcome.entries == len(kept)


@pytest.mark.parametrize("kind", [codecs.NONE, codecs.LZ4, codecs.ZLIB, codecs.ZSTD, codecs.SNAPPY])
def test_a_batch_that_loses_messages_stays_compressed_as_it_was(kind: int) -> None:
    kept, _ = compact([(0, batch([("a", b"1"), ("b", b"2"), ("c", b"3")], kind)), (1, single("b", b"4"))])
    assert left_in(kept) == [(0, 0, "a", b"1"), (0, 2, "c", b"3"), (1, -1, "b", b"4")]
    said = metadata.decode(kept[0])
    assert (said.compression, said.num_messages_in_batch) == (kind, 3)
    assert list(said.compacted_batch_indexes) == [0, 2]
    assert batches.last_index(said) == 2


def test_a_batch_that_loses_nothing_is_kept_byte_for_byte() -> None:
    whole = batch([("a", b"1"), ("b", b"2")], codecs.LZ4)
    kept, _ = compact([(0, whole)])
    assert kept == {0: whole}


def test_without_a_codec_to_write_it_a_batch_is_written_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [(0, batch([("a", b"1"), ("b", b"2")], codecs.LZ4)), (1, single("b", b"4"))]
    monkeypatch.setattr(codecs, "_cramjam", lambda: None)
    kept, _ = compact(entries)
    assert left_in(kept) == [(0, 0, "a", b"1"), (1, -1, "b", b"4")]
    assert metadata.decode(kept[0]).compression == codecs.NONE


@pytest.mark.parametrize("damage", ["unknown compression", "garbage"])
def test_a_batch_that_cannot_be_read_is_kept_as_it_is(damage: str) -> None:
    said = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2)
    said.compression = codecs.LZ4 if damage == "garbage" else codecs.ZSTD  # type: ignore[assignment]
    said.uncompressed_size = 1_000
    unreadable = sealed(said, b"\xff\xff\x00")
    kept, _ = compact([(0, unreadable), (1, single("a", b"1")), (2, single("a", b"2"))])
    assert kept == {0: unreadable, 2: single("a", b"2")}


def test_an_encrypted_batch_is_kept_or_dropped_by_the_key_on_the_entry() -> None:
    def encrypted(key: str) -> bytes:
        said = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2)
        said.partition_key = key
        said.encryption_keys.add(key="k", value=b"v")
        return sealed(said, b"only its readers know")

    kept, _ = compact([(0, encrypted("a")), (1, encrypted("b")), (2, single("a", b"x"))])
    assert list(kept) == [1, 2]


def test_all_chunks_of_a_keys_last_message_are_kept_and_no_others() -> None:
    def chunk(uuid: str, index: int) -> bytes:
        return single("a", b"part", uuid=uuid, chunk_id=index, num_chunks_from_msg=2, total_chunk_msg_size=8)

    entries = [chunk("u", 0), chunk("v", 0), chunk("u", 1), chunk("v", 1), chunk("w", 0), single("b", b"x")]
    kept, _ = compact(enumerate(entries))
    assert list(kept) == [1, 3, 5]  # u is older, w never became whole


def test_compressed_and_empty_is_empty() -> None:
    kept, _ = compact([(0, single("a", b"1")), (1, single("a", b"\x00", uncompressed_size=0, compression=codecs.LZ4))])
    assert kept == {}


def test_keys_that_do_not_fit_into_memory_are_found_all_the_same() -> None:
    keys = LatestKeys(cache_bytes=64 * 1024)
    count = 20_000
    keys.apply((f"key {i}", compaction_place(i)) for i in range(count))
    keys.apply((f"key {i}", None) for i in range(0, count, 2))
    assert len(keys) == count // 2
    assert keys.find("key 7") == compaction_place(7)
    assert keys.find("key 8") is None
    keys.close()


def compaction_place(number: int) -> Any:  # noqa: ANN401
    from penstock.storage.latest_keys import Place  # noqa: PLC0415

    return Place(number, number % 3)

# SPDX-License-Identifier: Apache-2.0
"""How many messages an entry holds: what its metadata says, as long as that can be true."""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest

from penstock.core.checksum import seal
from penstock.wire import codec
from penstock.wire.batch_counts import (
    MESSAGES_MAX,
    METADATA_FIELDS_MAX,
    METADATA_WALKED_BYTES_MAX,
    Implausible,
    counts_in,
    message_count,
)
from penstock.wire.events import PublishRun
from penstock.wire.pulsar_pb2 import KeyValue
from tests.wire.frames import Feeder, entry_body, send

ZSTD = 3


def metadata(**fields: Any) -> bytes:  # noqa: ANN401 - as the class takes them
    return codec.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields).SerializeToString()


def run_of(claimed: int, payload: bytes = bytes(600), **fields: Any) -> PublishRun:  # noqa: ANN401
    """What a reader makes of a SEND that claims so many messages."""
    feeder = Feeder()
    feeder.feed(send(0, 1, entry=seal(entry_body(payload, **fields)), num_messages=claimed))
    (run,) = feeder.heard.events
    assert isinstance(run, PublishRun)
    return run


def test_the_metadata_counts_and_not_the_command() -> None:
    assert run_of(100, num_messages_in_batch=100).message_counts == [100]
    assert run_of(100, num_messages_in_batch=7).message_counts == [7]
    assert run_of(2**31 - 1, num_messages_in_batch=7).message_counts == [7]
    assert run_of(2**31 - 1).message_counts is None  # no batch at all
    assert run_of(100, num_messages_in_batch=-5).message_counts is None


@pytest.mark.parametrize("said", [1_025, 2**31 - 1])
def test_messages_that_do_not_fit_into_their_payload_are_refused_with_both_numbers(said: int) -> None:
    run = run_of(2**31 - 1, num_messages_in_batch=said)
    (text,) = run.refused.values()
    assert f"num_messages_in_batch is {said:,}" in text
    assert "payload of 600 bytes" in text
    assert (run.corrupt, run.message_counts) == ([], None)


def test_a_compressed_batch_holds_what_fits_when_it_is_unpacked() -> None:
    many = metadata(num_messages_in_batch=10_000, compression=ZSTD, uncompressed_size=60_000)
    assert message_count(many, 20) == 10_000
    with pytest.raises(Implausible, match="payload of 59,999 bytes"):
        message_count(metadata(num_messages_in_batch=10_000, compression=ZSTD, uncompressed_size=59_999), 20)
    with pytest.raises(Implausible, match="payload of 32,768 bytes"):  # no codec compresses so well
        message_count(metadata(num_messages_in_batch=10_000, compression=ZSTD, uncompressed_size=2**32 - 1), 1)
    with pytest.raises(Implausible):  # not compressed
        message_count(metadata(num_messages_in_batch=10_000, uncompressed_size=60_000), 20)


def test_no_batch_holds_more_than_a_million_messages_however_it_is_compressed() -> None:
    said = {"compression": ZSTD, "uncompressed_size": 2**32 - 1}
    assert message_count(metadata(num_messages_in_batch=MESSAGES_MAX, **said), 10_000) == MESSAGES_MAX
    with pytest.raises(Implausible, match="1,048,576 messages are allowed"):
        message_count(metadata(num_messages_in_batch=MESSAGES_MAX + 1, **said), 10_000)


def test_metadata_that_cannot_be_read_is_refused_where_it_is_asked_for() -> None:
    body = struct.pack(">I", 3) + b"\x0a\xff\x01" + bytes(600)
    feeder = Feeder()
    feeder.feed(send(0, 1, entry=seal(body), num_messages=2) + send(0, 2, entry=seal(body)))
    (run,) = feeder.heard.events
    assert isinstance(run, PublishRun)
    assert run.refused == {0: "the metadata of a batch, 3 bytes, cannot be read"}


def test_long_metadata_has_a_bound_of_fields() -> None:
    one = [KeyValue(key="k", value="v" * METADATA_WALKED_BYTES_MAX)]
    assert run_of(1, properties=one).refused == {}
    many = [KeyValue(key="k", value="v")] * (METADATA_FIELDS_MAX + 1)
    (text,) = run_of(1, properties=many).refused.values()
    assert f"more than {METADATA_FIELDS_MAX:,} fields" in text


def test_long_metadata_of_a_usual_send_is_counted_as_well() -> None:
    many = [KeyValue(key="k", value="v")] * (METADATA_FIELDS_MAX + 1)
    feeder = Feeder()
    feeder.feed(send(0, 1))  # from this one the reader learns how the next are written
    feeder.feed(send(0, 2, entry=seal(entry_body(properties=many))))
    _, run = feeder.heard.events
    assert isinstance(run, PublishRun)
    assert list(run.refused) == [0]


def test_a_batch_written_as_earlier_ones_is_counted_by_its_own_metadata() -> None:
    feeder = Feeder()
    said = (3, 7, 2**31 - 1, 1, 3)
    entries = [seal(entry_body(bytes(600), num_messages_in_batch=number)) for number in said]
    feeder.feed(b"".join(send(0, row, entry=entry, num_messages=3) for row, entry in enumerate(entries)))
    feeder.feed(b"".join(send(0, 5 + row, entry=entry, num_messages=1) for row, entry in enumerate(entries)))
    counted, single = feeder.heard.events
    assert isinstance(counted, PublishRun)
    assert isinstance(single, PublishRun)
    assert (counted.message_counts, list(counted.refused)) == ([3, 7, 1, 1, 3], [2])
    assert (single.message_counts, single.refused) == (None, {})


def test_the_most_fields_there_can_be_are_counted_in_no_time() -> None:
    before = time.process_time()
    assert len(run_of(1, properties=[KeyValue(key="", value="")] * 160_000).refused) == 1
    assert time.process_time() - before < 5


def test_entries_are_counted_by_their_metadata_whatever_their_sends_said() -> None:
    batch, single = seal(entry_body(b"", num_messages_in_batch=100)), seal(entry_body(b""))
    named = seal(entry_body(b"", partition_key="X"))  # has the tag's byte, and no number
    unsealed, implausible = (
        entry_body(b"", num_messages_in_batch=7),
        seal(entry_body(b"", num_messages_in_batch=2**31 - 1)),
    )
    rows = [single, batch, named, unsealed, implausible, b"", b"\x0e\x01"]
    data = b"".join(rows)
    lengths = [len(row) for row in rows]
    offsets = [sum(lengths[:row]) for row in range(len(rows))]
    assert counts_in(data, offsets, lengths, None) == [1, 100, 1, 7, 1, 1, 1]
    assert counts_in(data, offsets, lengths, [1, 50, 1, 1, 1, 1, 1]) == [1, 50, 1, 7, 1, 1, 1]
    assert counts_in(data, offsets[2:3], lengths[2:3], None) is None

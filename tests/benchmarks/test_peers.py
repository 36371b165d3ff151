# SPDX-License-Identifier: Apache-2.0
"""The generators of other brokers speak their protocols, believe nothing that is wrong, and drive the real ones."""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import kafka_peer, nats_peer, pulsar_peer, run
from benchmarks.kafka_generator import (
    RECORDS_AT,
    KafkaBlock,
    KafkaMessages,
    KafkaReceipts,
    batch_of,
    fetch_body,
    topics_of,
)
from benchmarks.limit_peer import machine
from benchmarks.loads import PLANS, WARM_UP
from benchmarks.measure import Load
from benchmarks.nats_generator import NatsBlock, NatsMessages, NatsReceipts
from benchmarks.peers import NAMED, OTHERS
from benchmarks.process import PeerError, cache_of
from benchmarks.report import KAFKA, KAFKA_SYNC, LIMIT, NATS, NATS_SYNC, SUBJECTS
from penstock.cli.bench_frames import Shape
from penstock.cli.bench_scan import ReceiptScanner, UnexpectedFrame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.process import Address

REPOSITORY = Path(__file__).parents[2]
LOAD = Load(port=0, topic="persistent://public/default/t", shape=Shape(100), producers=2)
SIZES = {"a message": 1, "a batch": 5}


def scanned(scanner: ReceiptScanner, stream: bytes, chance: random.Random) -> tuple[int, list[int]]:
    """Scan a stream that comes in pieces; returns where the rest begins, and what is none of the scanner's business."""
    data, begin, others = bytearray(stream), 0, list[int]()
    for end in [*sorted(chance.randrange(len(data)) for _ in range(4)), len(data)]:
        begin = scanner.scan(data, begin, end, others := [])
    return begin, others


# ---------------------------------------------------------------------------------------------------------------- NATS


def nats_receipt(producer: int, sequence: int) -> bytes:
    body = b'{"stream":"t","seq":%d}' % sequence
    return b"MSG _INBOX.x.%d 1 %d\r\n" % (producer, len(body)) + body + b"\r\n"


@given(count=st.integers(1, 200), producers=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_receipts_of_nats_are_counted_however_the_stream_was_cut(count: int, producers: int, seed: int) -> None:
    stream = b"".join(nats_receipt(row % producers, 1 + row // producers) for row in range(count * producers))
    scanner = NatsReceipts("x", producers)

    assert scanned(scanner, stream, random.Random(seed)) == (len(stream), [])

    assert (scanner.count, scanner.expected) == (count * producers, [count + 1] * producers)


@pytest.mark.parametrize("numbers", [[1, 3], [1, 1], [2, 1]], ids=["lost", "twice", "swapped"])
@pytest.mark.parametrize("producers", [1, 2])
def test_a_receipt_of_nats_that_is_not_the_next_is_noticed(numbers: list[int], producers: int) -> None:
    stream = bytearray(b"".join(nats_receipt(0, number) for number in numbers))

    with pytest.raises(UnexpectedFrame):
        NatsReceipts("x", producers).scan(stream, 0, len(stream), [])


def test_an_error_of_nats_is_no_receipt() -> None:
    refusal = b'MSG _INBOX.x.0 1 26\r\n{"error":{"code":503}}    \r\n'
    others: list[int] = []
    scanner = NatsReceipts("x", 1)

    stop = scanner.scan(bytearray(nats_receipt(0, 1) + refusal), 0, len(nats_receipt(0, 1) + refusal), others)

    assert (scanner.count, others) == (1, [stop])


def nats_message(sequence: int, body: bytes) -> bytes:
    return b"MSG t 1 $JS.ACK.t.c.1.%d.%d.1700000000.0 %d\r\n" % (sequence, sequence, len(body)) + body + b"\r\n"


def test_messages_of_nats_are_compared_with_what_was_published_and_what_is_none_is_left() -> None:
    entries = NatsBlock.of(LOAD, 0).entries
    came = [nats_message(row + 1, entries[row]) for row in range(100)]
    status = b"HMSG _INBOX.x.pull 1 16 16\r\nNATS/1.0 408\r\n\r\n\r\n"
    stream, others = bytearray(b"".join(came) + status), list[int]()
    scanner = NatsMessages(entries)

    assert scanner.scan(stream, 0, len(stream), others) == sum(map(len, came))

    assert (scanner.count, others) == (100, [sum(map(len, came))])
    assert scanner.samples == 2
    wrong = bytearray(nats_message(1, entries[1]))
    with pytest.raises(UnexpectedFrame, match="not what was published"):
        NatsMessages(entries).scan(wrong, 0, len(wrong), [])
    late = bytearray(nats_message(2, entries[1]))
    with pytest.raises(UnexpectedFrame, match="came as number 1"):
        NatsMessages(entries).scan(late, 0, len(late), [])


# --------------------------------------------------------------------------------------------------------------- Kafka


@pytest.mark.parametrize("messages", SIZES.values(), ids=SIZES)
def test_a_record_batch_is_sealed_and_holds_its_records(messages: int) -> None:
    bodies = [bytes([65 + row]) * (50 + row) for row in range(messages)]

    batch = batch_of(bodies, 1_700_000_000_000)

    (_, size, _, magic, crc) = struct.unpack_from(">qiibI", batch)
    assert (size, magic, crc) == (len(batch) - 12, 2, crc32c(batch[21:]))
    assert struct.unpack_from(">i", batch, RECORDS_AT - 4)[0] == messages
    at, found = RECORDS_AT, []
    while at < len(batch):
        size, at = zigzag(batch, at)
        end, at = at + size, at + 2  # attributes, and the difference of times, which is 0
        (_, at), key = zigzag(batch, at), 0
        key, at = zigzag(batch, at)
        length, at = zigzag(batch, at)
        found.append(batch[at : at + length])
        assert (key, end) == (-1, at + length + 1)
        at = end
    assert found == bodies


def zigzag(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at


def test_requests_of_a_block_go_on_in_every_lap_and_alternate_between_topics() -> None:
    block = KafkaBlock.of(LOAD, 0)
    for lap in range(2):
        begins = [0, *block.ends[:-1]]
        numbers = [struct.unpack_from(">i", block.frames, begin + 8)[0] for begin in begins]
        assert numbers == list(range(lap * len(begins), (lap + 1) * len(begins)))
        block.next_lap()
    first, second = topics_of(LOAD, 0)
    assert block.frames.count(first.encode()) == block.frames.count(second.encode()) == len(block.ends) // 2


def kafka_receipt(topic: bytes, number: int, offset: int, error: int = 0) -> bytes:
    body = struct.pack(
        f">iih{len(topic)}siihqqqihi", number, 1, len(topic), topic, 1, 0, error, offset, -1, 0, 0, -1, 0
    )
    return struct.pack(">i", len(body)) + body


@given(count=st.integers(1, 100), messages=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_receipts_of_kafka_are_counted_however_the_stream_was_cut(count: int, messages: int, seed: int) -> None:
    topics = [b"a", b"b"]
    stream = b"".join(kafka_receipt(topics[row % 2], row, row // 2 * messages) for row in range(2 * count))
    scanner = KafkaReceipts(["a", "b"], messages)

    assert scanned(scanner, stream, random.Random(seed)) == (len(stream), [])

    assert (scanner.count, scanner.expected) == (2 * count, [count * messages] * 2)


@pytest.mark.parametrize(
    "wrong",
    [
        kafka_receipt(b"a", 1, 2),
        kafka_receipt(b"a", 2, 1),
        kafka_receipt(b"a", 1, -1, error=7),
        struct.pack(">ii", 4, 1),
    ],
    ids=["offset", "number", "error", "other answer"],
)
def test_a_receipt_of_kafka_that_is_not_the_next_is_noticed(wrong: bytes) -> None:
    stream = bytearray(kafka_receipt(b"a", 0, 0) + wrong)
    scanner = KafkaReceipts(["a"], 1)
    begin = scanner.scan(stream, 0, len(stream) - len(wrong), [])

    with pytest.raises(UnexpectedFrame):
        scanner.scan(stream, begin, len(stream), [])


def fetched(topic: bytes, batches: bytes, error: int = 0) -> bytearray:
    head = struct.pack(f">iihiih{len(topic)}s", 0, 0, 0, 0, 1, len(topic), topic)
    body = head + struct.pack(">iihqqqii", 1, 0, error, 0, 0, 0, -1, len(batches)) + batches
    return bytearray(struct.pack(">i", len(body)) + body)


def stored(entries: list[bytes], first: int, count: int) -> bytes:
    """Batches with offsets as a broker gives them."""
    found = b""
    for row in range(first, first + count):
        size = RECORDS_AT - 12 + len(entries[row])
        head = struct.pack(">qiibIhiqqqhii", row, size, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
        found += head + entries[row]
    return found


def test_batches_of_a_fetch_are_counted_in_order_and_a_cut_one_is_fetched_again() -> None:
    entries = KafkaBlock.of(LOAD, 0).entries
    scanner = KafkaMessages(entries, "a")
    one, two = fetched(b"a", stored(entries, 0, 71)[:-9]), fetched(b"a", stored(entries, 70, 70))

    assert scanner.scan(one, 0, len(one) - 1, []) == 0  # not complete
    assert (scanner.scan(one, 0, len(one), []), scanner.offset) == (len(one), 70)
    assert (scanner.scan(two, 0, len(two), []), scanner.count, scanner.samples) == (len(two), 140, 2)


@pytest.mark.parametrize("fault", ["offset", "a gap", "twice", "bytes", "error"])
def test_a_fetch_with_something_else_than_was_published_is_noticed(fault: str) -> None:
    entries = KafkaBlock.of(LOAD, 0).entries
    came = {
        "offset": fetched(b"a", stored(entries, 1, 1)),
        "a gap": fetched(b"a", stored(entries, 0, 2) + stored(entries, 3, 2)),
        "twice": fetched(b"a", stored(entries, 0, 2) + stored(entries, 1, 2)),
        "bytes": fetched(b"a", stored([entries[1]], 0, 1)),
        "error": fetched(b"a", b"", error=6),
    }[fault]

    with pytest.raises(UnexpectedFrame):
        KafkaMessages(entries, "a").scan(came, 0, len(came), [])


def test_a_fetch_asks_for_one_partition_from_an_offset_on() -> None:
    body = fetch_body("topic", 123)

    assert body[29:36] == struct.pack(">h", 5) + b"topic"
    assert struct.unpack_from(">iiiq", body, 36) == (1, 0, -1, 123)


# ----------------------------------------------------------------------------------------------------- the real brokers


def drive(tool: str, address: Address, mode: str, **more: object) -> dict[str, Any]:
    """Drive a load for a moment: on a busy machine maybe none of it is in the measured part, but all of it comes."""
    load = {
        "port": address.port,
        "broker_pid": address.pid,
        "topic": "persistent://public/default/t",
        "window": 100,
        "message_bytes": 1024,
        "seconds": 0.1,
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{tool}", mode, json.dumps(load)],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@contextmanager
def real_nats(data: Path) -> Iterator[Address]:
    if not (shutil.which("nats-server") or (cache_of(f"nats-{nats_peer.VERSION}") / "nats-server").exists()):
        pytest.skip(f"there is no nats-server on the PATH, nor a built one: go install {nats_peer.MODULE}")
    with nats_peer.nats(data, sync=True) as address:
        yield address


@contextmanager
def real_kafka(data: Path) -> Iterator[Address]:
    if not (cache_of(kafka_peer.ARTIFACT.folder) / "classpath.txt").exists():
        pytest.skip("Apache Kafka was not fetched: python -m benchmarks.kafka_peer fetches it, with mvn and Java 17")
    with kafka_peer.kafka(data, sync=True) as address:
        yield address


def test_nats_is_driven_in_all_ways(tmp_path: Path) -> None:
    with real_nats(tmp_path / "data") as address:
        OTHERS[NATS].driver.acknowledge_one(address.port)
        drive("nats_generator", address, "publish", topic="a", producers=3, connections=2)
        drive("nats_generator", address, "backlog", topic="b", entries=300)
        assert drive("nats_generator", address, "catch-up", topic="b", entries=300)["entries/s"] > 0
        drive("nats_generator", address, "tail", topic="c", messages=128)
        assert drive("nats_generator", address, "latency", topic="d")["p50 ms"] > 0
        for mode in ("exclusive", "shared-10"):
            assert drive("nats_generator", address, mode)["entries/s"] > 0


def test_kafka_is_driven_in_all_ways(tmp_path: Path) -> None:
    with real_kafka(tmp_path / "data") as address:
        OTHERS[KAFKA].driver.acknowledge_one(address.port)
        drive("kafka_generator", address, "publish", topic="a", producers=3, connections=2)
        drive("kafka_generator", address, "backlog", topic="b", entries=300)
        assert drive("kafka_generator", address, "catch-up", topic="b", entries=300)["entries/s"] > 0
        drive("kafka_generator", address, "tail", topic="c", messages=16)
        assert drive("kafka_generator", address, "latency", topic="d")["p50 ms"] > 0


def test_the_limit_is_that_of_the_slowest_part(tmp_path: Path) -> None:
    with machine(tmp_path / "data") as address:
        for mode in ("publish", "tail"):
            taken = drive("limit_generator", address, mode)
            assert taken["MB/s"] == min(taken["disk MB/s"], taken["loopback MB/s"])
            assert min(taken["disk by reads MB/s"], taken["copy MB/s"]) > 0
            assert taken["entries/s"] == pytest.approx(taken["MB/s"] * 1e6 / 1024)
        drive("limit_generator", address, "backlog", entries=300)
        drive("limit_generator", address, "catch-up", entries=300)
        assert drive("limit_generator", address, "latency")["p50 ms"] > 0


# ---------------------------------------------------------------------------------------------------- the command line


def test_peers_are_named_by_the_command_line_and_stand_for_columns() -> None:
    assert run.parse(["--peer", "nats,limit"]).peer == (NATS, NATS_SYNC, LIMIT)
    assert run.parse(["--peer", "kafka,kafka"]).peer == (KAFKA, KAFKA_SYNC)
    assert run.parse([]).peer == ()
    assert {column for columns in NAMED.values() for column in columns} <= set(SUBJECTS)


def test_a_peer_that_there_is_not_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.parse(["--peer", "nats,rabbit"])

    assert "no peer is named 'rabbit'; there are pulsar, nats, kafka, limit" in capsys.readouterr().err


def test_loads_of_peers_are_loads_of_the_table() -> None:
    known = {plan.name for plan in (*PLANS, *WARM_UP)} | {"start", "idle", "peak"}

    for one in OTHERS.values():
        assert one.driver.loads
        assert set(one.driver.loads) <= known


def test_a_peer_that_cannot_be_had_says_what_to_install_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_PEER_CACHE", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    assert run.main(["--peer", "nats", "--results", str(tmp_path)]) == 1
    assert "bench: NATS is built by Go the first time: install go" in capsys.readouterr().err
    with pytest.raises(PeerError, match=r"Apache Kafka needs Java 17 or later: install a JRE"):
        pulsar_peer.fetch(kafka_peer.ARTIFACT)
    with pytest.raises(PeerError, match="Apache Kafka is fetched by Maven the first time: install mvn"):
        pulsar_peer.resolve(kafka_peer.ARTIFACT)

# SPDX-License-Identifier: Apache-2.0
"""Single messages over HTTP, published by the official client: payload, headers, positions."""

from __future__ import annotations

import json
import re
import socket
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar
import pytest

from penstock.admin.responses import iso_time
from penstock.core.checksum import seal
from penstock.testing.client import RawClient, Type, send
from penstock.wire.codec import MessageMetadata

if TYPE_CHECKING:
    import httpx

    from penstock.testing.process import BrokerProcess

PAYLOAD = b"the quick brown fox jumps over the lazy dog, " * 40
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def resident_bytes(pid: int) -> int:
    """Of that process, now."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4_096


@pytest.fixture
def path(rest: httpx.Client, topic: str) -> str:
    assert rest.put(f"/admin/v2/persistent/{topic}/subscription/s").status_code == 204
    return f"/admin/v2/persistent/{topic}"


@pytest.mark.parametrize("kind", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_a_payload_is_shown_decompressed(
    client: pulsar.Client, rest: httpx.Client, path: str, topic: str, kind: str
) -> None:
    producer = client.create_producer(f"persistent://{topic}", compression_type=getattr(pulsar.CompressionType, kind))
    producer.send(PAYLOAD)
    shown = rest.get(f"{path}/subscription/s/position/1")
    assert shown.content == PAYLOAD
    assert shown.headers["content-type"] == "application/octet-stream"
    if kind != "NONE":
        assert shown.headers["x-pulsar-compression"] == kind.upper()
        assert shown.headers["x-pulsar-uncompressed-size"] == str(len(PAYLOAD))


def test_a_message_says_everything_about_itself_in_headers(
    client: pulsar.Client, rest: httpx.Client, path: str, topic: str
) -> None:
    producer = client.create_producer(f"persistent://{topic}", producer_name="clerk", initial_sequence_id=41)
    message_id = producer.send(
        b"x",
        properties={"a": "b", "umlaut": "ü"},
        partition_key="key-ü",
        ordering_key="order",
        event_timestamp=1_700_000_000_123,
        deliver_at=1_700_000_000_456,
    )
    headers = rest.get(f"{path}/subscription/s/position/1").headers
    expected = {
        "x-pulsar-message-id": f"{message_id.ledger_id()}:{message_id.entry_id()}",
        "x-pulsar-producer-name": "clerk",
        "x-pulsar-sequence-id": "42",
        "x-pulsar-partition-key": "key-%C3%BC",
        "x-pulsar-event-time": "2023-11-14T22:13:20.123Z",
        "x-pulsar-deliver-at-time": "2023-11-14T22:13:20.456Z",
        "x-pulsar-base64-ordering-key": "b3JkZXI=",
        "x-pulsar-is-encrypted": "false",
    }
    assert {name: headers.get(name) for name in expected} == expected
    assert json.loads(headers["x-pulsar-property"]) == {"a": "b", "umlaut": "ü"}
    assert ISO.fullmatch(headers["x-pulsar-publish-time"])
    assert "x-pulsar-num-batch-message" not in headers


def test_a_batch_is_shown_whole_and_says_how_many_messages_it_holds(
    client: pulsar.Client, rest: httpx.Client, path: str, topic: str
) -> None:
    producer = client.create_producer(
        f"persistent://{topic}", batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    for index in range(3):
        producer.send_async(b"member-%d" % index, lambda *_: None)
    producer.flush()
    shown = rest.get(f"{path}/subscription/s/position/1")
    assert shown.headers["x-pulsar-num-batch-message"] == "3"
    assert int(shown.headers["x-pulsar-batch-size"]) == len(shown.content) + 10
    payload, members = shown.content, []
    while payload:
        (head,) = struct.unpack_from(">I", payload)
        members.append(payload[4 + head : 4 + head + len(b"member-0")])
        payload = payload[4 + head + len(b"member-0") :]
    assert members == [b"member-0", b"member-1", b"member-2"]


def test_messages_are_found_by_place_by_position_and_by_time(
    client: pulsar.Client, rest: httpx.Client, path: str, topic: str
) -> None:
    producer = client.create_producer(f"persistent://{topic}")
    ids = [producer.send(b"%d" % index) for index in range(5)]
    ledger_id = ids[0].ledger_id()
    rest.post(f"{path}/subscription/s/skip/1")
    assert rest.get(f"{path}/subscription/s/position/1").content == b"1"
    assert rest.get(f"{path}/subscription/s/position/4").content == b"4"
    assert rest.get(f"{path}/subscription/s/position/5").status_code == 404
    assert rest.get(f"{path}/subscription/s/position/0").status_code == 400
    assert rest.get(f"{path}/ledger/{ledger_id}/entry/3").content == b"3"
    assert rest.get(f"{path}/ledger/{ledger_id}/entry/5").status_code == 404
    assert rest.get(f"{path}/ledger/{ledger_id + 1000}/entry/0").status_code == 404
    assert rest.get(f"{path}/examinemessage?initialPosition=earliest&messagePosition=2").content == b"1"
    assert rest.get(f"{path}/examinemessage?initialPosition=latest&messagePosition=2").content == b"3"
    assert rest.get(f"{path}/examinemessage").content == b"4"
    assert rest.get(f"{path}/lastMessageId").json() == {
        "ledgerId": ledger_id,
        "entryId": 4,
        "partitionIndex": -1,
        "batchIndex": -1,
    }
    assert rest.get(f"{path}/messageid/0").json() == {"ledgerId": ledger_id, "entryId": 0, "partitionIndex": -1}
    assert rest.get(f"{path}/messageid/{2**62}").json()["entryId"] == 5
    assert rest.put(f"{path}/backlogSize", json={"ledgerId": ledger_id, "entryId": 0}).json() > 0


def test_an_empty_topic_has_no_last_message(rest: httpx.Client, path: str) -> None:
    assert rest.get(f"{path}/lastMessageId").json()["entryId"] == -1
    assert rest.get(f"{path}/examinemessage").status_code == 412
    assert rest.get(f"{path}/getMessageIdByIndex?index=0").status_code == 412


def test_an_entry_that_reads_as_no_message_is_refused_and_not_our_fault(
    broker: BrokerProcess, rest: httpx.Client, path: str, topic: str
) -> None:
    said = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, compression="LZ4", uncompressed_size=100
    ).SerializeToString()
    with RawClient(broker.port) as raw:
        raw.produce(f"persistent://{topic}")
        raw.write(send(0, 0, seal(struct.pack(">I", len(said)) + said + b"not lz4")))
        raw.next(Type.SEND_RECEIPT)
    broken = rest.get(f"{path}/subscription/s/position/1")
    assert (broken.status_code, "the payload" in broken.json()["reason"]) == (412, True)


@pytest.mark.parametrize(
    ("wall_ms", "text"),
    [(0, "1970-01-01T00:00:00.000Z"), (1_700_000_000_007, "2023-11-14T22:13:20.007Z"), (2**62, "")],
)
def test_times_are_printed_as_javas_admin_client_reads_them(wall_ms: int, text: str) -> None:
    assert iso_time(wall_ms) == text


def test_headers_keep_their_capitals_and_each_property_has_one(
    client: pulsar.Client, broker: BrokerProcess, path: str, topic: str
) -> None:
    """Pulsar's Java client looks for X-Pulsar-PROPERTY- letter by letter, so this looks at the bytes."""
    properties = {"Color": "Red", "no token": "x", "umlaut": "ü"}
    client.create_producer(f"persistent://{topic}").send(b"x", properties=properties)
    port = int(broker.admin_url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as caller:
        request = f"GET {path}/subscription/s/position/1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        caller.sendall(request.encode())
        head = b"".join(iter(lambda: caller.recv(65_536), b"")).partition(b"\r\n\r\n")[0].decode("latin-1")
    lines = head.split("\r\n")
    assert "X-Pulsar-PROPERTY-Color: Red" in lines
    assert "X-Pulsar-PROPERTY-umlaut: %C3%BC" in lines
    assert not any(line.startswith("X-Pulsar-PROPERTY-no") for line in lines)
    (together,) = (line for line in lines if line.startswith("X-Pulsar-PROPERTY: "))
    assert json.loads(together.partition(": ")[2]) == properties
    assert any(line.startswith("X-Pulsar-Message-ID: ") for line in lines)


def test_a_message_that_would_fill_the_memory_when_decompressed_is_not_shown(
    broker: BrokerProcess, rest: httpx.Client, path: str, topic: str
) -> None:
    size = 1 << 28
    zeros = zlib.compressobj()
    piece = bytes(1 << 20)
    bomb = b"".join([*(zeros.compress(piece) for _ in range(size >> 20)), zeros.flush()])
    described = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, compression="ZLIB", uncompressed_size=size
    )
    said = described.SerializeToString()
    with RawClient(broker.port) as raw:
        raw.produce(f"persistent://{topic}")
        raw.write(send(0, 0, seal(struct.pack(">I", len(said)) + said + bomb)))
        raw.next(Type.SEND_RECEIPT)
    before = resident_bytes(broker.pid)
    for where in ("examinemessage?initialPosition=latest", "subscription/s/position/1"):
        shown = rest.get(f"{path}/{where}")
        assert shown.status_code == 412
        assert f"is {size} bytes decompressed, as it says; 20971520 are read here" in shown.json()["reason"]
    assert resident_bytes(broker.pid) < before + (64 << 20)

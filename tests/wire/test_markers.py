# SPDX-License-Identifier: Apache-2.0
"""Markers of replicated subscriptions, as Apache Pulsar writes and reads them."""

from __future__ import annotations

import pytest

from penstock.core.checksum import seal
from penstock.core.position import Position
from penstock.wire.codec import MessageMetadata
from penstock.wire.errors import ProtocolError
from penstock.wire.markers import MARKER_BYTES_MAX, Marker, Request, Response, Update, decode, encode


def entry_of(about: MessageMetadata, payload: bytes) -> bytes:
    data = about.SerializeToString()
    return seal(len(data).to_bytes(4, "big") + data + payload)


def entry_with(kind: int, payload: bytes) -> bytes:
    about = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, marker_type=kind, replicated_from="west")
    return entry_of(about, payload)


@pytest.mark.parametrize(
    ("marker", "kind", "payload"),
    [
        (Request("ab", "east"), 10, b"\x0a\x02ab\x12\x04east"),
        (Response("ab", "east", Position(3, 4)), 11, b"\x0a\x02ab\x12\x0c\x0a\x04east\x12\x04\x08\x03\x10\x04"),
        (Update("s", {"west": Position(3, 4)}), 13, b"\x0a\x01s\x12\x0c\x0a\x04west\x12\x04\x08\x03\x10\x04"),
    ],
)
def test_markers_are_those_of_pulsar(marker: Marker, kind: int, payload: bytes) -> None:
    about, encoded = encode(marker, cluster="east", publish_time_ms=7)
    assert (about.marker_type, about.replicated_from, encoded) == (kind, "east", payload)
    assert decode(entry_of(about, encoded)) == ("east", marker)


def test_an_answer_is_for_the_cluster_that_has_asked() -> None:
    about, _ = encode(Response("ab", "east", Position(3, 4), to="west"), cluster="east", publish_time_ms=7)
    assert list(about.replicate_to) == ["west"]


def test_a_topic_without_entries_ends_before_the_first_one() -> None:
    about, payload = encode(Response("ab", "east", Position(3, -1)), cluster="east", publish_time_ms=7)
    assert decode(entry_of(about, payload)) == ("east", Response("ab", "east", Position(3, -1)))


def test_other_markers_are_passed_over() -> None:
    assert decode(entry_with(12, b"")) is None
    assert decode(entry_with(21, b"")) is None


@pytest.mark.parametrize(
    "entry",
    [
        entry_with(10, b"\xff\xff"),
        entry_with(10, b""),
        entry_with(11, b"\x0a\x02ab\x12\x02\x0a\x00"),
        entry_with(13, b"\x0a\x02\xff\xfe"),
        entry_with(13, bytes(MARKER_BYTES_MAX)),
        b"\x0e\x01",
    ],
)
def test_what_cannot_be_read_is_an_error(entry: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(entry)

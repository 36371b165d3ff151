# SPDX-License-Identifier: Apache-2.0
"""Looking inside a stored entry."""

from __future__ import annotations

import struct

import pytest

from penstock.core.checksum import seal
from penstock.wire import metadata
from penstock.wire.errors import ProtocolError
from tests.wire.frames import entry_body


def test_a_batch_is_told_by_presence_not_by_value() -> None:
    assert metadata.batch_size(seal(entry_body())) is None
    assert metadata.batch_size(seal(entry_body(num_messages_in_batch=1))) == 1
    assert metadata.batch_size(seal(entry_body(num_messages_in_batch=30))) == 30


def test_the_publish_time_is_what_the_client_said() -> None:
    assert metadata.publish_time(memoryview(seal(entry_body()))) == 1_000


def test_all_fields_can_be_asked_for() -> None:
    decoded = metadata.decode(seal(entry_body(partition_key="k", deliver_at_time=-5, event_time=7)))
    assert (decoded.producer_name, decoded.partition_key, decoded.deliver_at_time, decoded.event_time) == (
        "p",
        "k",
        -5,
        7,
    )


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (seal(b""), "metadata of 0 bytes in an entry of 6"),
        (seal(struct.pack(">I", 9) + b"short"), "metadata of 9 bytes in an entry of 15"),
        (seal(struct.pack(">I", 1) + b"\xff"), "unreadable metadata of 1 bytes"),
        (seal(struct.pack(">I", 0)), "metadata without a required field"),
    ],
)
def test_an_entry_that_is_not_what_it_says_is_refused(entry: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        metadata.decode(entry)

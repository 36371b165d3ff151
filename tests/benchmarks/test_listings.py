# SPDX-License-Identifier: Apache-2.0
"""The reader of the listings' load: it counts an answer when the whole of it has come, however it was cut."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from benchmarks.listings import Reader
from penstock.testing.client import Type, frame
from penstock.wire import listings

if TYPE_CHECKING:
    from penstock.testing.client import RawClient

NAMES = listings.listed(["t" * 50] * 20)
ANSWER = listings.topics_head(1, filtered=False, topics_hash="00c0ffee", changed=True, shared_bytes=len(NAMES)) + NAMES


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 10_000])
def test_an_answer_is_whole_when_its_last_byte_has_come_and_pings_are_none(piece_bytes: int) -> None:
    ours, brokers = socket.socketpair()
    with ours, brokers:
        reader = Reader(cast("RawClient", SimpleNamespace(socket=ours)))
        data = frame(Type.PING) + frame(Type.PING) + ANSWER
        whole = []
        for start in range(0, len(data), piece_bytes):
            brokers.sendall(data[start : start + piece_bytes])
            whole.append(reader.take(bytearray(10_000)))
        assert whole == [False] * (len(whole) - 1) + [True]
        assert (reader.kind, reader.frame_bytes) == (Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, len(ANSWER) - 4)


def test_an_answer_that_never_ends_is_not_whole() -> None:
    ours, brokers = socket.socketpair()
    with ours:
        reader = Reader(cast("RawClient", SimpleNamespace(socket=ours)))
        brokers.sendall(ANSWER[:-1])
        assert not reader.take(bytearray(10_000))
        brokers.close()
        with pytest.raises(ConnectionError):
            reader.take(bytearray(10_000))

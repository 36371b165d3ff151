# SPDX-License-Identifier: Apache-2.0
"""The reader of the loads of listings: an answer counts when the whole of it has come, however it was cut."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from benchmarks.listing_loads import Stream
from penstock.testing.client import Type, frame
from penstock.wire import listings

if TYPE_CHECKING:
    from penstock.testing.client import RawClient

NAMES = listings.listed(["t" * 50] * 20)
ANSWER = listings.topics_head(1, filtered=False, topics_hash="00c0ffee", changed=True, shared_bytes=len(NAMES)) + NAMES


def stream_on(ours: socket.socket) -> Stream:
    return Stream(cast("RawClient", SimpleNamespace(socket=ours, write=ours.sendall)))


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 10_000])
def test_an_answer_is_whole_when_its_last_byte_has_come_and_pings_are_none(piece_bytes: int) -> None:
    ours, brokers = socket.socketpair()
    with ours, brokers:
        stream = stream_on(ours)
        data = frame(Type.PING) + frame(Type.PING) + ANSWER
        whole = []
        for start in range(0, len(data), piece_bytes):
            brokers.sendall(data[start : start + piece_bytes])
            stream.take(10_000)
            whole.append(stream.has_lists(1))
        assert whole == [False] * (len(whole) - 1) + [True]
        (begun,) = stream.begun
        assert (begun.kind, begun.nbytes) == (Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, len(ANSWER) - 4)
        assert brokers.recv(1000) == 2 * frame(Type.PONG)


def test_an_answer_that_never_ends_is_not_whole() -> None:
    ours, brokers = socket.socketpair()
    with ours:
        stream = stream_on(ours)
        brokers.sendall(ANSWER[:-1])
        stream.take(10_000)
        assert not stream.has_lists(1)
        brokers.close()
        with pytest.raises(ConnectionError):
            stream.take(10_000)

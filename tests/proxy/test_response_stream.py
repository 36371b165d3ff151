# SPDX-License-Identifier: Apache-2.0
"""Frames of a broker pass in pieces, and the proxy's own frames are added only between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.proxy.response_stream import ResponseStream
from penstock.wire.errors import ProtocolError


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def frames_of(stream: bytes) -> list[bytes]:
    found = []
    while stream:
        size = int.from_bytes(stream[:4], "big")
        found.append(stream[4 : 4 + size])
        stream = stream[4 + size :]
    return found


@given(bodies=st.lists(st.binary(min_size=4, max_size=40), max_size=12), data=st.data())
def test_own_frames_are_added_between_the_brokers_wherever_its_bytes_are_cut(
    bodies: list[bytes], data: st.DataObject
) -> None:
    came = b"".join(map(framed, bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(came)), max_size=8)))
    stream, sent = ResponseStream(frame_bytes_max=64), b""
    own: list[bytes] = []
    for start, stop in zip([0, *cuts], [*cuts, len(came)], strict=True):
        if start < stop:
            sent += b"".join(stream.passed(came[start:stop]))
        if data.draw(st.booleans()):
            own.append(b"own%d" % len(own))
            sent += b"".join(stream.add(framed(own[-1])))
    assert stream.between_frames
    seen = frames_of(sent)
    assert [body for body in seen if body in own] == own
    assert [body for body in seen if body not in own] == [body for body in bodies if body not in own]


def test_own_frames_that_wait_are_counted() -> None:
    stream = ResponseStream(frame_bytes_max=64)
    stream.passed(framed(bytes(8))[:6])
    assert list(stream.add(b"own")) == []
    assert stream.waiting_bytes == 3
    stream.passed(framed(bytes(8))[6:])
    assert stream.waiting_bytes == 0


def test_a_size_that_no_broker_announces_is_an_error() -> None:
    stream = ResponseStream(frame_bytes_max=64)
    with pytest.raises(ProtocolError, match="65 bytes: want 4 to 64"):
        stream.passed(framed(bytes(65)))

# SPDX-License-Identifier: Apache-2.0
"""A broker's frames up to CONNECTED, as they are cut by the network, and brokers that do not come to it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.units import MIB
from penstock.proxy.greeting import GREETING_FRAMES_MAX, HANDSHAKE_BYTES_MAX, Greeting, agreed_sizes
from penstock.testing.client import Type, frame
from penstock.wire.client.frames import FRAME_BYTES_MAX, FRAME_PADDING_BYTES, decode_frame
from penstock.wire.errors import ProtocolError

CONNECTED = frame(Type.CONNECTED, server_version="x", protocol_version=20)
PING = frame(Type.PING)


@given(cuts=st.lists(st.integers(0, 2 * len(PING) + len(CONNECTED) + 7)))
def test_frames_do_not_depend_on_how_the_bytes_were_cut(cuts: list[int]) -> None:
    stream, greeting, seen = PING + PING + CONNECTED + b"further", Greeting(), list[bytes]()
    places = [0, *sorted(cuts), len(stream)]
    for begin, end in pairwise(places):
        greeting.add(stream[begin:end])
        while (not seen or seen[-1] != CONNECTED) and (came := greeting.next_frame()) is not None:
            seen.append(came[0])
    assert seen == [PING, PING, CONNECTED]
    assert greeting.rest == b"further"


def test_a_frame_that_is_too_long_is_not_waited_for() -> None:
    greeting = Greeting()
    greeting.add(HANDSHAKE_BYTES_MAX.to_bytes(4) + bytes(4))
    with pytest.raises(ProtocolError, match="the answer to CONNECT has"):
        greeting.next_frame()


def test_a_broker_that_only_pings_is_given_up() -> None:
    greeting = Greeting()
    greeting.add(PING * (GREETING_FRAMES_MAX + 1))
    for _ in range(GREETING_FRAMES_MAX):
        assert greeting.next_frame() is not None
    with pytest.raises(ProtocolError, match="21 PINGs and challenges"):
        greeting.next_frame()


@pytest.mark.parametrize(
    ("announced", "told", "frames"),
    [
        (None, 5 * MIB, max(FRAME_BYTES_MAX, 5 * MIB + FRAME_PADDING_BYTES)),
        (MIB, MIB, FRAME_BYTES_MAX),
        (20 * MIB, 5 * MIB, 20 * MIB + FRAME_PADDING_BYTES),
    ],
)
def test_the_smaller_limit_is_told_and_larger_entries_still_pass(announced: int | None, told: int, frames: int) -> None:
    fields = {} if announced is None else {"max_message_size": announced}
    data = frame(Type.CONNECTED, server_version="x", protocol_version=20, **fields)
    body = decode_frame(data, 0, len(data)).body
    assert agreed_sizes(body, 5 * MIB + FRAME_PADDING_BYTES) == frames
    assert body.max_message_size == told


@pytest.mark.parametrize("announced", [0, -1, 256 * MIB + 1])
def test_what_cannot_be_is_refused(announced: int) -> None:
    data = frame(Type.CONNECTED, server_version="x", protocol_version=20, max_message_size=announced)
    with pytest.raises(ProtocolError, match="a largest message"):
        agreed_sizes(decode_frame(data, 0, len(data)).body, 5 * MIB)

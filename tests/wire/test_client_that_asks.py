# SPDX-License-Identifier: Apache-2.0
"""A client that only asks gives a broker no memory beyond its answers."""

from __future__ import annotations

import pytest

from penstock.core.units import KIB, MIB
from penstock.wire import codec
from penstock.wire.client import events
from penstock.wire.client.connection import SAID_CHARS_MAX, UNASKED_MAX, ClientConnection, frame
from penstock.wire.codec import BaseCommand as Type
from penstock.wire.errors import ProtocolError


def asking(message_bytes_max: int = MIB) -> ClientConnection:
    client = ClientConnection(answer_bytes_max=64 * KIB)
    client.receive_data(codec.connected("Pulsar Server", 21, message_bytes_max, topic_watchers=True))
    assert isinstance(client.next_event(), events.Connected)
    client.data_to_send()
    return client


def test_an_answer_has_its_bound_whatever_the_broker_announces() -> None:
    client = asking(message_bytes_max=100 * MIB)
    client.receive_data((64 * KIB + 1).to_bytes(4, "big") + bytes(100))
    with pytest.raises(ProtocolError, match="a frame of 65537 bytes"):
        client.next_event()


@pytest.mark.parametrize(
    "unasked",
    [
        frame(Type.CLOSE_CONSUMER, consumer_id=1, request_id=1),
        frame(Type.MESSAGE, consumer_id=1, message_id={"ledgerId": 1, "entryId": 1}),
        frame(Type.WATCH_TOPIC_UPDATE, watcher_id=1, topics_hash="h"),
    ],
)
def test_what_nobody_asked_for_ends_the_connection(unasked: bytes) -> None:
    client = asking()
    client.receive_data(unasked)
    with pytest.raises(ProtocolError, match="only asks"):
        client.next_event()


@pytest.mark.parametrize("one", [codec.ping(), frame(Type.AUTH_CHALLENGE, challenge={"auth_data": b"x"})])
def test_pings_and_challenges_are_answered_a_few_at_a_time(one: bytes) -> None:
    client = asking()
    client.receive_data(one * UNASKED_MAX)
    assert client.next_event() is None
    assert len(client.data_to_send()) == UNASKED_MAX
    client.receive_data(one * (UNASKED_MAX + 1))
    with pytest.raises(ProtocolError, match="PINGs and challenges at once"):
        client.next_event()


def test_a_long_error_is_kept_only_in_part() -> None:
    client = asking()
    request_id = client.request(codec.CommandLookupTopic(topic="t", request_id=0))
    client.receive_data(frame(Type.ERROR, request_id=request_id, error=0, message="e" * 60_000))
    event = client.next_event()
    assert isinstance(event, events.RequestFailed)
    assert len(event.error.said) == SAID_CHARS_MAX

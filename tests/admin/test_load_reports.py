# SPDX-License-Identifier: Apache-2.0
"""The report of all topics, which is encoded in pieces."""

from __future__ import annotations

import asyncio
import json
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.admin.load_reports import topics
from penstock.admin.probes import InPieces
from tests.telemetry.snapshots import IDLE, SUBSCRIPTION, TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Message


def test_all_topics_are_one_json_object_by_namespace_bundle_and_domain() -> None:
    odd = replace(TOPIC, name='persistent://a/b/"q\\', namespace="a/b", subscriptions=())
    fleeting = replace(TOPIC, name="non-persistent://a/b/c", namespace="a/b")
    report = json.loads("".join(topics(replace(IDLE, topics=(odd, TOPIC, fleeting)))))
    (of_bundle,) = report["a/b"].values()
    assert of_bundle["persistent"][odd.name]["subscriptions"] == {}
    seen = of_bundle["non-persistent"][fleeting.name]
    assert seen["averageMsgSize"] == TOPIC.bytes_in / TOPIC.messages_in
    assert seen["subscriptions"][SUBSCRIPTION.name]["msgBacklog"] == SUBSCRIPTION.backlog
    assert set(report) == {"a/b", TOPIC.namespace}


def test_no_topics_are_an_empty_object() -> None:
    assert "".join(topics(IDLE)) == "{}"


def test_a_piece_is_one_subscription_at_most() -> None:
    many = replace(TOPIC, subscriptions=tuple(replace(SUBSCRIPTION, name=f"s-{number}") for number in range(1_000)))
    assert max(map(len, topics(replace(IDLE, topics=(many,))))) < 500


class SlowReader:
    """A caller who takes the head and two pieces of a response, and then waits."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self.response = InPieces(pieces, "text/plain")
        self.sizes: list[int] = []  # of what was sent, the head first
        self.full = asyncio.Event()
        self.request = asyncio.ensure_future(self.response({"type": "http"}, self.receive, self.send))

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: Message) -> None:
        self.sizes.append(len(message.get("body", b"")))
        if len(self.sizes) == 3:
            self.full.set()
            await asyncio.Event().wait()

    async def leave(self) -> None:
        self.request.cancel()
        await asyncio.wait([self.request])


async def test_pieces_are_joined_and_made_when_they_are_sent() -> None:
    numbers = iter(range(100))
    reader = SlowReader("x" * 1_000 for _ in numbers)
    await reader.full.wait()
    assert reader.sizes[1:] == [17_000, 17_000]
    assert next(numbers) == 34
    await reader.leave()


async def test_a_response_that_ends_in_the_middle_keeps_nothing_of_its_snapshot() -> None:
    snapshot = replace(IDLE, topics=tuple(replace(TOPIC, name=f"persistent://a/b/{n}") for n in range(1_000)))
    seen = weakref.ref(snapshot)
    reader = SlowReader(topics(snapshot))
    del snapshot
    await reader.full.wait()
    assert seen() is not None
    await reader.leave()
    assert seen() is None
    assert reader.response.status_code == 200  # It is still there.

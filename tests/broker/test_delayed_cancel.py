# SPDX-License-Identifier: Apache-2.0
"""Cancelling a delayed message: nobody gets it, now or later, before or after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.broker.administration import delayed_admin
from penstock.broker.composition.administration import administration
from penstock.core.errors import NotAllowed, NotFound, PreconditionFailed
from penstock.core.names import TopicName
from penstock.core.position import Position
from tests.broker.consuming import EXCLUSIVE, SHARED, Peer, nothing_more, pass_time, subscription_of
from tests.net.harness import TOPIC, Harness, running, topic_of, until

if TYPE_CHECKING:
    from pathlib import Path

HOUR_MS = 3_600_000
NAME = TopicName.parse(TOPIC)


async def with_delayed(harness: Harness, count: int = 3) -> tuple[Peer, list[Position]]:
    """A shared subscription that holds so many messages; where they are."""
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED)
    due_ms = harness.clock.wall_ms() + HOUR_MS
    ids = [(await peer.publish(b"%d" % number, deliver_at_time=due_ms))[0] for number in range(count)]
    await until(lambda: subscription_of(harness).delayed == count)
    return peer, [Position(topic_of(harness).ledger_id, entry_id) for entry_id in ids]


async def test_a_cancelled_message_is_delivered_to_no_subscription(harness: Harness) -> None:
    peer, positions = await with_delayed(harness)
    await peer.subscribe(SHARED, name="other", consumer_id=1)
    await until(lambda: subscription_of(harness, "other").delayed == 3)
    await administration(harness.broker).delayed.cancel(NAME, positions[1])
    assert [subscription_of(harness, name).delayed for name in ("s", "other")] == [2, 2]
    assert [subscription_of(harness, name).backlog for name in ("s", "other")] == [2, 2]
    pass_time(harness, HOUR_MS + 1_000)
    assert sorted(await peer.payloads(4)) == [b"0", b"0", b"2", b"2"]
    await nothing_more(harness, peer)


async def test_who_subscribes_or_seeks_back_later_does_not_get_it_either(harness: Harness) -> None:
    peer, positions = await with_delayed(harness)
    await administration(harness.broker).delayed.cancel(NAME, positions[1])
    await peer.subscribe(EXCLUSIVE, name="alone", consumer_id=1)
    assert await peer.payloads(2) == [b"0", b"2"]
    await subscription_of(harness, "alone").move_to(0)
    await peer.subscribe(EXCLUSIVE, name="alone", consumer_id=2)
    assert await peer.payloads(2) == [b"0", b"2"]


async def test_it_stays_cancelled_over_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        _, positions = await with_delayed(harness)
        await administration(harness.broker).delayed.cancel(NAME, positions[0])
    async with running(tmp_path) as harness:
        await harness.broker.topics.load(NAME)
        assert subscription_of(harness).delayed == 2
        peer = await Peer.connected(harness)
        for consumer_id, name in enumerate(("s", "new")):
            await peer.subscribe(SHARED, name=name, consumer_id=consumer_id)
        pass_time(harness, HOUR_MS + 1_000)
        assert sorted(await peer.payloads(4)) == [b"1", b"1", b"2", b"2"]


async def test_cancelling_twice_is_no_error(harness: Harness) -> None:
    _, positions = await with_delayed(harness)
    for _ in range(2):
        await administration(harness.broker).delayed.cancel(NAME, positions[0])
    assert subscription_of(harness).delayed == 2


async def test_what_is_due_was_never_delayed_or_is_nowhere_cannot_be_cancelled(harness: Harness) -> None:
    peer, positions = await with_delayed(harness, 1)
    (now,) = await peer.publish(b"now")
    ledger_id = positions[0].ledger_id
    with pytest.raises(PreconditionFailed, match="was not delayed"):
        await administration(harness.broker).delayed.cancel(NAME, Position(ledger_id, now))
    for nowhere in (Position(ledger_id, 99), Position(ledger_id + 1, 0)):
        with pytest.raises(NotFound):
            await administration(harness.broker).delayed.cancel(NAME, nowhere)
    harness.clock.advance(ms=HOUR_MS)
    with pytest.raises(PreconditionFailed, match="was due 0 ms ago"):
        await administration(harness.broker).delayed.cancel(NAME, positions[0])
    with pytest.raises(NotAllowed):
        await administration(harness.broker).delayed.cancel(
            TopicName.parse("non-persistent://public/default/t"), positions[0]
        )


async def test_only_so_many_are_remembered_and_none_longer_than_its_entry(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_admin, "CANCELLED_MAX", 2)
    peer, positions = await with_delayed(harness, 4)
    for position in positions[:2]:
        await administration(harness.broker).delayed.cancel(NAME, position)
    with pytest.raises(PreconditionFailed, match="2 messages"):
        await administration(harness.broker).delayed.cancel(NAME, positions[2])
    await administration(harness.broker).topics.truncate(NAME)
    (fresh,) = await peer.publish(b"fresh", deliver_at_time=harness.clock.wall_ms() + HOUR_MS)
    await administration(harness.broker).delayed.cancel(NAME, Position(positions[0].ledger_id, fresh))
    assert subscription_of(harness).delayed == 0

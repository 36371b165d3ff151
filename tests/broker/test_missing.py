# SPDX-License-Identifier: Apache-2.0
"""A broker that starts without one of its log's files: the rest is served, and that too once the file is back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.names import TopicName
from penstock.storage.limits import LogLimits
from penstock.wire import codec
from tests.broker.consuming import EXCLUSIVE, SHARED, Peer, Type, nothing_more, subscription_of
from tests.net.harness import TOPIC, running, topic_of, until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COUNT = 20
T = TopicName.parse(TOPIC)
# Segments stay apart, however little is in them.
pytestmark = pytest.mark.real  # it moves files away

APART = LogLimits(move_below_ratio=0.0)


def payloads(part: int) -> list[bytes]:
    """What the segment of this number holds."""
    return [b"part %d payload %02d" % (part, number) for number in range(COUNT)]


def segment(directory: Path, number: int) -> Path:
    """The file of the log that holds them."""
    (found,) = [
        path
        for path in (directory / "data" / "broker-0" / "log").glob("*.seg")
        if payloads(number)[0] in path.read_bytes()
    ]
    return found


async def filled(directory: Path, *, subscribed: Sequence[str] = (), key: str | None = None) -> None:
    """A topic in three segments, for each run of the broker seals one."""
    for part in range(3):
        async with running(directory, log_limits=APART) as harness:
            peer = await Peer.producing(harness)
            for name in subscribed if part == 0 else ():
                await peer.subscribe(SHARED, name=name, permits=0)
                await peer.close_consumer()
            await peer.publish(*payloads(part), partition_key=key)


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_messages_of_a_missing_file_stay_in_the_backlog_and_come_when_it_is_back(
    tmp_path: Path, kind: int, lost: int
) -> None:
    await filled(tmp_path, subscribed=["s"])
    path, away = segment(tmp_path, lost), tmp_path / "away"
    path.rename(away)
    there = [payload for part in range(3) if part != lost for payload in payloads(part)]
    for _ in range(2):
        async with running(tmp_path, log_limits=APART) as harness:
            peer = await Peer.connected(harness)
            await peer.subscribe(kind)
            received = await peer.messages(len(there))
            assert [one.payload for one in received] == there
            await nothing_more(harness, peer)
            assert subscription_of(harness).backlog == 3 * COUNT
            health = harness.broker.health
            assert health.ok
            first = lost * COUNT
            assert health.problems == (
                f"entries 1:{first} to 1:{first + COUNT - 1} of segment {int(path.stem, 16):x}: its file is missing",
            )
            log = (await administration(harness.broker).snapshots.take()).log
            assert (log.damaged, log.missing_entries) == (1, COUNT)
    async with running(tmp_path, log_limits=APART) as harness:
        peer = await Peer.connected(harness)
        await peer.subscribe(kind)
        received = await peer.messages(len(there))
        if kind == EXCLUSIVE:
            peer.acknowledge(received[-1], cumulative=True)
        else:
            peer.acknowledge(*received)
        await until(lambda: subscription_of(harness).backlog == COUNT)
        await harness.broker.cursors.save(*topic_of(harness).subscriptions.values())
    away.rename(path)
    async with running(tmp_path, log_limits=APART) as harness:
        peer = await Peer.connected(harness)
        await peer.subscribe(kind)
        assert await peer.payloads(COUNT) == payloads(lost)
        assert harness.broker.health.problems == ()


async def test_a_topic_is_not_compacted_while_entries_of_it_are_missing(tmp_path: Path) -> None:
    await filled(tmp_path, key="k")
    segment(tmp_path, 1).rename(tmp_path / "away")
    async with running(tmp_path, log_limits=APART) as harness:
        await harness.broker.topics.load(T)
        await administration(harness.broker).topics.compact(T)
        await until(lambda: harness.broker.compaction.progress(TOPIC).status == "ERROR")
        assert "missing" in harness.broker.compaction.progress(TOPIC).last_error


async def test_the_last_message_id_is_told_though_that_message_is_missing(tmp_path: Path) -> None:
    await filled(tmp_path)
    segment(tmp_path, 2).rename(tmp_path / "away")
    async with running(tmp_path, log_limits=APART) as harness:
        peer = await Peer.connected(harness)
        await peer.subscribe(EXCLUSIVE, permits=0)
        last = await peer.request(Type.GET_LAST_MESSAGE_ID, codec.CommandGetLastMessageId(consumer_id=0, request_id=0))
        assert last.last_message_id.entryId == 3 * COUNT - 1
        await peer.produce()
        assert await peer.publish(b"new") == [3 * COUNT]


async def test_topics_with_missing_messages_are_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(tmp_path)
    segment(tmp_path, 1).rename(tmp_path / "away")
    async with running(tmp_path, log_limits=APART):
        assert f"topic {TOPIC}: entries {COUNT} to {2 * COUNT - 1} are missing" in caplog.text

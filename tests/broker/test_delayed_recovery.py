# SPDX-License-Identifier: Apache-2.0
"""The delayed index over restarts, unloads and damage: nothing lost, nothing early, nothing read that need not be."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.broker.topics import delayed
from penstock.core.names import TopicName
from penstock.core.units import KIB
from tests.broker.consuming import KEY_SHARED, SHARED, Peer, delayed_of, nothing_more, pass_time, subscription_of
from tests.net.harness import TOPIC, Harness, running, topic_of, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOUR_MS = 3_600_000
TICK_MS = 1_000
NAME = TopicName.parse(TOPIC)


async def publish_mixed(peer: Peer, harness: Harness, count: int, first: int = 0) -> None:
    """Every third message is undelayed; the others are due in an hour."""
    due_ms = harness.clock.wall_ms() + HOUR_MS
    for number in range(first, first + count):
        await peer.publish(b"%d" % number, **({"deliver_at_time": due_ms + number} if number % 3 else {}))


def numbers_of_delayed(count: int) -> list[int]:
    return [number for number in range(count) if number % 3]


async def start_up(harness: Harness, kind: int = SHARED) -> Peer:
    peer = await Peer.producing(harness)
    await peer.subscribe(kind)
    return peer


async def take_undelayed(peer: Peer, count: int) -> None:
    peer.acknowledge(*await peer.messages(len(range(0, count, 3))))
    await peer.settled()


async def leave_delayed(path: Path, *, taken: bool = True) -> None:
    """Start a broker, publish thirty messages of which twenty are delayed, and stop it."""
    async with running(path) as harness:
        peer = await start_up(harness)
        await publish_mixed(peer, harness, 30)
        if taken:
            await take_undelayed(peer, 30)


def timers_of_indexes() -> int:
    waiting = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined] # noqa: SLF001
    return sum("DelayedIndex" in repr(timer) for timer in waiting if not timer.cancelled())


pytestmark = pytest.mark.real  # it looks at the files of snapshots, and damages them


def snapshot_files(path: Path) -> list[Path]:
    return sorted((path / "data" / "broker-0" / "delayed").glob("*.snapshot"))


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_after_a_clean_stop_all_of_it_is_held_before_anything_is_read(tmp_path: Path, kind: int) -> None:
    async with running(tmp_path) as harness:
        peer = await start_up(harness, kind)
        await publish_mixed(peer, harness, 60)
        await take_undelayed(peer, 60)
    assert len(snapshot_files(tmp_path)) == 1
    async with running(tmp_path) as harness:
        await harness.broker.topics.load(NAME)
        assert subscription_of(harness).delayed == 40
        assert delayed_of(harness).manager.unknown_ranges(0, 60) == []
        peer = await start_up(harness, kind)
        await nothing_more(harness, peer)
        pass_time(harness, HOUR_MS + 2 * TICK_MS)
        assert sorted(map(int, await peer.payloads(40))) == numbers_of_delayed(60)
        await nothing_more(harness, peer)


async def test_an_index_has_one_timer_while_it_holds_anything_and_none_after_the_stop(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        peer = await start_up(harness)
        await publish_mixed(peer, harness, 6)
        pass_time(harness, TICK_MS)
        pass_time(harness, TICK_MS)
        assert timers_of_indexes() == 1
    async with running(tmp_path) as harness:
        await harness.broker.topics.load(NAME)
        await start_up(harness)
        await until(lambda: timers_of_indexes() == 1)
    assert timers_of_indexes() == 0


async def test_what_came_after_the_snapshot_is_read_from_the_log(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        peer = await start_up(harness)
        await publish_mixed(peer, harness, 30)
        await take_undelayed(peer, 30)
        await harness.broker.delayed_indexes.save_of(topic_of(harness))
        (kept,) = snapshot_files(tmp_path)
        stored = kept.read_bytes()
        await publish_mixed(peer, harness, 30, first=30)
        await take_undelayed(peer, 30)
        await harness.broker.cursors.save(*topic_of(harness).subscriptions.values())
    kept.write_bytes(stored)  # as a crash would have left it
    async with running(tmp_path) as harness:
        await harness.broker.topics.load(NAME)
        assert subscription_of(harness).delayed == 40
        peer = await start_up(harness)
        await nothing_more(harness, peer)
        pass_time(harness, HOUR_MS + 2 * TICK_MS)
        assert sorted(map(int, await peer.payloads(40))) == numbers_of_delayed(60)


@pytest.mark.parametrize("seed", range(12))
async def test_a_damaged_snapshot_costs_time_and_no_message(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    await leave_delayed(tmp_path)
    (kept,) = snapshot_files(tmp_path)
    stored = bytearray(kept.read_bytes())
    if seed % 3 == 0:
        stored = stored[: chance.randrange(len(stored))]
    elif seed % 3 == 1:
        stored[chance.randrange(len(stored))] ^= 1 << chance.randrange(8)
    else:
        stored += b"more"
    kept.write_bytes(stored)
    async with running(tmp_path) as harness:
        peer = await start_up(harness)
        assert "by reading the log again" in caplog.text
        await until(lambda: subscription_of(harness).delayed == 20)
        await nothing_more(harness, peer)
        pass_time(harness, HOUR_MS + 2 * TICK_MS)
        assert sorted(map(int, await peer.payloads(20))) == numbers_of_delayed(30)


async def test_without_a_snapshot_the_log_is_read_and_nothing_is_early(tmp_path: Path) -> None:
    await leave_delayed(tmp_path)
    snapshot_files(tmp_path)[0].unlink()
    async with running(tmp_path) as harness:
        peer = await start_up(harness)
        await until(lambda: subscription_of(harness).delayed == 20)
        await nothing_more(harness, peer)


async def test_what_became_due_while_the_broker_was_down_comes_at_once(tmp_path: Path) -> None:
    await leave_delayed(tmp_path)
    async with running(tmp_path) as harness:
        harness.clock.advance(ms=HOUR_MS + 2 * TICK_MS)
        peer = await start_up(harness)
        assert sorted(map(int, await peer.payloads(20))) == numbers_of_delayed(30)
        await nothing_more(harness, peer)
        assert subscription_of(harness).delayed == 0


async def test_an_unloaded_topic_comes_back_with_what_it_held(harness: Harness) -> None:
    peer = await start_up(harness)
    await publish_mixed(peer, harness, 30)
    await take_undelayed(peer, 30)
    await harness.broker.topic_life.unload(NAME)
    assert harness.broker.delayed_indexes.memory.used_bytes == 0
    again = await start_up(harness)
    assert subscription_of(harness).delayed == 20
    await nothing_more(harness, again)
    pass_time(harness, HOUR_MS + 2 * TICK_MS)
    assert sorted(map(int, await again.payloads(20))) == numbers_of_delayed(30)


async def test_a_deleted_topic_leaves_neither_memory_nor_snapshot(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        peer = await start_up(harness)
        await publish_mixed(peer, harness, 30)
        await harness.broker.delayed_indexes.save_of(topic_of(harness))
        assert len(snapshot_files(tmp_path)) == 1
        await harness.broker.topic_life.delete(NAME, force=True)
        assert harness.broker.delayed_indexes.memory.used_bytes == 0
        await until(lambda: not snapshot_files(tmp_path))


async def test_a_snapshot_of_a_topic_that_is_gone_goes_at_the_next_start(tmp_path: Path) -> None:
    await leave_delayed(tmp_path, taken=False)
    (kept,) = snapshot_files(tmp_path)
    kept.rename(kept.with_name("987.snapshot"))
    async with running(tmp_path):
        assert snapshot_files(tmp_path) == []


async def test_a_snapshot_is_written_when_enough_was_added_or_ten_seconds_have_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "SNAPSHOT_ADDED_MIN", 10)
    async with running(tmp_path) as harness:
        peer = await start_up(harness)
        await publish_mixed(peer, harness, 12)
        harness.broker.delayed_indexes.tick(harness.clock.monotonic_ns())
        assert snapshot_files(tmp_path) == []
        await publish_mixed(peer, harness, 12)
        harness.broker.delayed_indexes.tick(harness.clock.monotonic_ns())
        await until(lambda: len(snapshot_files(tmp_path)) == 1)
        snapshot_files(tmp_path)[0].unlink()
        await publish_mixed(peer, harness, 3)
        harness.clock.advance(ms=10_000)
        harness.broker.delayed_indexes.tick(harness.clock.monotonic_ns())
        await until(lambda: len(snapshot_files(tmp_path)) == 1)


async def test_a_snapshot_that_could_not_be_stored_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as harness:
        peer = await start_up(harness)
        await publish_mixed(peer, harness, 12)
        in_the_way = tmp_path / "data" / "broker-0" / "delayed"
        in_the_way.write_text("not a directory")
        await harness.broker.delayed_indexes.save_of(topic_of(harness))
        assert "could not be stored" in caplog.text
        in_the_way.unlink()
        harness.clock.advance(ms=10_000)
        harness.broker.delayed_indexes.tick(harness.clock.monotonic_ns())
        await until(lambda: len(snapshot_files(tmp_path)) == 1)


async def test_a_topic_deleted_while_its_snapshot_is_being_stored_leaves_none(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        peer = await start_up(harness)
        await publish_mixed(peer, harness, 12)
        topic = topic_of(harness)
        drafts = in_drafts(tmp_path)
        harness.disk.hold()
        saving = asyncio.create_task(harness.broker.delayed_indexes.save_of(topic))
        await until(lambda: drafts() == 1)
        harness.broker.delayed_indexes.dropped(topic.ledger_id)
        harness.disk.release()
        await saving
        assert drafts() == 0
        assert snapshot_files(tmp_path) == []


def in_drafts(path: Path) -> Callable[[], int]:
    """How many snapshots are being written."""
    return lambda: len(list((path / "data" / "broker-0" / "delayed").glob("*.draft")))


def test_a_broker_is_imported_without_anything_that_delays() -> None:
    program = "import sys, penstock.app; sys.exit('penstock.governance.delayed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


async def test_a_broker_without_delayed_messages_writes_no_snapshot_and_takes_no_memory(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        peer = await start_up(harness)
        await peer.publish(b"now", b"and now")
        assert await peer.payloads(2) == [b"now", b"and now"]
        index = delayed_of(harness)
        assert index.manager.topic_buffer_memory_bytes() == 0
    assert not (tmp_path / "data" / "broker-0" / "delayed").exists()


# -- more than fits the memory ----------------------------------------------------------------------------------------


async def test_beyond_its_memory_messages_stay_on_disk_and_come_in_time_all_the_same(tmp_path: Path) -> None:
    async with running(tmp_path, delayed_index_bytes=2 * KIB, delayed_strict=True) as harness:
        peer = await start_up(harness)
        start_ms = harness.clock.wall_ms()
        chance = random.Random(3)
        delays_ms = [chance.randrange(2_000, 50_000) for _ in range(150)]
        for number, delay_ms in enumerate(delays_ms):
            await peer.publish(b"%d" % number, deliver_at_time=start_ms + delay_ms)
        await peer.publish(b"now")
        assert (await peer.message()).payload == b"now"
        index = delayed_of(harness)
        assert index.manager.spilled > 0
        assert index.manager.topic_buffer_memory_bytes() < 8 * KIB
        came: list[int] = []
        for _ in range(55):
            pass_time(harness, TICK_MS)
            await until(lambda: not index.reading)
            pass_time(harness, 0)
            await peer.settled()
            now_ms = harness.clock.wall_ms()
            due = {number for number, delay_ms in enumerate(delays_ms) if start_ms + delay_ms <= now_ms - TICK_MS}
            for received in await peer.messages(len(due - set(came))):
                assert start_ms + delays_ms[int(received.payload)] <= now_ms
                came.append(int(received.payload))
            while True:
                more = [entry for command, entry in peer.inbox if entry]
                if not more:
                    break
                came.append(int((await peer.message()).payload))
        assert sorted(came) == list(range(150))
        assert len(set(came)) == 150
        await nothing_more(harness, peer)
        assert harness.broker.delayed_indexes.memory.used_bytes == 0


async def test_what_a_stuck_subscription_lost_of_the_index_is_read_again_for_it_alone(tmp_path: Path) -> None:
    async with running(tmp_path, delayed_index_bytes=2 * KIB) as harness:
        peer = await start_up(harness)
        await peer.subscribe(SHARED, name="stuck", consumer_id=1, permits=0)
        start_ms = harness.clock.wall_ms()
        for number in range(100):
            await peer.publish(b"%d" % number, deliver_at_time=start_ms + 10_000 + 700 * number)
        came: list[int] = []
        for _ in range(100):
            pass_time(harness, TICK_MS)
            await until(lambda: not delayed_of(harness).reading)
            await peer.settled()
            came += [int((await peer.message()).payload) for _, entry in list(peer.inbox) if entry]
        came += [int(payload) for payload in await peer.payloads(100 - len(came))]
        assert sorted(came) == list(range(100))
        peer.flow(1_000, consumer_id=1)
        late: list[int] = []
        while len(late) < 100:
            pass_time(harness, TICK_MS)
            await until(lambda: not delayed_of(harness).reading)
            await peer.settled()
            late += [int((await peer.message()).payload) for _, entry in list(peer.inbox) if entry]
        assert sorted(late) == list(range(100))


async def test_what_is_on_disk_only_comes_by_itself_when_the_index_has_run_empty(tmp_path: Path) -> None:
    async with running(tmp_path, delayed_index_bytes=KIB, delayed_strict=True) as harness:
        peer = await Peer.producing(harness)
        policy = {"active": True, "tickTime": 20}
        await harness.broker.policies.set_topic(TOPIC, "delayedDelivery", policy)
        await peer.subscribe(SHARED)
        start_ms = harness.clock.wall_ms()
        for number in range(60):
            await peer.publish(b"%d" % number, deliver_at_time=start_ms + 1_000 + 100 * number)
        assert delayed_of(harness).manager.spilled > 0
        came = 0
        for _ in range(30):
            harness.clock.advance(ms=250)
            while came < min(60, (harness.clock.wall_ms() - start_ms - 1_000) // 100):
                await peer.message()
                came += 1
        assert came == 60


async def test_a_subscription_that_comes_to_life_again_gets_nothing_early_of_what_is_on_disk_only(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, delayed_index_bytes=2 * KIB, delayed_strict=True) as harness:
        peer = await start_up(harness)
        await peer.subscribe(SHARED, name="stuck", consumer_id=1, permits=0)
        start_ms = harness.clock.wall_ms()
        due_ms = [start_ms + 2_000 + 500 * number for number in range(60)]
        due_ms += [start_ms + HOUR_MS + 500 * number for number in range(120)]
        for number in random.Random(5).sample(range(180), 180):
            await peer.publish(b"%d" % due_ms[number], deliver_at_time=due_ms[number])
        index = delayed_of(harness)
        for _ in range(40):
            pass_time(harness, TICK_MS)
            await until(lambda: not index.reading)
            await peer.settled()
        assert index.manager.spilled > 0
        peer.flow(1_000, consumer_id=1)
        came: list[int] = []
        while len(came) < 120:
            pass_time(harness, TICK_MS)
            await until(lambda: not index.reading)
            await peer.settled()
            came += [int((await peer.message()).payload) for _, entry in list(peer.inbox) if entry]
        assert max(came) <= harness.clock.wall_ms()
        assert sorted(came) == sorted(2 * due_ms[:60])


def refuse(*_: object) -> None:
    raise OSError("on a bad day")


async def test_a_load_that_is_given_up_leaves_nothing_in_the_way_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave_delayed(tmp_path, taken=False)
    async with running(tmp_path) as harness:
        with monkeypatch.context() as broken:
            broken.setattr(delayed, "unpack", give_up)
            with pytest.raises(GivenUp):
                await harness.broker.topics.load(NAME)
        assert harness.broker.delayed_indexes.factory.find(TOPIC) is None
        await harness.broker.topics.load(NAME)
        assert subscription_of(harness).delayed == 20


class GivenUp(BaseException):
    """As a cancellation is."""


def give_up(*_: object) -> None:
    raise GivenUp


async def test_a_load_that_fails_half_way_leaves_nothing_in_the_way_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as harness:
        peer = await start_up(harness)
        await publish_mixed(peer, harness, 30)
        await harness.broker.delayed_indexes.save_of(topic_of(harness))
        (kept,) = snapshot_files(tmp_path)
        stored = kept.read_bytes()
        await publish_mixed(peer, harness, 30, first=30)
    kept.write_bytes(stored)
    async with running(tmp_path) as harness:
        with monkeypatch.context() as broken:
            broken.setattr(delayed.DelayedIndexes, "read", refuse)
            with pytest.raises(OSError, match="on a bad day"):
                await harness.broker.topics.load(NAME)
        assert harness.broker.delayed_indexes.memory.used_bytes == 0
        await harness.broker.topics.load(NAME)
        assert subscription_of(harness).delayed == 40

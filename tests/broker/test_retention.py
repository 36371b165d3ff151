# SPDX-License-Identifier: Apache-2.0
"""Retention, TTL and the expiration of subscriptions, on a whole broker whose clocks the test moves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.names import COMPACTION_SUBSCRIPTION, TopicName
from penstock.core.units import KIB, MIB
from penstock.testing.client import Type, frame
from tests.broker.governed import (
    MINUTE_MS,
    NAMESPACE,
    acknowledge_through,
    publish_now,
    subscribe,
    subscription_of,
)
from tests.net.harness import TOPIC, Client, running, topic_of, turns, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.net.harness import Harness


def retention(minutes: int, megabytes: int) -> dict[str, int]:
    """What the admin port takes."""
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


async def retain(harness: Harness, minutes: int, megabytes: int) -> None:
    """Set retention for the topic."""
    await harness.broker.policies.set_topic(TOPIC, "retention", retention(minutes, megabytes))


async def trimmed_to(harness: Harness) -> int:
    """Do a round of retention; the first entry that is kept after it."""
    await harness.broker.periodic_checks.run("retention")
    return topic_of(harness).first_entry_id


async def stored(harness: Harness) -> list[int]:
    """The ids of the entries that the log still gives out."""
    topic = topic_of(harness)
    result = await harness.broker.reads.read(topic.ledger_id, 0, bytes_max=64 * MIB, entries_max=10_000)
    return [entry_id for batch in result.batches for entry_id in batch.entry_ids]


# -- what is kept


async def test_what_deduplication_has_not_noted_yet_is_kept_where_nobody_subscribes(harness: Harness) -> None:
    await harness.broker.policies.set_namespace(NAMESPACE, "deduplication", value=True)
    producer = await Client.producing(harness.port)
    await retain(harness, 1, -1)
    await publish_now(harness, producer, [b""] * 10, ago_ms=2 * MINUTE_MS)
    assert await trimmed_to(harness) == 0
    topic = topic_of(harness)
    assert topic.deduplication is not None
    await harness.broker.deduplication._store(topic, topic.deduplication)  # noqa: SLF001
    assert await trimmed_to(harness) == 10


async def test_what_was_acknowledged_since_the_cursors_were_stored_is_kept(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await subscribe(harness)
    await publish_now(harness, producer, [b""] * 3_500)
    topic = topic_of(harness)
    with harness.catalog_held():
        acknowledge_through(harness, 1_500)
        saving = asyncio.ensure_future(harness.broker.cursors.save(subscription_of(harness)))
        await turns(2)
        acknowledge_through(harness, 3_400)
    await saving
    await turns(2)
    assert topic.first_entry_id == 1_000, "after a crash, nobody would know that later ids were used"
    await harness.broker.cursors.save(subscription_of(harness))
    assert topic.first_entry_id == 3_000


async def test_what_an_ended_subscription_acknowledges_late_is_not_another_ones(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await subscribe(harness)
    await publish_now(harness, producer, [b""] * 10)
    old = subscription_of(harness)
    await administration(harness.broker).subscriptions.delete(TopicName.parse(TOPIC), "s", force=True)
    await subscribe(harness)
    old.acknowledge_through(9)
    await harness.broker.cursors.save(old)
    stored_cursor = harness.broker.catalog.cursor(TOPIC, "s")
    assert stored_cursor is not None
    assert stored_cursor.mark_delete == -1


async def test_without_retention_what_everybody_acknowledged_goes(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await subscribe(harness)
    await publish_now(harness, producer, [b""] * 2_500)
    acknowledge_through(harness, 2_100)
    await harness.broker.cursors.save(*topic_of(harness).subscriptions.values())
    assert (await stored(harness))[0] == 2_000
    assert topic_of(harness).first_entry_id == 2_000


async def test_without_retention_and_without_subscriptions_everything_stays(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish_now(harness, producer, [b""] * 10)
    harness.clock.advance(ms=10_000 * MINUTE_MS)
    assert await trimmed_to(harness) == 0
    assert await stored(harness) == list(range(10))


async def test_an_administrator_trims_to_the_entry_what_nobody_needs(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish_now(harness, producer, [b""] * 30)
    await harness.broker.retention.trim(topic_of(harness))
    assert topic_of(harness).first_entry_id == 0, "nobody has said that it may go"
    await subscribe(harness)
    acknowledge_through(harness, 19)
    await harness.broker.retention.trim(topic_of(harness))
    assert await stored(harness) == list(range(20, 30))


async def test_what_compaction_has_not_seen_yet_does_not_expire_and_is_no_backlog(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "messageTTL", 60)
    await topic_of(harness).open_subscription(COMPACTION_SUBSCRIPTION, durable=True, start=0)
    await publish_now(harness, producer, [b"old"] * 3, ago_ms=61_000)
    await harness.broker.periodic_checks.run("message expiry")
    assert subscription_of(harness, COMPACTION_SUBSCRIPTION).backlog == 3
    assert await harness.broker.quotas.backlog_bytes(topic_of(harness)) == 0


async def test_retention_by_time_keeps_what_is_younger(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await retain(harness, 10, -1)
    await subscribe(harness)
    await publish_now(harness, producer, [b"old"] * 30, ago_ms=11 * MINUTE_MS)
    await publish_now(harness, producer, [b"young"] * 30, ago_ms=9 * MINUTE_MS)
    acknowledge_through(harness, 59)
    assert await trimmed_to(harness) == 30
    assert await stored(harness) == list(range(30, 60))
    harness.clock.advance(ms=2 * MINUTE_MS)
    assert await trimmed_to(harness) == 60


async def test_what_is_not_acknowledged_stays_however_old_it_is(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await retain(harness, 10, -1)
    await subscribe(harness, "s")
    await subscribe(harness, "slow")
    await publish_now(harness, producer, [b"old"] * 30, ago_ms=11 * MINUTE_MS)
    acknowledge_through(harness, 29, "s")
    acknowledge_through(harness, 4, "slow")
    assert await trimmed_to(harness) == 5


async def test_retention_by_size_keeps_the_newest_of_that_size(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await retain(harness, -1, 1)
    await publish_now(harness, producer, [bytes(64 * KIB)] * 40)
    first = await trimmed_to(harness)
    kept = (await harness.broker.quotas.sizes(topic_of(harness))).storage
    assert MIB - 2 * 65 * KIB < kept <= MIB
    assert await stored(harness) == list(range(first, 40))


async def test_with_both_bounds_whichever_comes_first_lets_go(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await retain(harness, 10, 1)
    await publish_now(harness, producer, [bytes(KIB)] * 10, ago_ms=11 * MINUTE_MS)
    assert await trimmed_to(harness) == 10, "old, though small"
    await publish_now(harness, producer, [bytes(64 * KIB)] * 40)
    assert await trimmed_to(harness) > 20, "large, though young"


async def test_infinite_retention_keeps_everything(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await retain(harness, -1, -1)
    await subscribe(harness)
    await publish_now(harness, producer, [b""] * 1_500, ago_ms=10_000 * MINUTE_MS)
    acknowledge_through(harness, 1_499)
    await harness.broker.cursors.save(*topic_of(harness).subscriptions.values())
    assert await trimmed_to(harness) == 0
    assert len(await stored(harness)) == 1_500


async def test_a_topic_without_subscriptions_keeps_what_retention_says(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await retain(harness, 10, -1)
    await publish_now(harness, producer, [b""] * 5, ago_ms=11 * MINUTE_MS)
    await publish_now(harness, producer, [b""] * 5)
    assert await trimmed_to(harness) == 5


async def test_what_retention_gave_up_stays_gone_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        producer = await Client.producing(harness.port)
        await retain(harness, 10, -1)
        await publish_now(harness, producer, [b""] * 5, ago_ms=11 * MINUTE_MS)
        await publish_now(harness, producer, [b""] * 5)
        assert await trimmed_to(harness) == 5
    async with running(tmp_path) as harness:
        await Client.producing(harness.port)
        topic = topic_of(harness)
        assert (topic.first_entry_id, topic.last_entry_id) == (5, 9)
        assert await stored(harness) == [5, 6, 7, 8, 9]


async def test_a_reader_of_a_retained_topic_finds_what_was_acknowledged(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await retain(harness, -1, -1)
    await subscribe(harness)
    await publish_now(harness, producer, [b"%d" % number for number in range(1_200)])
    acknowledge_through(harness, 1_199)
    await harness.broker.cursors.save(*topic_of(harness).subscriptions.values())
    reader = await subscribe(harness, "late", permits=1_200)
    for number in range(1_200):
        assert (await reader.message()).endswith(b"%d" % number)


async def test_entries_that_say_nothing_of_their_time_do_not_make_others_old(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await retain(harness, 10, -1)
    await publish_now(harness, producer, [b""] * 4)
    await publish_now(harness, producer, [b""] * 4, ago_ms=harness.clock.wall_ms())
    await publish_now(harness, producer, [b""] * 4)
    assert await trimmed_to(harness) == 0


# -- what is too old


async def test_messages_older_than_the_ttl_count_as_acknowledged(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "messageTTL", 60)
    await subscribe(harness)
    await publish_now(harness, producer, [b"old"] * 20, ago_ms=61_000)
    await publish_now(harness, producer, [b"young"] * 20, ago_ms=59_000)
    await harness.broker.periodic_checks.run("message expiry")
    subscription = subscription_of(harness)
    assert (subscription.cursor.mark_delete, subscription.backlog, subscription.expired) == (19, 20, 20)
    harness.clock.advance(ms=2_000)
    await harness.broker.periodic_checks.run("message expiry")
    assert (subscription.backlog, subscription.expired) == (0, 40)


async def test_expired_messages_that_a_consumer_holds_no_longer_count_against_it(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "messageTTL", 60)
    consumer = await subscribe(harness, permits=20)
    await publish_now(harness, producer, [b"old"] * 20, ago_ms=61_000)
    for _ in range(20):
        await consumer.message()
    subscription = subscription_of(harness)
    assert subscription.unacked == 20
    await harness.broker.periodic_checks.run("message expiry")
    assert subscription.unacked == 0
    consumer.write(frame(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=0))
    consumer.write(frame(Type.FLOW, consumer_id=0, messagePermits=20))
    await publish_now(harness, producer, [b"young"])
    assert (await consumer.message()).endswith(b"young")


async def test_an_administrator_expires_messages_of_one_subscription(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await subscribe(harness, "one")
    await subscribe(harness, "two")
    await publish_now(harness, producer, [b"old"] * 3, ago_ms=61_000)
    await publish_now(harness, producer, [b"young"] * 3)
    assert await harness.broker.retention.expire(subscription_of(harness, "one"), 60) == 3
    assert await harness.broker.retention.expire(subscription_of(harness, "one"), 60) == 0
    assert [subscription_of(harness, name).backlog for name in ("one", "two")] == [3, 6]


async def test_what_expired_stays_expired_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        producer = await Client.producing(harness.port)
        await subscribe(harness)
        await publish_now(harness, producer, [b"old"] * 3, ago_ms=61_000)
        await harness.broker.retention.expire(subscription_of(harness), 60)
    async with running(tmp_path) as harness:
        await Client.producing(harness.port)
        assert subscription_of(harness).backlog == 0


# -- clocks


async def test_a_step_forward_of_the_wall_clock_makes_messages_older(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "messageTTL", 60)
    await retain(harness, 60, -1)
    await subscribe(harness)
    await publish_now(harness, producer, [b""] * 5)
    harness.clock.step_wall(ms=61 * MINUTE_MS)
    await harness.broker.periodic_checks.run("message expiry")
    assert subscription_of(harness).backlog == 0
    assert await trimmed_to(harness) == 5


async def test_a_step_back_of_the_wall_clock_expires_nothing_and_brings_nothing_back(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "messageTTL", 60)
    await retain(harness, 60, -1)
    await subscribe(harness)
    await publish_now(harness, producer, [b"old"] * 5, ago_ms=61 * MINUTE_MS)
    await publish_now(harness, producer, [b"young"] * 5)
    await harness.broker.periodic_checks.run("message expiry")
    assert await trimmed_to(harness) == 5
    harness.clock.step_wall(ms=-600 * MINUTE_MS)
    await harness.broker.periodic_checks.run("message expiry")
    assert await trimmed_to(harness) == 5
    assert subscription_of(harness).backlog == 5
    assert await stored(harness) == [5, 6, 7, 8, 9]


async def test_rounds_go_on_while_the_wall_clock_stands_or_steps_back(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "messageTTL", 60)
    await subscribe(harness)
    await publish_now(harness, producer, [b"old"] * 5, ago_ms=61 * MINUTE_MS)
    harness.clock.step_wall(ms=-MINUTE_MS)
    harness.clock.advance(ms=5 * MINUTE_MS)
    harness.broker.periodic_checks.tick(harness.clock.monotonic_ns())
    await until(lambda: subscription_of(harness).backlog == 0)


async def test_producers_whose_clocks_run_ahead_keep_their_messages_longer_and_lose_nobody_elses(
    harness: Harness,
) -> None:
    producer = await Client.producing(harness.port)
    await retain(harness, 10, -1)
    await publish_now(harness, producer, [b"from tomorrow"] * 3, ago_ms=-1_440 * MINUTE_MS)
    await publish_now(harness, producer, [b"now"] * 3)
    assert await trimmed_to(harness) == 0


# -- idle subscriptions


@pytest.mark.parametrize("consumers", [0, 1])
async def test_a_subscription_that_nobody_uses_ends(harness: Harness, consumers: int) -> None:
    await Client.producing(harness.port)
    await harness.broker.policies.set_namespace(NAMESPACE, "subscriptionExpirationTime", 10)
    client = await subscribe(harness)
    if not consumers:
        await client.request(Type.CLOSE_CONSUMER, Type.SUCCESS, consumer_id=0)
    for minutes in (9, 2):
        harness.clock.advance(ms=minutes * MINUTE_MS)
        assert "s" in topic_of(harness).subscriptions
        await harness.broker.periodic_checks.run("subscription expiry")
    assert len(topic_of(harness).subscriptions) == consumers
    assert len(harness.broker.catalog.subscriptions(TOPIC)) == consumers


async def test_time_before_the_last_consumer_left_does_not_count(harness: Harness) -> None:
    await Client.producing(harness.port)
    await harness.broker.policies.set_namespace(NAMESPACE, "subscriptionExpirationTime", 10)
    client = await subscribe(harness)
    harness.clock.advance(ms=20 * MINUTE_MS)
    await client.request(Type.CLOSE_CONSUMER, Type.SUCCESS, consumer_id=0)
    await harness.broker.periodic_checks.run("subscription expiry")
    assert "s" in topic_of(harness).subscriptions

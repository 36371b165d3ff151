# SPDX-License-Identifier: Apache-2.0
"""Delayed messages over HTTP: what statistics and metrics tell of them, and how one is cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.admin import models_stats as models
from penstock.broker.composition.administration import administration
from penstock.telemetry.prometheus import render
from tests.broker.consuming import SHARED, Peer, delayed_of, subscription_of
from tests.net.harness import Harness, topic_of, until

if TYPE_CHECKING:
    import httpx

PATH = "/admin/v2/persistent/public/default/t"
HOUR_MS = 3_600_000
TICK_MS = 1_000
LABELS = 'cluster="test",namespace="public/default",topic="persistent://public/default/t"'


async def with_delayed(harness: Harness) -> tuple[Peer, list[int]]:
    """Two shared subscriptions that hold three messages, an hour apart."""
    peer = await Peer.producing(harness)
    for consumer_id, name in enumerate(("s", "other")):
        await peer.subscribe(SHARED, name=name, consumer_id=consumer_id)
    now_ms = harness.clock.wall_ms()
    ids = [(await peer.publish(b"%d" % hours, deliver_at_time=now_ms + hours * HOUR_MS))[0] for hours in (1, 2, 3)]
    await until(lambda: [subscription_of(harness, name).delayed for name in ("s", "other")] == [3, 3])
    return peer, ids


async def test_statistics_tell_how_many_wait_what_that_takes_and_until_when(
    harness: Harness, admin: httpx.AsyncClient
) -> None:
    await with_delayed(harness)
    now_ms = harness.clock.wall_ms()
    stats = (await admin.get(f"{PATH}/stats")).json()
    models.TopicStats.model_validate(stats)
    for told in (stats, stats["subscriptions"]["s"], stats["subscriptions"]["other"]):
        assert told["delayedMessageIndexSizeInBytes"] == harness.broker.delayed_indexes.memory.used_bytes > 0
        assert 0 <= now_ms + HOUR_MS - told["nextDelayedDeliveryTime"] <= TICK_MS
        assert 0 <= told["furthestDelayedDeliveryTime"] - (now_ms + 3 * HOUR_MS) <= TICK_MS
    for one in stats["subscriptions"].values():
        assert (one["msgDelayed"], one["msgBacklog"], one["msgBacklogNoDelayed"]) == (3, 3, 0)


async def test_a_topic_without_delayed_messages_tells_zeros(harness: Harness, admin: httpx.AsyncClient) -> None:
    peer = await Peer.producing(harness)
    await peer.subscribe()
    stats = (await admin.get(f"{PATH}/stats")).json()
    for told in (stats, stats["subscriptions"]["s"]):
        assert told["delayedMessageIndexSizeInBytes"] == 0
        assert (told["nextDelayedDeliveryTime"], told["furthestDelayedDeliveryTime"]) == (0, 0)


async def test_metrics_tell_the_size_the_next_time_and_how_late_messages_came(harness: Harness) -> None:
    peer, _ = await with_delayed(harness)
    due_ms = harness.clock.wall_ms() + HOUR_MS
    text = "\n".join(render(await administration(harness.broker).snapshots.take()))
    size = harness.broker.delayed_indexes.memory.used_bytes
    assert f"pulsar_delayed_message_index_size_bytes{{{LABELS}}} {size}" in text
    assert f'pulsar_subscription_delayed_message_index_size_bytes{{{LABELS},subscription="s"}} {size}' in text
    assert f'pulsar_subscription_delayed{{{LABELS},subscription="s"}} 3' in text
    assert f'penstock_memory_used_bytes{{owner="delayed-index"}} {size}' in text
    harness.clock.advance(ms=HOUR_MS + 5_000)
    index = delayed_of(harness)
    index.deliver_due()
    await peer.messages(2)
    text = "\n".join(render(await administration(harness.broker).snapshots.take()))
    assert f"penstock_delayed_delivered_total{{{LABELS}}} 2" in text
    (late,) = [line for line in text.splitlines() if line.startswith("penstock_delayed_lateness_max_seconds{")]
    assert 4.0 <= float(late.split()[-1]) <= 5.0
    # Two subscriptions got one message each, both about five seconds late.
    (total,) = [line for line in text.splitlines() if line.startswith("penstock_delayed_lateness_seconds_total{")]
    assert 8.0 <= float(total.split()[-1]) <= 10.0
    (following,) = [line for line in text.splitlines() if line.startswith("penstock_delayed_next_delivery_timestamp{")]
    assert float(following.split()[-1]) > due_ms


async def test_a_message_is_cancelled_by_its_id_and_says_so_when_it_cannot_be(
    harness: Harness, admin: httpx.AsyncClient
) -> None:
    peer, ids = await with_delayed(harness)
    path = f"{PATH}/delayed/ledger/{topic_of(harness).ledger_id}/entry"
    assert (await admin.delete(f"{path}/{ids[1]}")).status_code == 204
    assert subscription_of(harness).delayed == 2
    (now,) = await peer.publish(b"now")
    for entry_id, status in ((now, 412), (99, 404)):
        answer = await admin.delete(f"{path}/{entry_id}")
        assert (answer.status_code, bool(answer.json()["reason"])) == (status, True)

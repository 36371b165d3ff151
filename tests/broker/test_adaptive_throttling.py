# SPDX-License-Identifier: Apache-2.0
"""Adaptive publish throttling in a whole broker: what it slows, what it leaves alone, and what people see of it."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.policies.policy_values import HOLD, QUOTA_SIZE
from penstock.broker.publishing.backlog_sizes import BacklogSizes, DiskDelay
from penstock.core.clock import ManualClock
from penstock.core.names import NamespaceName, TopicName
from penstock.core.units import MIB, NS_PER_MS
from penstock.governance.adaptive_throttle import CALM_CYCLES, HELD_FAILURES
from penstock.governance.holds import HoldKind
from penstock.groups import adaptive_throttling
from penstock.groups.adaptive_throttling import LIMIT_BYTES, STATE_BYTES, TOPICS_PER_TURN
from penstock.groups.throttle_log import LINES_PER_CYCLE
from penstock.testing.client import Type
from penstock.testing.disk import VirtualDisk
from tests.broker.governed import OTHER, acknowledge_through, configure, subscribe
from tests.broker.throttled import Publisher, change, cycles, lines, rates, throttle_of, throttled, throttling_of
from tests.net.harness import TOPIC, Client, publish, running, topic_of, turns, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.core.clock import Clock
    from penstock.governance.adaptive_throttle import Seen, Throttle, ThrottleDecision
    from penstock.groups.adaptive_publish import AdaptiveTopic
    from tests.broker.throttled import Sensors
    from tests.net.harness import Harness

SHOP = "persistent://shop/orders/t"
# What a producer publishes, and the least that it may, in messages per second.
RATE = 400
FLOOR = 40


async def bound_backlog(harness: Harness, size: int) -> None:
    """Set a quota for the topic."""
    quota = {"limitSize": size, "limitTime": -1, "policy": HOLD}
    await harness.broker.policies.set_topic_quota(TOPIC, QUOTA_SIZE, quota)


@pytest.fixture
async def broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[tuple[Harness, Sensors]]:
    caplog.set_level(logging.INFO)
    async with throttled(tmp_path) as both:
        yield both


async def test_without_the_feature_there_is_no_controller_and_nothing_per_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        publisher = await Publisher.connected(harness)
        publisher.start(RATE)
        await cycles(3)
        assert harness.broker.throttling is None
        assert topic_of(harness).adaptive is None
        (session,) = harness.broker.sessions
        assert session.held is None
        await publisher.stop()


async def test_enabled_and_calm_it_costs_publishing_no_calls(tmp_path: Path) -> None:
    """Times say nothing on a busy machine; the number of calls is the same each time."""
    calls = {}
    for enabled in (False, True):
        async with running(tmp_path / str(enabled), adaptive_throttling=enabled) as harness:
            client = await Client.producing(harness.port)
            count = 0

            def called(_frame: object, event: str, _argument: object) -> None:
                nonlocal count
                count += event in {"call", "c_call"}

            await client.published(*[b"x" * 100] * 1_000)
            sys.setprofile(called)
            try:
                for second in range(3):
                    await client.published(*[b"x" * 100] * 3_000, first=1_000 + second * 3_000)
                    await cycles()
            finally:
                sys.setprofile(None)
            calls[enabled] = count
            assert (harness.broker.throttling is not None) is enabled
    assert calls[True] / calls[False] <= 1.01


async def test_without_pressure_nothing_limits_a_topic(broker: tuple[Harness, Sensors]) -> None:
    harness, _ = broker
    publisher = await Publisher.connected(harness)
    publisher.start(RATE)
    await cycles(10)
    assert await rates(harness, 10, TOPIC) == [pytest.approx(RATE, rel=0.02)]
    assert topic_of(harness).publish_lines == ()
    assert throttle_of(harness).messages.natural == pytest.approx(RATE, rel=0.05)
    await publisher.stop()


async def test_pressure_slows_a_topic_step_by_step_to_its_floor_and_releases_it(
    broker: tuple[Harness, Sensors], caplog: pytest.LogCaptureFixture
) -> None:
    harness, sensors = broker
    publisher = await Publisher.connected(harness)
    publisher.start(RATE)
    await cycles(10)
    sensors.memory = 1.0
    seen = []
    for _ in range(6):
        seen += await rates(harness, 1, TOPIC)
    # Steps of 25 % of the natural rate; the floor is 10 %.
    assert seen == [pytest.approx(share * RATE, abs=0.12 * RATE) for share in (0.75, 0.5, 0.25, 0.1, 0.1, 0.1)]
    assert await rates(harness, 20, TOPIC) == [pytest.approx(FLOOR, rel=0.1)]
    sensors.memory = 0.5
    await cycles(10)
    assert not throttle_of(harness).active
    assert topic_of(harness).publish_lines == ()
    assert await rates(harness, 10, TOPIC) == [pytest.approx(RATE, rel=0.02)]
    (activated,), (deactivated,) = lines(caplog, " ACTIVATED topic="), lines(caplog, "DEACTIVATED topic=")
    assert activated.startswith(f"[AdaptiveThrottle] ACTIVATED topic={TOPIC} memoryPressure=1.00 backlogPressure=0 ")
    assert deactivated.startswith(f"[AdaptiveThrottle] DEACTIVATED topic={TOPIC} naturalMsgRate=")
    assert "/s" in deactivated
    await publisher.stop()


async def test_a_backlog_near_its_quota_slows_only_its_topic(tmp_path: Path) -> None:
    async with throttled(tmp_path) as (harness, _):
        full, other = await Publisher.connected(harness), await Publisher.connected(harness, OTHER)
        consumer = await subscribe(harness)
        full.start(500)
        other.start(500)
        await cycles(10)
        size = topic_of(harness).bytes_in
        await bound_backlog(harness, size * 2)
        await cycles(12)
        quota = topic_of(harness).policies.backlog_quota.size.limit
        assert await harness.broker.quotas.backlog_bytes(topic_of(harness)) < quota
        assert throttle_of(harness).pressures.backlog > 0.3
        assert await rates(harness, 5, OTHER) == [pytest.approx(500, rel=0.05)]
        acknowledge_through(harness, topic_of(harness).last_entry_id)
        await cycles(1 + CALM_CYCLES + 1)
        assert not throttle_of(harness).active
        for one in (full, other):
            await one.stop()
        consumer.writer.close()


async def test_the_size_of_a_backlog_is_followed_without_reading_it_each_cycle(tmp_path: Path) -> None:
    async with throttled(tmp_path) as (harness, _):
        publisher = await Publisher.connected(harness)
        await subscribe(harness)
        publisher.start(500)
        await cycles(3)
        await bound_backlog(harness, 10 * 1_000_000)
        asked: list[str] = []
        sizes = throttling_of(harness)._backlogs  # noqa: SLF001
        assert isinstance(sizes, BacklogSizes)
        exact = sizes._backlog_bytes  # noqa: SLF001

        async def counted(topic: PublishedTopic) -> int:
            asked.append(topic.text)
            return await exact(topic)

        sizes._backlog_bytes = counted  # noqa: SLF001
        await cycles(20)
        assert len(asked) == 1
        adaptive = topic_of(harness).adaptive
        assert adaptive is not None
        part = sizes.part(topic_of(harness), adaptive, 0.75)
        assert part == pytest.approx(await exact(topic_of(harness)) / 10_000_000, rel=0.02)
        await publisher.stop()


async def test_a8_a_calm_tenant_keeps_its_rate_while_the_loud_one_is_slowed(tmp_path: Path) -> None:
    async with throttled(tmp_path) as (harness, sensors):
        admin = administration(harness.broker)
        await admin.tenants.create("shop", {"allowedClusters": ["test"]})
        await admin.namespaces.create(NamespaceName("shop", "orders"))
        loud, calm = await Publisher.connected(harness), await Publisher.connected(harness, SHOP)
        loud.start(800)
        calm.start(100)
        await cycles(10)
        sensors.memory = 1.0
        await cycles(10)
        of_loud, of_calm = await rates(harness, 10, TOPIC, SHOP)
        assert of_loud == pytest.approx(80, rel=0.1)
        assert of_calm >= 0.9 * 100
        for one in (loud, calm):
            await one.stop()


async def test_a11_other_producers_of_the_same_connection_go_on(broker: tuple[Harness, Sensors]) -> None:
    harness, sensors = broker
    client = await Client.producing(harness.port)
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=OTHER, producer_id=1)
    loud, calm = Publisher(client), Publisher(client, producer_id=1)
    loud.others = {1: calm}
    loud.start(RATE)
    calm.start(FLOOR // 4)
    await cycles(10)
    sensors.memory = 1.0
    await cycles(10)
    # The tenant may publish a tenth of 410 messages per second; the calm topic is below half of that.
    assert await rates(harness, 5, TOPIC, OTHER) == [
        pytest.approx(0.1 * (RATE + FLOOR // 4) - FLOOR // 4, rel=0.15),
        pytest.approx(FLOOR // 4, rel=0.1),
    ]
    assert not harness.connection_of(client).muted
    for one in (loud, calm):
        await one.stop()


async def test_its_mute_and_that_of_a_static_rate_never_undo_each_other(tmp_path: Path) -> None:
    # Memory for so little that the connection is soon muted for what it holds.
    async with throttled(tmp_path, pool_bytes=2 * MIB, frame_bytes_max=200_000) as (harness, sensors):
        publisher = await Publisher.connected(harness, payload=b"x" * 2_000)
        publisher.start(RATE)
        await cycles(10)
        sensors.memory = 1.0
        await cycles(8)
        connection = harness.connection_of(publisher.client)
        await until(lambda: connection.muted)
        (mute,) = connection.muted.snapshot()
        assert mute.reason is HoldKind.ADAPTIVE_RATE
        assert mute.owner in {TOPIC, "public"}, "the limit of the topic, or of its payer"
        connection.mute(HoldKind.PUBLISH_RATE, TOPIC)
        change(harness, adaptive_observe_only=True)
        await turns()
        assert [mute.reason for mute in connection.muted.snapshot()] == [HoldKind.PUBLISH_RATE]
        connection.unmute(HoldKind.PUBLISH_RATE, TOPIC)
        assert not connection.muted
        await publisher.stop()


async def test_a_static_rate_goes_on_when_the_throttle_lets_go(broker: tuple[Harness, Sensors]) -> None:
    harness, sensors = broker
    configure(harness, max_publish_rate_per_topic_in_messages=200)
    publisher = await Publisher.connected(harness)
    publisher.start(RATE)
    await cycles(10)
    assert throttle_of(harness).messages.natural == pytest.approx(200, rel=0.3)
    sensors.memory = 1.0
    await cycles(10)
    (throttled_rate,) = await rates(harness, 10, TOPIC)
    assert throttled_rate < 60
    sensors.memory = 0.0
    await cycles(10)
    assert await rates(harness, 10, TOPIC) == [pytest.approx(200, rel=0.05)]
    await publisher.stop()


async def test_observe_only_logs_the_same_decisions_and_slows_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with throttled(tmp_path, adaptive_observe_only=True) as (harness, sensors):
        publisher = await Publisher.connected(harness)
        publisher.start(RATE)
        await cycles(10)
        sensors.memory = 0.8
        await cycles(3)
        assert await rates(harness, 10, TOPIC) == [pytest.approx(RATE, rel=0.02)]
        (session,) = harness.broker.sessions
        assert (topic_of(harness).publish_lines, session.held) == ((), None)
        snapshot = throttling_of(harness).snapshot()
        assert (snapshot.active_topics, snapshot.observed_topics, snapshot.activations) == (0, 1, 0)
        sensors.memory = 0.0
        await cycles(CALM_CYCLES + 1)
        would, of_payer = lines(caplog, "OBSERVE-ONLY would-activate")
        assert f"topic={TOPIC} memoryPressure=.67 " in would
        assert "payer=public memoryPressure=.67 " in of_payer
        assert len(lines(caplog, "would-deactivate")) == 2
        assert not lines(caplog, " ACTIVATED ")
        await publisher.stop()


async def test_a10_observe_only_switched_on_lets_go_at_once_and_off_throttles_again(
    broker: tuple[Harness, Sensors],
) -> None:
    harness, sensors = broker
    publisher = await Publisher.connected(harness)
    publisher.start(RATE)
    await cycles(10)
    sensors.memory = 1.0
    await cycles(10)
    (session,) = harness.broker.sessions
    assert session.held is not None
    assert list(session.held.waiting)
    change(harness, adaptive_observe_only=True)
    await turns()
    assert topic_of(harness).publish_lines == ()
    assert not list(session.held.waiting)
    (released,) = await rates(harness, 5, TOPIC)
    assert released >= 0.95 * RATE, "more, while the producer makes up for what it could not publish"
    change(harness, adaptive_observe_only=False)
    await cycles(10)
    (slowed,) = await rates(harness, 5, TOPIC)
    assert slowed <= 0.2 * RATE
    await publisher.stop()


async def test_a9_a_changed_interval_counts_from_now_on(broker: tuple[Harness, Sensors]) -> None:
    harness, _ = broker
    change(harness, adaptive_interval_ms=3_600_000)
    throttling = throttling_of(harness)
    await cycles(1)
    last_ms = throttling.last_evaluation_ms
    await cycles(60)
    assert throttling.last_evaluation_ms == last_ms
    change(harness, adaptive_interval_ms=100)
    before_ms = harness.clock.wall_ms()
    await asyncio.sleep(0.15)
    assert throttling.last_evaluation_ms == before_ms + 100


async def test_a12_cycles_that_fail_are_counted_and_logged_and_limits_are_released_in_the_end(
    broker: tuple[Harness, Sensors], caplog: pytest.LogCaptureFixture
) -> None:
    harness, sensors = broker
    publisher = await Publisher.connected(harness)
    publisher.start(RATE)
    await cycles(10)
    sensors.memory = 1.0
    await cycles(10)
    evaluated_ms = throttling_of(harness).last_evaluation_ms
    sensors.error = OSError("no /proc")
    await cycles(HELD_FAILURES - 1)
    assert await rates(harness, 1, TOPIC) == [pytest.approx(FLOOR, rel=0.2)]
    await cycles(6)
    assert not throttle_of(harness).active
    assert await rates(harness, 5, TOPIC) == [pytest.approx(RATE, rel=0.2)]
    snapshot = throttling_of(harness).snapshot()
    assert (snapshot.last_evaluation_ms, snapshot.failures) == (evaluated_ms, HELD_FAILURES + 11)
    assert (
        lines(caplog, "Evaluation cycle failed") == ["[AdaptiveThrottle] Evaluation cycle failed"] * snapshot.failures
    )
    sensors.error = None
    await cycles(10)
    assert throttle_of(harness).enforced
    await publisher.stop()


async def test_a_topic_that_fails_does_not_stop_the_visits_of_others(
    broker: tuple[Harness, Sensors], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, sensors = broker
    sick, well = await Publisher.connected(harness), await Publisher.connected(harness, OTHER)
    sick.start(200)
    well.start(200)
    await cycles(10)
    sizes = throttling_of(harness)._backlogs  # noqa: SLF001
    part = sizes.part

    def fails(topic: PublishedTopic, adaptive: AdaptiveTopic, low: float) -> float:
        if topic.text == TOPIC:
            raise RuntimeError("a bug")
        return part(topic, adaptive, low)

    monkeypatch.setattr(sizes, "part", fails)
    sensors.memory = 1.0
    await cycles(10)
    assert not throttle_of(harness).active
    assert throttle_of(harness, OTHER).active
    assert throttling_of(harness).snapshot().failures == 10
    for one in (sick, well):
        await one.stop()


async def test_many_activations_are_logged_in_a_bounded_number_of_lines(
    broker: tuple[Harness, Sensors], caplog: pytest.LogCaptureFixture
) -> None:
    harness, sensors = broker
    client = await Client.connected(harness.port)
    names = [f"persistent://public/default/t{number}" for number in range(250)]
    for number, name in enumerate(names):
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=name, producer_id=number)
    for _ in range(3):
        client.write(b"".join(publish(b"x", 0, number) for number in range(len(names)) for _ in range(5)))
        await client.receipts(5 * len(names))
        await cycles()
    caplog.clear()
    sensors.memory = 1.0
    await cycles()
    assert throttling_of(harness).snapshot().active_topics == len(names)
    activated = [line for line in lines(caplog, "ACTIVATED") if "payer=" not in line]
    assert len(activated) == LINES_PER_CYCLE + 1
    caplog.clear()
    change(harness, adaptive_observe_only=True)
    await turns()
    released = [line for line in lines(caplog, " DEACTIVATED ") if "payer=" not in line]
    assert len(released) == LINES_PER_CYCLE + 1, "250 topics are released in three turns of the loop"
    assert throttling_of(harness).snapshot().active_topics == 0
    assert activated[-1] == f"[AdaptiveThrottle] ACTIVATED and {len(names) - LINES_PER_CYCLE} more topics in this cycle"


async def test_a_cycle_uses_the_loop_for_ten_milliseconds_and_the_next_one_goes_on(
    broker: tuple[Harness, Sensors], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, _ = broker
    client = await Client.connected(harness.port)
    names = [f"persistent://public/default/t{number}" for number in range(250)]
    for number, name in enumerate(names):
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=name, producer_id=number)
    client.write(b"".join(publish(b"x" * 1_000, 0, number) for number in range(len(names))))
    await client.receipts(len(names))
    await cycles()
    throttling = throttling_of(harness)
    visited: list[str] = []
    visit = throttling.controller.visit

    def counted(throttle: Throttle, seen: Seen, backlog: float, now_ns: int) -> ThrottleDecision | None:
        visited.append(throttle.topic)
        return visit(throttle, seen, backlog, now_ns)

    monkeypatch.setattr(throttling.controller, "visit", counted)
    monkeypatch.setattr(throttling, "_clock", SlowClock(harness.clock))
    await cycles()
    assert len(visited) == 2 * TOPICS_PER_TURN
    await cycles()
    assert sorted(visited) == sorted(names)


class SlowClock:
    """A clock by which each turn takes six milliseconds."""

    def __init__(self, clock: Clock) -> None:
        self.wall_ms = clock.wall_ms
        self._clock = clock
        self._late_ns = 0

    def monotonic_ns(self) -> int:
        self._late_ns += 6 * NS_PER_MS
        return self._clock.monotonic_ns() + self._late_ns


async def test_why_names_the_throttle_its_numbers_since_when_and_what_lifts_it(
    broker: tuple[Harness, Sensors],
) -> None:
    harness, sensors = broker
    publisher = await Publisher.connected(harness)
    publisher.start(RATE)
    await cycles(10)
    sensors.memory = 0.8
    await cycles(10)
    why = administration(harness.broker).why
    answer = await why.of_topic(TopicName.parse(TOPIC))
    (found,) = answer["findings"]
    assert found["what"].startswith("producer ")
    of = (TOPIC, "all topics of public")  # whose limit it waits for at this moment; both have the same rate
    assert found["limit"] in {f"adaptive publish throttle of {one}" for one in of}
    assert found["reason"] == "adaptive-publish-rate"
    assert found["forMs"] == pytest.approx(9_000, abs=1_100)
    numbers = found["numbers"]
    assert numbers["throttled_for_s"] == pytest.approx(9, abs=1.1)
    assert numbers["memory_pressure"] == pytest.approx(0.667)
    assert numbers["natural_messages_per_s"] == pytest.approx(RATE, rel=0.05)
    assert numbers["messages_per_s"] == pytest.approx(0.4 * RATE, rel=0.05)
    assert (numbers["memory_used_bytes"], numbers["memory_limit_bytes"]) == (800, 1_000)
    assert numbers["memory_requests_bytes"] == 7
    assert numbers["held_messages"] > 0
    assert "memoryLimitMB" in found["liftedBy"]
    assert "ObserveOnly=true" in found["liftedBy"]
    await publisher.stop()


async def test_a_topic_that_is_unloaded_leaves_nothing_behind(broker: tuple[Harness, Sensors]) -> None:
    harness, sensors = broker
    publisher = await Publisher.connected(harness)
    publisher.start(RATE)
    await cycles(10)
    sensors.memory = 1.0
    await cycles(5)
    await publisher.stop()
    await administration(harness.broker).topics.unload(TopicName.parse(TOPIC))
    throttling = throttling_of(harness)
    assert not throttling.controller.active
    assert not throttling._limited  # noqa: SLF001
    await cycles(3)
    assert throttling.snapshot().failures == 0


async def test_the_state_of_a_topic_and_its_limit_are_charged_until_they_are_dropped(
    broker: tuple[Harness, Sensors],
) -> None:
    harness, sensors = broker
    row = harness.broker.sessions_memory
    publisher = await Publisher.connected(harness)
    before_bytes = row.used_bytes
    publisher.start(RATE)
    await cycles(5)
    assert row.used_bytes == before_bytes + 2 * STATE_BYTES, "of the topic and of its payer"
    sensors.memory = 1.0
    await cycles(5)
    assert row.used_bytes == before_bytes + 2 * (STATE_BYTES + LIMIT_BYTES)
    sensors.memory = 0.0
    await cycles(20)
    sensors.memory = 1.0
    await cycles(5)
    assert row.used_bytes == before_bytes + 2 * (STATE_BYTES + LIMIT_BYTES), "the limits are used again"
    sensors.memory = 0.0
    await publisher.stop()
    await cycles(300)
    assert topic_of(harness).adaptive is None
    assert row.used_bytes <= before_bytes, "the client may have been given up meanwhile"


async def test_a_full_row_does_not_keep_a_topic_from_being_throttled(broker: tuple[Harness, Sensors]) -> None:
    harness, sensors = broker
    row = harness.broker.sessions_memory
    publisher = await Publisher.connected(harness)
    others_bytes = row.available_bytes
    row.charge(others_bytes)
    publisher.start(RATE)
    await cycles(5)
    sensors.memory = 1.0
    await cycles(8)
    assert await rates(harness, 10, TOPIC) == [pytest.approx(FLOOR, rel=0.1)]
    await publisher.stop()
    row.release(others_bytes)


async def passes(harness: Harness, publishers: Sequence[Publisher], seconds: int) -> float:
    """Messages per second that are acknowledged to all these publishers together."""
    before = sum(one.answered for one in publishers)
    await cycles(seconds)
    return (sum(one.answered for one in publishers) - before) / seconds


async def test_a_new_topic_each_second_does_not_escape_the_throttle(broker: tuple[Harness, Sensors]) -> None:
    harness, sensors = broker
    first = await Publisher.connected(harness)
    first.start(RATE)
    await cycles(10)
    sensors.memory = 1.0
    await cycles(5)
    await first.stop()
    passed = []
    for number in range(30):
        one = await Publisher.connected(harness, topic=f"persistent://public/default/new-{number}")
        one.start(RATE)
        passed.append(await passes(harness, [one], 1))
        await one.stop()
        await one.client.close()
    assert sum(passed) / len(passed) <= 1.1 * FLOOR
    assert max(passed) <= 2 * FLOOR


async def test_half_on_one_topic_and_half_on_fifty_does_not_escape_it(broker: tuple[Harness, Sensors]) -> None:
    harness, sensors = broker
    topics = [TOPIC, *(f"persistent://public/default/part-{number}" for number in range(50))]
    publishers = [await Publisher.connected(harness, topic=one) for one in topics]
    for publisher, per_s in zip(publishers, (250, *([5] * 50)), strict=True):
        publisher.start(per_s)
    await cycles(10)
    sensors.memory = 1.0
    await cycles(10)
    assert await passes(harness, publishers, 20) == pytest.approx(50, rel=0.1)
    for publisher in publishers:
        await publisher.stop()


async def test_a_tenant_with_new_topics_only_pays_itself_and_not_the_calm_one(tmp_path: Path) -> None:
    async with throttled(tmp_path) as (harness, sensors):
        await administration(harness.broker).tenants.create(
            "shop", {"allowedClusters": [harness.broker.limits.cluster_name]}
        )
        await administration(harness.broker).namespaces.create(NamespaceName("shop", "orders"))
        calm = await Publisher.connected(harness, topic=SHOP)
        calm.start(50)
        await cycles(10)
        sensors.memory = 1.0
        passed = []
        for number in range(30):
            one = await Publisher.connected(harness, topic=f"persistent://public/default/new-{number}")
            one.start(RATE)
            passed.append(await passes(harness, [one], 1))
            await one.stop()
            await one.client.close()
        assert sum(passed[6:]) / len(passed[6:]) <= 1.2 * FLOOR
        assert await passes(harness, [calm], 10) == pytest.approx(50, rel=0.05)
        await calm.stop()


async def test_a_topic_that_is_deleted_and_made_again_finds_the_limit_and_its_debt(
    broker: tuple[Harness, Sensors],
) -> None:
    harness, sensors = broker
    publisher = await Publisher.connected(harness)
    publisher.start(RATE)
    await cycles(10)
    sensors.memory = 1.0
    await cycles(5)
    await publisher.stop()
    for _ in range(10):
        await administration(harness.broker).topics.delete(TopicName.parse(TOPIC), force=True)
        publisher = await Publisher.connected(harness)
        publisher.start(RATE)
        assert await passes(harness, [publisher], 1) <= 1.5 * FLOOR
        await publisher.stop()
        await publisher.client.close()


async def test_an_idle_topic_is_forgotten(broker: tuple[Harness, Sensors]) -> None:
    harness, _ = broker
    client = await Client.producing(harness.port)
    for _ in range(2):
        await client.published(b"x")
        await cycles()
        assert topic_of(harness).adaptive is not None
    await cycles(200)
    for _ in range(5):
        await cycles()
        assert topic_of(harness).adaptive is None


async def test_a_producer_that_reconnects_keeps_the_rate_of_its_topic(broker: tuple[Harness, Sensors]) -> None:
    harness, sensors = broker
    publisher = await Publisher.connected(harness)
    publisher.start(500)
    await cycles(10)
    sensors.memory = 1.0
    await cycles(10)
    before = topic_of(harness).messages_in
    for _ in range(10):
        await publisher.stop()
        publisher.client.writer.close()
        await cycles(0.1)
        publisher = await Publisher.connected(harness)
        publisher.start(500)
        await cycles(0.9)
    passed = topic_of(harness).messages_in - before
    assert passed <= 10 * 2 * 50, "at most twice the floor, which the rise of its demand is bounded to"
    await publisher.stop()


async def test_a_thousand_producers_share_the_rate_of_their_topic(broker: tuple[Harness, Sensors]) -> None:
    harness, sensors = broker
    publisher = await Publisher.connected(harness)
    publisher.start(500)
    await cycles(10)
    sensors.memory = 1.0
    await cycles(5)
    client = await Client.connected(harness.port)
    for number in range(1_000):
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=number)
    before = topic_of(harness).messages_in
    client.write(b"".join(publish(b"x", row, number) for number in range(1_000) for row in range(10)))
    await cycles(10)
    assert topic_of(harness).messages_in - before <= 10 * 2 * 50 * 1.2
    await publisher.stop()


async def test_metrics_of_topics_are_bounded_and_only_on_request(
    broker: tuple[Harness, Sensors], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, _ = broker
    publishers = [await Publisher.connected(harness, name) for name in (TOPIC, OTHER)]
    for one in publishers:
        one.start(100)
    await cycles(3)
    assert throttling_of(harness).snapshot().topics == ()
    change(harness, adaptive_per_topic_metrics=True)
    shown = throttling_of(harness).snapshot()
    assert {one.topic for one in shown.topics} == {TOPIC, OTHER}
    monkeypatch.setattr(adaptive_throttling, "TOPICS_SHOWN_MAX", 1)
    shown = throttling_of(harness).snapshot()
    assert (len(shown.topics), shown.topics_left_out) == (1, 1)
    for one in publishers:
        await one.stop()


async def test_a_held_disk_is_measured_as_queueing_delay(tmp_path: Path) -> None:
    async with running(tmp_path, adaptive_throttling=True) as harness:
        measured = DiskDelay(harness.broker.reads, harness.clock)
        for _ in range(3):
            assert measured() == 0.0
            await cycles()
        client = await Client.producing(harness.port)
        harness.disk.hold()
        client.publish(b"x")
        await turns()
        assert measured() == 0.0
        await cycles()
        assert measured() == pytest.approx(1.0, abs=0.01)
        harness.disk.release()
        await client.receipts(1)
        await cycles()
        assert measured() == 0.0, "one slow sync is not a queue"


async def test_a_disk_whose_syncs_are_slow_slows_publishers_until_it_is_fast_again(tmp_path: Path) -> None:
    """Nothing is told here: the delay is measured on a disk whose every sync takes its time."""
    async with running(tmp_path, adaptive_throttling=True) as harness:
        throttling = throttling_of(harness)
        publisher = await Publisher.connected(harness)
        publisher.start(RATE)
        await cycles(10)
        assert throttling.controller.queueing_pressure == 0.0
        disk = harness.disk
        assert isinstance(disk, VirtualDisk)
        disk.sync_ns = lambda: 600 * NS_PER_MS
        await cycles(10)
        assert throttling.controller.queueing_pressure > 0.3
        assert throttling.controller.activations == 1
        (slowed,) = await rates(harness, 20, TOPIC)
        assert FLOOR * 0.9 < slowed < RATE * 0.7
        disk.sync_ns = None
        await cycles(3)
        for _ in range(10):
            await cycles()
        assert not throttling.controller.active
        assert await rates(harness, 10, TOPIC) == [pytest.approx(RATE, rel=0.2)]
        await publisher.stop()


class Appends:
    """A log whose appends wait as long as a test wants."""

    def __init__(self) -> None:
        self.appends_wait = False
        self.asked: list[Callable[[], None]] = []

    def after_appends(self, action: Callable[[], None]) -> None:
        self.asked.append(action)


def test_the_disk_is_asked_only_while_something_waits_for_it() -> None:
    appends, clock = Appends(), ManualClock()
    measured = DiskDelay(appends, clock)
    assert [measured() for _ in range(5)] == [0.0] * 5
    assert not appends.asked
    appends.appends_wait = True
    for _ in range(2):
        assert measured() == 0.0
        clock.advance(ms=500)
        appends.asked.pop()()
    appends.appends_wait = False
    assert measured() == pytest.approx(0.5)
    assert measured() == 0.0, "nothing waits any more"
    assert not appends.asked


async def test_the_interval_in_the_metrics_is_the_one_in_force(broker: tuple[Harness, Sensors]) -> None:
    harness, _ = broker
    assert throttling_of(harness).snapshot().interval_ns == 1_000 * NS_PER_MS
    change(harness, adaptive_interval_ms=5_000)
    assert throttling_of(harness).snapshot().interval_ns == 5_000 * NS_PER_MS

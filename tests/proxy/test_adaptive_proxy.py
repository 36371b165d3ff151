# SPDX-License-Identifier: Apache-2.0
"""Adaptive throttling of what clients publish through a proxy: who waits, for what, and when it ends.

The producers, their held SENDs and the controller are the proxy's own; memory, backlogs and brokers are numbers.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.core.errors import InvalidTopicName
from penstock.core.units import MIB
from penstock.governance.budget import Row
from penstock.governance.holds import HoldKind
from penstock.governance.request_memory import RequestMemory
from penstock.governance.request_values import RequestLimits
from penstock.governance.resource_group import GroupRate, GroupRates
from penstock.groups.adaptive_throttling import AdaptiveThrottling
from penstock.groups.held_sends import HeldMemory
from penstock.proxy.groups import Definitions, ProxyGroups
from penstock.proxy.relayed_sends import RelayedSends
from penstock.proxy.throttling import PublishedTopic, PublishedTopics
from penstock.testing.loop import VirtualClock, VirtualLoop
from penstock.wire.codec import CommandProducer
from penstock.wire.events import PublishRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.governance.memory_pool import Lease
    from penstock.groups.adaptive_publish import AdaptiveTopic

TOPIC = "persistent://shop/orders/t"
OTHER = "persistent://shop/orders/other"
SEND_BYTES = 100
SETTINGS: dict[str, Any] = {
    "adaptive_observe_only": False,
    "adaptive_interval_ms": 1_000,
    "adaptive_memory_high": 0.85,
    "adaptive_memory_low": 0.70,
    "adaptive_backlog_high": 0.90,
    "adaptive_backlog_low": 0.75,
    "adaptive_min_rate_factor": 0.10,
    "adaptive_max_rate_change_factor": 0.25,
    "adaptive_per_topic_metrics": True,
}


class Memory:
    """What is measured of the process."""

    part = 0.1
    limit, used, resident = 100 * MIB, 10 * MIB, 10 * MIB
    owners: Mapping[str, int] = {}


class Backlogs:
    """What the cluster says."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}

    def part(self, topic: PublishedTopic, _adaptive: AdaptiveTopic, _low: float) -> float:
        part = self.parts.get(topic.text, 0.0)
        if part < 0:
            raise ValueError("no backlog")
        return part


class Connection:
    """Of a client; it remembers why it is muted."""

    is_open = True

    def __init__(self) -> None:
        self.muted: set[tuple[HoldKind, str]] = set()

    def mute(self, reason: HoldKind, owner: str = "") -> None:
        self.muted.add((reason, owner))

    def unmute(self, reason: HoldKind, owner: str = "") -> None:
        self.muted.discard((reason, owner))


class World:
    """A proxy with adaptive throttling."""

    def __init__(self, **changes: Any) -> None:  # noqa: ANN401
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.clock = VirtualClock(loop.virtual_time)
        self.request_memory = RequestMemory(
            RequestLimits(request_bytes_max=8 * MIB, requests_max=100_000, frame_bytes_max=MIB)
        )
        self.sessions = Row("sessions", MIB)
        self.published = PublishedTopics(self.sessions, self.clock)
        self.groups = ProxyGroups(self.clock, loop)
        self.memory, self.backlogs = Memory(), Backlogs()
        self.settings = SimpleNamespace(**{**SETTINGS, **changes})
        self.throttling = AdaptiveThrottling[PublishedTopic](
            limits=lambda: cast("Any", self.settings),
            topics=self.published.loaded,
            changed=self.published.changed,
            backlogs=self.backlogs,
            memory=lambda: self.memory,
            disk_delay=lambda: 0.0,
            row=self.sessions,
            clock=self.clock,
            loop=loop,
        )
        self.published.throttling = self.throttling
        self.services = SimpleNamespace(
            published=self.published,
            usage=None,
            groups=self.groups,
            held=HeldMemory(self.request_memory, self.clock),
            release=self.request_memory.release,
            sessions_memory=self.sessions,
        )

    def rate(self, topic: str = TOPIC) -> float | None:
        """The limit in force, in messages per second."""
        for one in self.published.loaded():
            if one.text == topic and one.adaptive is not None and one.adaptive.limiter is not None:
                return one.adaptive.throttle.messages.rate
        return None


class Client:
    """A client with a producer for each topic, numbered from 0; and what its broker was sent."""

    def __init__(self, world: World, *topics: str) -> None:
        self.world = world
        self.connection = Connection()
        self.sent: dict[int, list[int]] = {number: [] for number in range(len(topics))}
        self.sends = RelayedSends(cast("Any", self.connection), cast("Any", world.services), self._forward)
        self._next = 0
        for number, topic in enumerate(topics):
            self.sends.opened(CommandProducer(topic=topic, producer_id=number, request_id=1))

    def publish(self, producer_id: int, count: int = 1) -> None:
        """Send so many messages in one read."""
        data, memory = bytes([producer_id]) * SEND_BYTES * count, self.world.request_memory
        now_ns = self.world.clock.monotonic_ns()
        assert memory.try_charge(1, len(data), 0, now_ns) == len(data)
        lease = memory.recharge(1, len(data), 0, len(data), count, now_ns)
        assert lease is not None
        starts = range(0, len(data), SEND_BYTES)
        run = PublishRun(data, [producer_id] * count, list(range(count)), list(starts), [SEND_BYTES] * count, None)
        passed = self.sends.pass_on(run, lease)
        if passed is not None:
            self._forward(passed.data, None)
        memory.release(lease)

    def _forward(self, data: bytes | memoryview, lease: Lease | None) -> None:
        self.sent[data[0]].append(len(data) // SEND_BYTES)
        if lease is not None:
            self.world.request_memory.release(lease)

    def total(self, producer_id: int) -> int:
        return sum(self.sent[producer_id])

    async def run(self, seconds: float, *rates: int) -> None:
        """Publish with each producer at its rate, in steps of 50 ms."""
        for _ in range(round(seconds * 20)):
            for producer_id, rate in enumerate(rates):
                if not self.connection.muted:
                    self.publish(producer_id, max(1, rate // 20))
            await asyncio.sleep(0.05)


async def test_a_full_backlog_slows_its_topic_and_no_other_of_the_connection() -> None:
    world = World()
    client = Client(world, TOPIC, OTHER)
    await client.run(5, 200, 200)
    world.backlogs.parts[TOPIC] = 0.95
    await client.run(6, 200, 200)
    before = (client.total(0), client.total(1))
    await client.run(5, 200, 200)
    assert world.rate() == pytest.approx(20, rel=0.3)
    assert client.total(0) - before[0] == pytest.approx(100, rel=0.4)
    assert client.total(1) - before[1] == 1_000
    assert world.rate(OTHER) is None
    assert not client.connection.muted


async def test_when_the_backlog_is_small_again_all_that_was_held_passes_and_nothing_is_left() -> None:
    world = World()
    client = Client(world, TOPIC)
    await client.run(5, 200)
    world.backlogs.parts[TOPIC] = 0.95
    await client.run(6, 200)
    world.backlogs.parts.clear()
    await asyncio.sleep(60)
    assert world.rate() is None
    assert client.total(0) == 11 * 200
    assert world.request_memory.available == world.request_memory.size
    client.sends.close()
    await asyncio.sleep(100)
    assert world.sessions.used_bytes == 0


async def test_memory_pressure_slows_all_producers_of_a_topic_whatever_their_connection() -> None:
    world = World()
    clients = [Client(world, TOPIC), Client(world, TOPIC)]
    await asyncio.gather(*(client.run(5, 100) for client in clients))
    world.memory.part = 0.95
    await asyncio.gather(*(client.run(6, 100) for client in clients))
    before = [client.total(0) for client in clients]
    await asyncio.gather(*(client.run(10, 100) for client in clients))
    passed = [client.total(0) - at for client, at in zip(clients, before, strict=True)]
    assert sum(passed) == pytest.approx(200, rel=0.4), "a tenth of 200 per second"
    assert min(passed) > 0.5 * max(passed)


async def test_a_new_topic_each_second_does_not_escape_memory_pressure() -> None:
    world = World()
    await Client(world, TOPIC).run(5, 200)
    world.memory.part = 0.95
    await Client(world, TOPIC).run(5, 200)
    passed = []
    for number in range(20):
        client = Client(world, f"persistent://shop/orders/new-{number}")
        await client.run(1, 200)
        passed.append(client.total(0))
        client.sends.close()
    assert sum(passed) <= 1.2 * 20 * len(passed), "a tenth of 200 per second"


@pytest.mark.parametrize("name", ["persistent://shop/use/orders/t", "persistent://shop//t", "other://shop/orders/t"])
async def test_a_producer_whose_payer_nobody_can_name_is_refused(name: str) -> None:
    world = World()
    with pytest.raises(InvalidTopicName):
        Client(world, name)
    assert world.sessions.used_bytes == 0


async def test_the_limits_of_a_group_and_of_throttling_are_independent() -> None:
    world = World()
    world.groups.define(Definitions({"gold": GroupRates(GroupRate(100))}, of_namespaces={"shop/orders": "gold"}))
    client = Client(world, TOPIC)
    await client.run(5, 80)
    world.backlogs.parts[TOPIC] = 0.95
    await client.run(6, 80)
    throttled = world.rate()
    assert throttled is not None
    assert throttled < 100
    world.groups.define(Definitions({"gold": GroupRates(GroupRate(1))}, of_namespaces={"shop/orders": "gold"}))
    before = client.total(0)
    await client.run(10, 80)
    assert client.total(0) - before <= 15, "the group is stricter now"
    world.groups.define(Definitions())
    for _ in client.sends.looks():
        pass
    before = client.total(0)
    await client.run(10, 80)
    assert world.rate() is not None
    assert 50 <= client.total(0) - before <= 300, "of 800"


async def test_observe_only_says_what_it_would_do_and_slows_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = World(adaptive_observe_only=True)
    client = Client(world, TOPIC)
    await client.run(5, 200)
    world.backlogs.parts[TOPIC] = 0.95
    await client.run(5, 200)
    assert client.total(0) == 2_000
    assert f"[AdaptiveThrottle] OBSERVE-ONLY would-activate topic={TOPIC} memoryPressure=0" in caplog.text
    assert world.throttling.snapshot().observed_topics == 1


async def test_a_topic_of_which_the_backlog_fails_is_released_in_steps_and_the_controller_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    client = Client(world, TOPIC)
    await client.run(5, 200)
    world.backlogs.parts[TOPIC] = 0.95
    await client.run(6, 200)
    assert world.rate() is not None
    world.backlogs.parts[TOPIC] = -1.0
    await asyncio.sleep(60)
    assert world.rate() is None
    assert world.throttling.controller.failures >= 10
    assert "[AdaptiveThrottle] Evaluation cycle failed" in caplog.text


async def test_a_producer_that_connects_again_finds_the_same_limit_and_its_debt() -> None:
    world = World()
    client = Client(world, TOPIC)
    await client.run(5, 200)
    world.backlogs.parts[TOPIC] = 0.95
    await client.run(6, 200)
    throttled = world.rate()
    assert throttled is not None
    client.sends.close()
    assert world.request_memory.available == world.request_memory.size
    again = Client(world, TOPIC)
    await again.run(5, 200)
    assert again.total(0) <= 2 * 5 * throttled + 10


async def test_a_client_that_sends_on_is_muted_for_throttling_and_not_for_the_group() -> None:
    world = World()
    client = Client(world, TOPIC)
    await client.run(5, 200)
    world.backlogs.parts[TOPIC] = 0.95
    await client.run(6, 200)
    for _ in range(200):
        if client.connection.muted:
            break
        client.publish(0, 100)
    assert client.connection.muted == {(HoldKind.ADAPTIVE_RATE, TOPIC)}
    client.sends.close()
    assert world.request_memory.available == world.request_memory.size

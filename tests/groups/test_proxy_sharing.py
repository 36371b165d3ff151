# SPDX-License-Identifier: Apache-2.0
"""Two proxies of one quota, in virtual time: what each is given, over a topic of a real broker."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from penstock.core.names import TopicName
from penstock.core.units import MIB, NS_PER_S
from penstock.governance.allocation import Strategy
from penstock.governance.budget import Row
from penstock.governance.quota_exchange import ExchangeOptions
from penstock.governance.resource_group import Amount, GroupRate, GroupRates
from penstock.groups.live_exchange import HeardNames, SharingOptions
from penstock.net.usage_topic import Reporting
from penstock.proxy.groups import Definitions, ProxyGroups
from penstock.proxy.quota_sharing import ProxySharing
from penstock.proxy.upstreams import Identity, UpstreamOptions, Upstreams
from penstock.wire.client.lookup import Address
from tests.groups.permit_world import Consumer, World, windows
from tests.net.harness import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from penstock.groups.group import Group
    from tests.net.harness import Harness

QUOTA = 1_000
DEFINED = Definitions({"all": GroupRates(GroupRate(QUOTA), GroupRate(QUOTA))}, {"public/default": "all"})
OPTIONS = SharingOptions(
    topic=TopicName.parse("non-persistent://public/default/proxy-usage"),
    enabled=True,
    exchange=ExchangeOptions(interval_ns=NS_PER_S, complete_every=5, strategy=Strategy.MAX_MIN),
)


class Part:
    """One proxy's part in the exchange, and a client that offers a rate."""

    def __init__(self, name: str, harness: Harness, key: bytes) -> None:
        loop, clock = asyncio.get_running_loop(), harness.clock
        self.offers = 0  # messages per second
        self.groups = ProxyGroups(clock, loop)
        self.names = HeardNames(name, clock, loop)
        self.upstreams = Upstreams(
            UpstreamOptions(addresses=(Address("127.0.0.1", harness.port, tls=False),)),
            clock,
            Row("sessions", MIB),
        )
        self.sharing = self.groups.sharing = ProxySharing(
            self.groups, self.names, options=OPTIONS, upstreams=self.upstreams, identity=Identity("none", b""), key=key,
            clock=clock, loop=loop,
        )  # fmt: skip
        # The broker of a test does not know its own address, so it is not looked up.
        broker = self.upstreams.options.addresses[0]
        self.sharing.reporting = Reporting(
            lambda _number: self.upstreams.connect(broker, Identity("none", b"")), self.sharing.reporting.key
        )
        self.groups.define(DEFINED)
        (self.group,) = self.groups.of_topic(TopicName.parse("persistent://public/default/t"))
        self.group.topics = 1
        self._task = loop.create_task(self._offer(self.group, clock.monotonic_ns))

    @property
    def share(self) -> float:
        share = self.group.limiter.publish.share.messages
        assert share is not None
        return share

    async def _offer(self, group: Group, now_ns: Callable[[], int]) -> None:
        """Send what may pass, 20 times a second, and count the rest as held."""
        limiter, held = group.limiter.publish, 0.0
        while True:
            held += self.offers / 20
            left = limiter.left(now_ns())[0]
            passed = int(min(held, max(0, left if left is not None else held)))
            limiter.charge(passed, passed, now_ns())
            held = min(held - passed, 500)
            limiter.held = Amount(int(held), 0)
            if held >= 1:
                limiter.waits(now_ns())
            else:
                limiter.waits_no_more(now_ns())
            await asyncio.sleep(0.05)

    async def die(self) -> None:
        """As after kill -9: nobody is told."""
        self._task.cancel()
        running = self.sharing._running  # noqa: SLF001
        if running is not None:
            await running.end()

    async def close(self) -> None:
        self._task.cancel()
        await self.sharing.stop()
        self.names.close()
        await self.upstreams.close()


@asynccontextmanager
async def parts(tmp_path: Path, *keys: bytes) -> AsyncIterator[list[Part]]:
    async with AsyncExitStack() as stack:
        harness = await stack.enter_async_context(running(tmp_path))
        made = [Part(f"proxy-{number}", harness, key) for number, key in enumerate(keys)]
        for part in made:
            stack.push_async_callback(part.close)
        yield made


async def test_a_proxy_that_hears_nobody_has_the_whole_quota(tmp_path: Path) -> None:
    async with parts(tmp_path, b"k") as (one,):
        one.offers = 3 * QUOTA
        await asyncio.sleep(5)
        assert one.share == pytest.approx(QUOTA, rel=0.02)


async def test_two_proxies_divide_the_quota_by_what_their_clients_want(tmp_path: Path) -> None:
    async with parts(tmp_path, b"k", b"k") as (one, other):
        one.offers = other.offers = 2 * QUOTA
        await asyncio.sleep(6)
        assert one.share + other.share <= 1.02 * QUOTA
        assert one.share == pytest.approx(QUOTA / 2, rel=0.05)
        assert one.sharing.received > 0
        other.offers = 100
        await asyncio.sleep(6)
        assert one.share + other.share <= 1.02 * QUOTA
        assert one.share >= 0.8 * QUOTA


async def test_the_other_proxy_takes_the_whole_quota_within_three_cycles_of_a_death(tmp_path: Path) -> None:
    async with parts(tmp_path, b"k", b"k") as (one, other):
        one.offers = other.offers = 2 * QUOTA
        await asyncio.sleep(6)
        await other.die()
        await asyncio.sleep(4.1)  # Three cycles of its lease, and the one that was under way.
        assert one.share == pytest.approx(QUOTA, rel=0.02)
        assert one.names.names == {"proxy-0"}


async def test_a_proxy_that_stops_leaves_its_share_at_once(tmp_path: Path) -> None:
    async with parts(tmp_path, b"k", b"k") as (one, other):
        one.offers = other.offers = 2 * QUOTA
        await asyncio.sleep(6)
        await other.sharing.stop()
        await asyncio.sleep(1.5)
        assert one.share == pytest.approx(QUOTA, rel=0.05)


@pytest.mark.parametrize(("batch", "precise"), [(1, True), (10, False)])
async def test_two_proxies_deliver_a_dispatch_quota_within_five_percent(
    tmp_path: Path, batch: int, precise: bool
) -> None:
    async with parts(tmp_path, b"k", b"k") as (one, other):
        world = World()
        # Three busy topics at one proxy, one at the other, and some that have nothing.
        consumers = [
            Consumer(world, part.group, backlog=backlog, batch=batch, precise=precise)
            for part, backlog in ((one, 10**6), (one, 10**6), (one, 10**6), (other, 10**6), (one, 0), (other, 0))
        ]
        for consumer in consumers:
            consumer.subscribe()
        await asyncio.sleep(25)
        assert all(0.95 * QUOTA <= rate <= 1.05 * QUOTA for rate in windows(consumers, start_s=6, stop_s=25))
        await other.die()
        consumers[3].permits.leave()
        died_s = world.now_s()
        await asyncio.sleep(15)
        rates = windows(consumers, start_s=died_s + 5, stop_s=died_s + 15)
        assert all(0.95 * QUOTA <= rate <= 1.05 * QUOTA for rate in rates)


async def test_old_reports_of_a_dead_proxy_do_not_bring_it_back(tmp_path: Path) -> None:
    async with parts(tmp_path, b"k", b"k") as (one, other):
        running = one.sharing._running  # noqa: SLF001
        assert running is not None
        heard, recorded = running.topic._heard, []  # noqa: SLF001

        def record(payload: bytes) -> None:
            recorded.append(bytes(payload))
            heard(payload)

        running.topic._heard = record  # type: ignore[assignment] # noqa: SLF001
        one.offers = other.offers = 2 * QUOTA
        await asyncio.sleep(6)
        await other.die()
        await asyncio.sleep(5)
        assert one.names.names == {"proxy-0"}
        for _ in range(10):  # Somebody who may write to the topic.
            for payload in recorded:
                heard(payload)
            await asyncio.sleep(0.5)
            assert one.names.names == {"proxy-0"}
        assert one.share == pytest.approx(QUOTA, rel=0.02)
        assert one.sharing.refused["repeated"] > 0


async def test_reports_with_another_key_count_for_nobody(tmp_path: Path) -> None:
    async with parts(tmp_path, b"k", b"forged") as (one, other):
        one.offers = other.offers = 2 * QUOTA
        await asyncio.sleep(5)
        assert one.share == pytest.approx(QUOTA, rel=0.02)
        assert one.names.names == {"proxy-0"}
        assert one.sharing.refused["forged"] > 0
        assert one.sharing.received == 0


async def test_without_groups_nothing_runs(tmp_path: Path) -> None:
    async with parts(tmp_path, b"k") as (one,):
        await asyncio.sleep(2)
        assert one.sharing.connected
        one.groups.define(Definitions())
        await asyncio.sleep(1)
        assert not one.sharing.connected
        assert not one.group.limiter.publish.share.limited

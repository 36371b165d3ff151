# SPDX-License-Identifier: Apache-2.0
"""Limits of resource groups on the clients of a proxy, before a broker: who waits, and what is left when they go."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.core.units import KIB, MIB, NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.governance.resource_group import GroupRate, GroupRates
from penstock.proxy.consumers import UNSUBSCRIBING_MAX
from penstock.proxy.groups import Definitions
from penstock.proxy.relay import Relay
from penstock.testing.client import Type, entry, frame, send
from penstock.wire.events import Relayed
from tests.net.harness import Client, running, until
from tests.proxied.harness import KEEP_ALIVE_NS, Proxied, proxied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from penstock.groups.group import Group

TOPIC = "persistent://public/default/t"
RATE = 100


def defined(rates: GroupRates) -> Definitions:
    return Definitions({"all": rates}, {"public/default": "all"})


DISPATCH = defined(GroupRates(dispatch=GroupRate(RATE)))
PUBLISH = defined(GroupRates(publish=GroupRate(RATE)))


@asynccontextmanager
async def limited(directory: Path, definitions: Definitions = DISPATCH) -> AsyncIterator[Proxied]:
    async with (
        running(directory, keep_alive_ns=KEEP_ALIVE_NS) as broker,
        proxied(broker, authenticates=False) as running_proxy,
    ):
        running_proxy.services.groups.define(definitions)
        yield running_proxy


async def client_of(proxy: Proxied) -> Client:
    client = await Client.open(proxy.port)
    client.write(frame(Type.CONNECT, client_version="test", protocol_version=20, proxy_to_broker_url=proxy.target))
    await client.expect(Type.CONNECTED)
    return client


async def stored(proxy: Proxied, count: int, topic: str = TOPIC) -> None:
    """Publish to the broker directly."""
    producer = await Client.producing(proxy.broker.port, topic=topic)
    await producer.published(*(b"%d" % number for number in range(count)))


async def subscribe(client: Client, consumer_id: int = 0, topic: str = TOPIC, *, kind: int = 1) -> None:
    await client.request(
        Type.SUBSCRIBE, Type.SUCCESS, topic=topic, subscription="s", consumer_id=consumer_id, subType=kind,
        initialPosition=1,
    )  # fmt: skip


def flow(client: Client, permits: int, consumer_id: int = 0) -> None:
    client.write(frame(Type.FLOW, consumer_id=consumer_id, messagePermits=permits))


async def take(client: Client, count: int) -> list[int]:
    """The consumers of the next messages."""
    return [(await client.expect(Type.MESSAGE)).message.consumer_id for _ in range(count)]


async def nothing_comes(client: Client, seconds: float) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await client.reader.readexactly(1)


def group_of(proxy: Proxied) -> Group:
    return proxy.services.groups.in_use["all"]


def nobody_is_left(group: Group) -> bool:
    line = group.dispatch
    return (group.topics, line.consumers, line.permits, line.waiting) == (0, 0, 0, 0)


async def test_messages_come_at_the_rate_of_the_group_and_are_counted(tmp_path: Path) -> None:
    async with limited(tmp_path) as proxy:
        await stored(proxy, 3 * RATE)
        client = await client_of(proxy)
        await subscribe(client)
        flow(client, 1_000)
        start_s = asyncio.get_running_loop().time()
        await take(client, 3 * RATE)
        assert asyncio.get_running_loop().time() - start_s == pytest.approx(3, abs=0.2)
        assert group_of(proxy).limiter.dispatch.messages_passed == 3 * RATE


async def test_pings_do_not_wait_while_permits_do(tmp_path: Path) -> None:
    async with limited(tmp_path) as proxy:
        await stored(proxy, 10)
        client = await client_of(proxy)
        await subscribe(client)
        group_of(proxy).dispatch.limiter.charge(1_000, 0, proxy.broker.clock.monotonic_ns())
        flow(client, 100)
        client.write(frame(Type.PING))
        await client.expect(Type.PONG)
        await nothing_comes(client, 5)


async def test_pings_pass_while_sends_are_held(tmp_path: Path) -> None:
    async with limited(tmp_path, PUBLISH) as proxy:
        client = await client_of(proxy)
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        client.write(b"".join(send(0, number, entry(b"x", sequence_id=number)) for number in range(5 * RATE)))
        kinds = []
        for _ in range(5):
            client.write(frame(Type.PING))
            while (kind := (await client.read()).type) != Type.PONG:
                kinds.append(kind)
            await asyncio.sleep(0.5)
        assert set(kinds) <= {Type.SEND_RECEIPT}
        assert 1 <= len(kinds) < 4 * RATE
        await client.receipts(5 * RATE - len(kinds))


async def test_a_client_that_sends_on_is_muted_when_it_holds_as_much_as_it_may(tmp_path: Path) -> None:
    async with limited(tmp_path, defined(GroupRates(publish=GroupRate(1)))) as proxy:
        client, other = await client_of(proxy), await client_of(proxy)
        for one in (client, other):
            await one.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        connection, _ = proxy.connections.all()
        held = proxy.services.held
        half = proxy.connections.memory.size // 16 // (64 * KIB)
        client.publish(*[bytes(64 * KIB)] * half)
        await until(lambda: held.sends == half - 1)
        assert not connection.muted, "there is memory for more"
        client.publish(*[bytes(64 * KIB)] * (half + 10), first=half)
        await until(lambda: bool(connection.muted))
        assert [(mute.reason, mute.owner) for mute in connection.muted.snapshot()] == [(HoldKind.GROUP_QUOTA, "all")]
        other.write(frame(Type.PING))
        await other.expect(Type.PONG)
        proxy.services.groups.define(Definitions())
        await client.receipts(2 * half + 10)
        assert (bool(connection.muted), held.bytes, held.sends) == (False, 0, 0)


async def test_a_client_that_is_not_read_is_kept_alive_at_the_broker(tmp_path: Path) -> None:
    interval_ns = 30 * NS_PER_S
    async with (
        running(tmp_path, keep_alive_ns=interval_ns) as broker,
        proxied(broker, authenticates=False, keep_alive_ns=interval_ns) as proxy,
    ):
        proxy.services.groups.define(PUBLISH)
        client = await client_of(proxy)
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        group_of(proxy).limiter.publish.charge(300 * RATE, 0, broker.clock.monotonic_ns())
        large = entry(bytes(MIB - 1_000), sequence_id=0)
        for _ in range(4):
            client.write(send(0, 0, large))
        (connection,) = proxy.connections.all()
        await until(lambda: bool(connection.muted))
        await asyncio.sleep(250)
        assert (bool(connection.muted), proxy.closed) == (True, [])


async def test_a_consumer_that_closes_while_its_permits_wait_leaves_nothing(tmp_path: Path) -> None:
    async with limited(tmp_path) as proxy:
        await stored(proxy, RATE)
        client = await client_of(proxy)
        await subscribe(client)
        group = group_of(proxy)
        group.dispatch.limiter.charge(1_000, 0, proxy.broker.clock.monotonic_ns())
        flow(client, 100)
        await until(lambda: group.dispatch.waiting)
        await client.request(Type.CLOSE_CONSUMER, Type.SUCCESS, consumer_id=0)
        assert nobody_is_left(group)
        flow(client, 100)
        await nothing_comes(client, 30)
        await subscribe(client)
        flow(client, 100)
        await take(client, RATE)


async def test_a_client_that_is_gone_leaves_nothing(tmp_path: Path) -> None:
    async with limited(tmp_path) as proxy:
        await stored(proxy, 3 * RATE)
        client = await client_of(proxy)
        await subscribe(client)
        flow(client, 1_000)
        await take(client, 10)
        group = group_of(proxy)
        assert proxy.services.sessions_memory.used_bytes > 0
        client.writer.close()
        await until(lambda: nobody_is_left(group))
        await until(lambda: proxy.services.sessions_memory.used_bytes == 0)


async def test_a_seek_begins_again_with_the_same_consumer(tmp_path: Path) -> None:
    async with limited(tmp_path) as proxy:
        await stored(proxy, RATE)
        client = await client_of(proxy)
        await subscribe(client)
        flow(client, 1_000)
        await take(client, RATE)
        # The broker closes the consumer, and the client subscribes again with the same id.
        client.write(frame(Type.SEEK, consumer_id=0, request_id=77, message_id={"ledgerId": 0, "entryId": 0}))
        kinds = {(await client.read()).type for _ in range(2)}
        assert kinds == {Type.SUCCESS, Type.CLOSE_CONSUMER}
        await subscribe(client)
        flow(client, 1_000)
        assert len(await take(client, RATE - 1)) == RATE - 1
        assert group_of(proxy).dispatch.consumers == 1


async def test_redelivery_costs_the_rate_again_and_needs_only_permits(tmp_path: Path) -> None:
    async with limited(tmp_path) as proxy:
        await stored(proxy, RATE)
        client = await client_of(proxy)
        await subscribe(client)
        flow(client, RATE)
        await take(client, RATE)
        client.write(frame(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=0))
        flow(client, RATE)
        await take(client, RATE)
        assert group_of(proxy).limiter.dispatch.messages_passed == 2 * RATE


async def test_an_unsubscribe_that_fails_leaves_the_consumer_limited(tmp_path: Path) -> None:
    async with limited(tmp_path) as proxy:
        await stored(proxy, 3 * RATE)
        client = await client_of(proxy)
        await subscribe(client)
        await subscribe(client, 1)
        answer = await client.request(Type.UNSUBSCRIBE, Type.ERROR, consumer_id=0)
        assert answer.error.message
        flow(client, 1_000)
        start_s = asyncio.get_running_loop().time()
        await take(client, 3 * RATE)
        assert asyncio.get_running_loop().time() - start_s >= 2.5


async def test_consumers_that_unsubscribe_are_forgotten_but_for_the_last(tmp_path: Path) -> None:
    async with limited(tmp_path) as proxy:
        client = await client_of(proxy)
        for number in range(3 * UNSUBSCRIBING_MAX):
            await subscribe(client, number)
            await client.request(Type.UNSUBSCRIBE, Type.SUCCESS, consumer_id=number)
        assert group_of(proxy).dispatch.consumers == UNSUBSCRIBING_MAX


async def test_a_group_that_comes_limits_older_consumers_and_one_that_goes_lets_all_pass(tmp_path: Path) -> None:
    async with limited(tmp_path, Definitions()) as proxy:
        await stored(proxy, 12 * RATE)
        client = await client_of(proxy)
        await subscribe(client)
        flow(client, RATE)
        await take(client, RATE)
        proxy.services.groups.define(DISPATCH)
        start_s = asyncio.get_running_loop().time()
        for _ in range(5):
            flow(client, RATE)
            await take(client, RATE)
        assert asyncio.get_running_loop().time() - start_s >= 3.5, "each FLOW waits for the one before"
        flow(client, 6 * RATE)
        group = group_of(proxy)
        proxy.services.groups.define(Definitions())
        start_s = asyncio.get_running_loop().time()
        await take(client, 6 * RATE)
        assert asyncio.get_running_loop().time() - start_s < 1
        assert nobody_is_left(group)


async def test_a_consumer_whose_group_is_found_out_later_is_limited_by_messages(tmp_path: Path) -> None:
    async with limited(tmp_path, Definitions()) as proxy:
        groups = proxy.services.groups
        known: list[int] = []
        groups.is_known = lambda _topic: bool(known)
        await stored(proxy, 4 * RATE)
        client = await client_of(proxy)
        await subscribe(client)
        flow(client, RATE)
        await take(client, RATE)
        known.append(1)
        groups.define(DISPATCH)
        flow(client, 1_000)
        start_s = asyncio.get_running_loop().time()
        await take(client, RATE // 2)
        assert asyncio.get_running_loop().time() - start_s >= 0.3, "not a whole FLOW at once"
        await take(client, 2 * RATE + RATE // 2)
        assert asyncio.get_running_loop().time() - start_s == pytest.approx(3, abs=0.3)


async def test_without_a_group_messages_are_not_counted_and_flows_pass_as_they_came(tmp_path: Path) -> None:
    async with limited(tmp_path, Definitions()) as proxy:
        groups = proxy.services.groups
        known: list[int] = []
        groups.is_known = lambda _topic: bool(known)
        await stored(proxy, 3 * RATE)
        client = await client_of(proxy)
        memory = proxy.services.sessions_memory
        await subscribe(client)
        counting = memory.used_bytes
        flow(client, 1_000)
        await take(client, 3 * RATE)
        known.append(1)
        groups.look_again()
        assert memory.used_bytes < counting


class BlockedUpstream:
    """A socket that takes nothing until it is told to."""

    unsent_bytes = 1

    def __init__(self) -> None:
        self.sent: list[Callable[[], None]] = []

    def cork(self) -> None:
        """Nothing is sent anyway."""

    def uncork(self) -> None:
        """Nothing is sent."""

    def write(self, _buffers: object, _nbytes: int, sent: Callable[[], None] | None = None) -> None:
        if sent is not None:
            self.sent.append(sent)

    def close(self, _reason: str) -> None:
        for sent in self.sent:
            sent()


async def test_commands_that_were_read_without_memory_are_charged_until_the_broker_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Relay] = []

    class Seen(Relay):
        def __init__(self, *parts: Any, **named: Any) -> None:  # noqa: ANN401
            super().__init__(*parts, **named)
            made.append(self)

    monkeypatch.setattr("penstock.proxy.session.Relay", Seen)
    async with limited(tmp_path, Definitions()) as proxy:
        client = await client_of(proxy)
        memory, blocked = proxy.services.sessions_memory, BlockedUpstream()
        relay = made[0]
        real, relay._upstream = relay._upstream, cast("Any", blocked)  # noqa: SLF001
        before = memory.used_bytes
        relay.client_sent([Relayed(b"x" * 1_000)], None)
        relay.client_sent([Relayed(b"x" * 500)], None)
        assert memory.used_bytes == before + 1_500
        blocked.sent.pop(0)()
        assert memory.used_bytes == before + 500
        blocked.sent.pop(0)()
        assert memory.used_bytes == before
        relay._upstream = real  # noqa: SLF001
        client.write(frame(Type.PING))
        await client.expect(Type.PONG)


async def test_changed_definitions_reach_few_consumers_in_each_turn_and_then_all_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.proxy.proxy.LOOKS_NS", 0)  # one consumer in each turn
    async with limited(tmp_path, Definitions()) as proxy:
        groups = proxy.services.groups
        client, other = await client_of(proxy), await client_of(proxy)
        for number in range(20):
            await subscribe(client, number)
            await subscribe(other, number)
        groups.define(DISPATCH)
        for _ in range(5):
            await asyncio.sleep(0)
        assert 0 < groups.in_use["all"].topics <= 6
        groups.define(defined(GroupRates(dispatch=GroupRate(2 * RATE))))
        await client.request(Type.CLOSE_CONSUMER, Type.SUCCESS, consumer_id=19)
        await other.close()
        await until(lambda: groups.in_use["all"].topics == 19)
        flow(client, 10, 18)
        await stored(proxy, 10)
        assert await take(client, 10) == [18] * 10

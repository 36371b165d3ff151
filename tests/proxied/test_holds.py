# SPDX-License-Identifier: Apache-2.0
"""Situations in which clients of a proxy wait, or do not: the first finding is the reason, nothing else is claimed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.errors import NotFound
from penstock.core.names import TopicName
from penstock.core.units import KIB
from penstock.governance.holds import HoldKind
from penstock.governance.muting import MUTES
from penstock.governance.resource_group import GroupRate, GroupRates
from penstock.net.listing_memory import LimitType, Owner
from penstock.proxy.why import Why
from penstock.testing.client import Type, frame
from tests.net.harness import turns, until
from tests.proxied.test_limits import DISPATCH, PUBLISH, TOPIC, client_of, defined, limited, stored

if TYPE_CHECKING:
    from pathlib import Path

    from tests.net.harness import Client
    from tests.proxied.harness import Proxied

UNLIMITED = defined(GroupRates())


def why(proxy: Proxied) -> Why:
    return Why(proxy.services, proxy.connections, None, [proxy.services.sessions_memory])


async def findings(proxy: Proxied) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await why(proxy).of_topic(TopicName.parse(TOPIC)))["findings"]
    return found


async def only(proxy: Proxied, reason: str) -> dict[str, Any]:
    (found,) = await findings(proxy)
    assert found["reason"] == reason
    return found


async def passes(ms: int) -> None:
    await asyncio.sleep(ms / 1_000)
    await turns()


async def producing(proxy: Proxied) -> Client:
    client = await client_of(proxy)
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
    return client


async def consuming(proxy: Proxied, permits: int = 10_000) -> Client:
    client = await client_of(proxy)
    fields = {"topic": TOPIC, "subscription": "s", "consumer_id": 0, "subType": 1, "initialPosition": 1}
    await client.request(Type.SUBSCRIBE, Type.SUCCESS, **fields)
    client.write(frame(Type.FLOW, consumer_id=0, messagePermits=permits))
    return client


@pytest.mark.parametrize("groups", [UNLIMITED, PUBLISH])
async def test_a_producer_below_its_quota_is_not_slowed(tmp_path: Path, groups: Any) -> None:  # noqa: ANN401
    async with limited(tmp_path, groups) as proxy:
        client = await producing(proxy)
        for number in range(40):
            client.publish(b"x", first=number)
            await passes(100)
            assert await findings(proxy) == []


async def test_a_consumer_that_keeps_up_is_not_slowed(tmp_path: Path) -> None:
    async with limited(tmp_path) as proxy:
        await stored(proxy, 1)
        await consuming(proxy)
        await passes(5_000)
        assert await findings(proxy) == []


async def test_a_publish_quota_is_the_reason_since_it_began_to_hold(tmp_path: Path) -> None:
    async with limited(tmp_path, PUBLISH) as proxy:
        client = await producing(proxy)
        for number in range(10):
            client.publish(*[b"x"] * 150, first=150 * number)
            await passes(1_000)
        found = await only(proxy, "group-quota")
        assert found["what"].startswith(f"producer 0 of {TOPIC} at 127.0.0.1:")
        assert found["limit"] == "publish quota of resource group all"
        assert found["forMs"] >= 8_000
        assert found["numbers"]["got_messages_per_s"] == pytest.approx(100, rel=0.1)
        assert found["numbers"]["wanted_messages_per_s"] == pytest.approx(150, rel=0.1)
        proxy.services.groups.define(UNLIMITED)
        await passes(100)
        assert await findings(proxy) == []


async def test_a_dispatch_quota_is_the_reason_since_it_began_to_hold(tmp_path: Path) -> None:
    async with limited(tmp_path, DISPATCH) as proxy:
        await stored(proxy, 2_000)
        await consuming(proxy)
        await passes(10_000)
        found = await only(proxy, "group-quota")
        assert found["what"].startswith(f"consumer 0 of {TOPIC} at ")
        assert found["limit"] == "dispatch quota of resource group all"
        assert found["forMs"] >= 8_000
        assert found["numbers"]["held_permits"] > 0
        assert await why(proxy).counts() == {HoldKind.GROUP_QUOTA: 1}


async def test_so_much_that_is_held_that_the_connection_is_not_read_is_said_of_the_same_limit(tmp_path: Path) -> None:
    async with limited(tmp_path, defined(GroupRates(publish=GroupRate(1)))) as proxy:
        client = await producing(proxy)
        client.publish(*[bytes(64 * KIB)] * 60)
        await until(lambda: any(one.muted for one in proxy.connections.all()))
        of_producer, of_connection = await findings(proxy)
        assert of_producer["limit"] == "publish quota of resource group all"
        more = ": its connection holds as much of it as it may, and is not read"
        assert of_connection["limit"] == of_producer["limit"] + more
        assert of_connection["what"].startswith("client 127.0.0.1:")


async def test_a_client_that_does_not_read_is_named(tmp_path: Path) -> None:
    async with limited(tmp_path, UNLIMITED) as proxy:
        producer = await producing(proxy)
        for number in range(40):
            producer.publish(bytes(900 * KIB), first=number)
        await producer.receipts(40)
        await consuming(proxy)
        await passes(5_000)
        found = await only(proxy, "outbound")
        assert found["what"].startswith("client 127.0.0.1:")
        assert found["numbers"]["unsent_bytes"] > 0


@pytest.mark.parametrize("reason", MUTES)
async def test_every_reason_of_muting_has_a_limit_and_a_remedy(tmp_path: Path, reason: HoldKind) -> None:
    async with limited(tmp_path, UNLIMITED) as proxy:
        await producing(proxy)
        (connection,) = proxy.connections.all()
        connection.mute(reason)
        found = await only(proxy, reason.value)
        assert found["limit"]
        assert found["liftedBy"]
        assert found["forMs"] is not None
        connection.unmute(reason)
        assert await findings(proxy) == []


async def test_a_listing_that_waits_for_memory_is_named_with_its_setting(tmp_path: Path) -> None:
    async with limited(tmp_path, UNLIMITED) as proxy:
        limiter = proxy.services.listings.limiter.limiter(LimitType.HEAP_MEMORY)
        everything = limiter.snapshot().permits_max
        held = await limiter.acquire(everything, owner=Owner("public", 1))
        waiting = asyncio.ensure_future(limiter.acquire(1_000, owner=Owner("public", 2)))
        await passes(3_000)
        (found,) = (await why(proxy).of_tenant("public"))["findings"]
        assert found["reason"] == "topic-list-memory"
        assert found["limit"] == "heap memory of topic listings is used up"
        assert "maxTopicListInFlightHeapMemSizeMB" in found["liftedBy"]
        assert found["forMs"] >= 2_900
        limiter.release(held)
        limiter.release(await waiting)


async def test_a_row_of_memory_that_refuses_clients_is_named_with_its_setting(tmp_path: Path) -> None:
    async with limited(tmp_path) as proxy:
        client, row = await producing(proxy), proxy.services.sessions_memory
        assert await findings(proxy) == []
        row.limit_bytes = row.used_bytes
        refused = await client.request(Type.PRODUCER, Type.ERROR, topic=TOPIC, producer_id=1)
        assert (row.refused_total, await why(proxy).counts()) == (1, {HoldKind.MEMORY_ROW: 1})
        assert "raise sessionsMB" in refused.error.message
        (found,) = await findings(proxy)
        assert (found["reason"], found["effect"]) == ("memory-row", "would-refuse")
        assert found["limit"] == "there is no memory for more producers, consumers and watchers"
        assert "sessionsMB is raised" in found["liftedBy"]
        row.limit_bytes *= 2
        assert await findings(proxy) == []


async def test_whom_no_client_uses_is_not_found(tmp_path: Path) -> None:
    async with limited(tmp_path, UNLIMITED) as proxy:
        with pytest.raises(NotFound):
            await why(proxy).of_tenant("nobody")

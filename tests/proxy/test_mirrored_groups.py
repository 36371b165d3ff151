# SPDX-License-Identifier: Apache-2.0
"""Groups of the cluster: what is asked, how much at a time, and what happens when there is no answer."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from penstock.core.names import TopicName
from penstock.governance.resource_group import GroupRate, GroupRates
from penstock.proxy.groups import ProxyGroups
from penstock.proxy.mirrored_groups import ASKED_PER_CYCLE, AT_A_TIME, CYCLE_S, MirroredGroups
from penstock.testing.loop import VirtualClock, VirtualLoop
from tests.proxy.polled import FakePolls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

GROUPS = "/admin/v2/resourcegroups"
GOLD = {"publishRateInMsgs": 1_000, "publishRateInBytes": None, "dispatchRateInMsgs": -1, "dispatchRateInBytes": 5_000}


def topic(namespace: str = "shop/orders") -> TopicName:
    return TopicName.parse(f"persistent://{namespace}/t")


@asynccontextmanager
async def mirroring(polls: FakePolls) -> AsyncIterator[ProxyGroups]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    groups = ProxyGroups(VirtualClock(loop.virtual_time), loop)
    mirror = MirroredGroups(polls, groups, loop)
    await mirror.start()
    yield groups
    await mirror.stop()


def cluster(**attached: str) -> FakePolls:
    polls = FakePolls()
    polls.answers[GROUPS] = ["gold"]
    polls.answers[f"{GROUPS}/gold"] = GOLD
    for namespace in ("orders", "bills"):
        polls.answers[f"/admin/v2/namespaces/shop/{namespace}/resourcegroup"] = attached.get(namespace)
    return polls


async def test_the_groups_of_a_cluster_limit_the_topics_of_their_namespaces() -> None:
    polls = cluster(orders="gold")
    async with mirroring(polls) as groups:
        changes: list[int] = []
        groups.when_changed(lambda: changes.append(1))
        assert not groups.is_known(topic())
        assert groups.of_topic(topic()) == ()
        await asyncio.sleep(1)
        assert groups.is_known(topic())
        assert changes == [1]
        (gold,) = groups.of_topic(topic())
        assert gold.quota == GroupRates(GroupRate(1_000, None), GroupRate(None, 5_000))
        assert not groups.is_known(topic("shop/bills"))
        await asyncio.sleep(1)
        assert groups.is_known(topic("shop/bills"))
        assert groups.of_topic(topic("shop/bills")) == ()
        assert len(changes) == 2, "clients are looked at again, although no definition changed"


async def test_changes_of_the_cluster_are_followed() -> None:
    polls = cluster(orders="gold")
    async with mirroring(polls) as groups:
        groups.is_known(topic())
        await asyncio.sleep(1)
        (gold,) = groups.of_topic(topic())
        polls.answers[f"{GROUPS}/gold"] = {**GOLD, "publishRateInMsgs": 7}
        await asyncio.sleep(2 * CYCLE_S)
        assert gold.quota.publish.messages == 7
        polls.answers["/admin/v2/namespaces/shop/orders/resourcegroup"] = ""
        await asyncio.sleep(CYCLE_S + 1)
        assert groups.of_topic(topic()) == ()
        polls.answers[GROUPS] = []
        await asyncio.sleep(CYCLE_S + 1)
        assert not groups.in_use


async def test_what_cannot_be_asked_stays_as_it_was_known(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    polls = cluster(orders="gold")
    async with mirroring(polls) as groups:
        groups.is_known(topic())
        await asyncio.sleep(1)
        polls.fails_s = 5.0
        await asyncio.sleep(10 * CYCLE_S)
        groups.is_known(topic("shop/bills"))
        assert groups.of_topic(topic())
        assert caplog.text.count("stay as they were known") == 1
        polls.fails_s = None
        await asyncio.sleep(3 * CYCLE_S)
        assert groups.is_known(topic("shop/bills"))
        assert "known again" in caplog.text


async def test_a_cycle_asks_a_bounded_number_of_questions_and_all_in_turns() -> None:
    polls = FakePolls()
    names = [f"g{number}" for number in range(350)]
    polls.answers[GROUPS] = names
    for name in names:
        polls.answers[f"{GROUPS}/{name}"] = GOLD
    async with mirroring(polls) as groups:
        assert len(polls.asked) == 1 + ASKED_PER_CYCLE
        await asyncio.sleep(4 * CYCLE_S)
        assert len(groups.definitions.quotas) == 350
        assert polls.at_a_time <= AT_A_TIME
        for number in range(150):
            polls.answers[f"/admin/v2/namespaces/shop/n{number}/resourcegroup"] = "g7"
            groups.is_known(topic(f"shop/n{number}"))
        await asyncio.sleep(1)
        assert all(groups.of_topic(topic(f"shop/n{number}")) for number in range(150))
        before = len(polls.asked)
        await asyncio.sleep(CYCLE_S)
        assert len(polls.asked) - before <= 1 + 2 * ASKED_PER_CYCLE


async def test_a_namespace_that_does_not_exist_is_asked_for_once_in_a_cycle() -> None:
    polls = cluster()
    async with mirroring(polls) as groups:
        for _ in range(5):
            assert not groups.is_known(topic("none/none"))
            await asyncio.sleep(0.1)
        assert polls.asked.count("/admin/v2/namespaces/none/none/resourcegroup") == 1


async def test_nonsense_of_the_cluster_is_no_limit_and_no_end() -> None:
    polls = cluster(orders="gold")
    polls.answers[GROUPS] = ["gold", 7, "x" * 5_000, "gone"]
    polls.answers[f"{GROUPS}/gold"] = {
        "publishRateInMsgs": "many",
        "dispatchRateInMsgs": True,
        "publishRateInBytes": 2**70,
    }
    async with mirroring(polls) as groups:
        groups.is_known(topic())
        await asyncio.sleep(1)
        assert groups.definitions.quotas == {"gold": GroupRates()}
        polls.answers[GROUPS] = {"not": "a list"}
        await asyncio.sleep(2 * CYCLE_S)
        assert groups.definitions.quotas == {"gold": GroupRates()}

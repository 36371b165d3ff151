# SPDX-License-Identifier: Apache-2.0
"""A live broker observes a quota beside the one in force, as an administrator asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.errors import NotFound, PreconditionFailed
from penstock.governance.resource_group import GroupRate, GroupRates
from tests.broker.test_usage_records import grouped
from tests.net.harness import Client, running, topic_of, until

if TYPE_CHECKING:
    from pathlib import Path

NO_LIMIT = {"publishRateInMsgs": -1}


async def test_an_observed_quota_that_is_in_force_counts_the_same_and_slows_nobody_else(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        await grouped(harness)  # 100 messages a second
        client = await Client.producing(harness.port)
        await client.published(b"hello")
        groups = harness.broker.groups
        group = groups.in_use["gold"]
        now_ns = harness.clock.monotonic_ns
        group.observe(GroupRates(GroupRate(messages=100)), now_ns())
        before_ns = group.limiter.publish.limited_ns(now_ns())
        client.publish(*[b"hello"] * 400, first=1)
        await until(lambda: topic_of(harness).messages_in == 401)
        observed = group.limiter.publish.observed
        assert observed is not None
        waited_ns = group.limiter.publish.limited_ns(now_ns()) - before_ns
        assert waited_ns > 2 * 10**9
        assert observed.limited_ns(now_ns()) == pytest.approx(waited_ns, rel=0.02)
        assert observed.arrived.messages == 400

        group.observe(GroupRates(GroupRate(messages=1_000_000)), now_ns())
        group.observe(None, now_ns())
        assert group.limiter.publish.observed is None


async def test_the_admin_observes_and_is_told_what_is_wrong(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        admin = administration(harness.broker).resource_groups
        with pytest.raises(NotFound, match="ResourceGroup does not exist"):
            admin.observe("gold", {"publishRateInMsgs": 10})
        await grouped(harness)
        with pytest.raises(NotFound, match="no topic of resource group 'gold' is in use on this broker"):
            admin.observe("gold", {"publishRateInMsgs": 10})
        assert admin.observed("gold") == {"publish": None, "dispatch": None}
        admin.observe_no_more("gold")
        client = await Client.producing(harness.port)
        await client.published(b"hello")
        with pytest.raises(PreconditionFailed, match="nothing to observe for resource group 'gold'"):
            admin.observe("gold", NO_LIMIT)
        with pytest.raises(PreconditionFailed, match="publishRateInMsgs of resource group 'gold' must be 1 or more"):
            admin.observe("gold", {"publishRateInMsgs": 0})
        assert admin.observed("gold") == {"publish": None, "dispatch": None}
        admin.observe("gold", {"publishRateInMsgs": 10})
        await client.published(*[b"hello"] * 40, first=1)
        await client.published(b"hello", first=41)
        await until(lambda: (admin.observed("gold")["publish"] or {"limitedMs": 0})["limitedMs"] > 3_000)
        found = admin.observed("gold")["publish"]
        assert found is not None
        assert (found["shareInMsgs"], found["shareInBytes"], found["arrivedMessages"]) == (10, -1, 41)
        assert found["limitedInForceMs"] < found["limitedMs"] <= found["observedMs"]
        admin.observe_no_more("gold")
        assert admin.observed("gold")["publish"] is None


async def test_a_member_of_a_cluster_observes_its_part(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        await grouped(harness)
        await (await Client.producing(harness.port)).published(b"hello")
        group = harness.broker.groups.in_use["gold"]
        now_ns = harness.clock.monotonic_ns()
        group.observe(GroupRates(GroupRate(messages=400, bytes=1_000)), now_ns)
        group.set_share(GroupRates(GroupRate(messages=25)), now_ns)
        observed = group.limiter.publish.observed
        assert observed is not None
        assert observed.share == GroupRate(messages=100.0, bytes=1_000)  # a quarter, as of the quota of 100

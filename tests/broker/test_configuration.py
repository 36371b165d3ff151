# SPDX-License-Identifier: Apache-2.0
"""Configuration that changes while the broker runs: the real settings, and a whole broker on the test's loop."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from penstock.broker.configuration import Configuration, usable
from penstock.core.errors import PreconditionFailed
from penstock.core.units import GIB, MIB
from penstock.net.listing_memory import LimitType
from penstock.settings import MachineFacts, load
from penstock.settings.limits import Live
from tests.net.harness import Client, Harness, running, turns, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.broker.configuration import Keys

FACTS = MachineFacts(ram_bytes=8 * GIB, cgroup_limit_bytes=None, hostname="host-1")


def live(**flags: str) -> Live:
    return Live(load(flags=flags, facts=FACTS))


@asynccontextmanager
async def configured(directory: Path, keys: Live | None = None) -> AsyncIterator[tuple[Harness, Configuration]]:
    async with running(directory, keys=lambda _: keys or live()) as harness:
        broker = harness.broker
        broker.configuration.restore()
        yield harness, broker.configuration


# -- which stored values can be used


def test_all_that_is_stored_is_used_while_it_goes_together() -> None:
    stored = {"maxProducersPerTopic": "3", "logLevel": "debug"}
    assert usable(live(), stored) == (stored, {})


def test_a_stored_value_that_cannot_be_is_left_out_by_its_name_and_the_others_count() -> None:
    changes, errors = usable(live(), {"maxProducersPerTopic": "many", "logLevel": "debug"})
    assert changes == {"logLevel": "debug"}
    assert "whole number" in errors["maxProducersPerTopic"]


def test_a_stored_key_that_is_no_dynamic_one_any_more_is_left_out() -> None:
    changes, errors = usable(live(), {"clusterName": "eu", "keyOfTheFuture": "1"})
    assert changes == {}
    assert sorted(errors) == ["clusterName", "keyOfTheFuture"]


def test_a_stored_value_that_breaks_a_rule_with_the_file_is_left_out() -> None:
    changes, errors = usable(live(memoryLimitMB="512"), {"tailCacheMB": "4000", "logLevel": "debug"})
    assert changes == {"logLevel": "debug"}
    assert "memory budget" in errors["tailCacheMB"]


# -- changing


async def test_a_change_is_in_force_and_stored_when_it_is_answered(tmp_path: Path) -> None:
    async with configured(tmp_path) as (harness, configuration):
        await configuration.put("maxProducersPerTopic", "1")
        assert harness.broker.limits.policies.max_producers_per_topic == 1
        assert harness.broker.catalog.configuration() == {"maxProducersPerTopic": "1"}
        assert configuration.overridden() == {"maxProducersPerTopic": "1"}
        assert configuration.runtime()["maxProducersPerTopic"] == "1"


async def test_topics_in_use_feel_a_change_at_once(tmp_path: Path) -> None:
    async with configured(tmp_path) as (harness, configuration):
        await Client.producing(harness.port)
        topic = harness.broker.topics.loaded()[0]
        assert topic.policies.max_producers == 0
        await configuration.put("maxProducersPerTopic", "1")
        assert topic.policies.max_producers == 1
        await configuration.remove("maxProducersPerTopic")
        assert topic.policies.max_producers == 0


async def test_taking_a_change_back_leaves_what_the_start_said(tmp_path: Path) -> None:
    async with configured(tmp_path, live(maxConsumersPerTopic="7")) as (harness, configuration):
        await configuration.put("maxConsumersPerTopic", "9")
        await configuration.remove("maxConsumersPerTopic")
        assert harness.broker.limits.policies.max_consumers_per_topic == 7
        assert configuration.overridden() == {}


async def test_taking_back_what_was_never_changed_changes_nothing(tmp_path: Path) -> None:
    async with configured(tmp_path) as (harness, configuration):
        await configuration.remove("maxConsumersPerTopic")
        assert harness.broker.limits.policies.max_consumers_per_topic == 0


@pytest.mark.parametrize(
    ("key", "why"), [("clusterName", "read at the start only"), ("keyOfTheFuture", "there is no keyOfTheFuture")]
)
async def test_what_cannot_be_changed_is_refused_in_pulsars_words(tmp_path: Path, key: str, why: str) -> None:
    async with configured(tmp_path) as (harness, configuration):
        for attempt in (configuration.put(key, "1"), configuration.remove(key)):
            with pytest.raises(PreconditionFailed, match="Can't update non-dynamic configuration") as refused:
                await attempt
            assert why in str(refused.value)
        assert harness.broker.catalog.configuration() == {}


@pytest.mark.parametrize(
    ("key", "value"), [("maxProducersPerTopic", "-1"), ("allowAutoTopicCreation", "yes"), ("tailCacheMB", "999999")]
)
async def test_a_value_that_cannot_be_is_refused_in_pulsars_words_and_not_stored(
    tmp_path: Path, key: str, value: str
) -> None:
    async with configured(tmp_path) as (harness, configuration):
        before = harness.broker.limits
        with pytest.raises(PreconditionFailed, match=r"^ Invalid dynamic-config value: "):
            await configuration.put(key, value)
        assert harness.broker.limits is before
        assert harness.broker.catalog.configuration() == {}


async def test_two_changes_at_once_are_both_in_force(tmp_path: Path) -> None:
    async with configured(tmp_path) as (harness, configuration):
        await asyncio.gather(configuration.put("maxProducersPerTopic", "1"), configuration.put("logLevel", "debug"))
        assert harness.broker.limits.policies.max_producers_per_topic == 1
        assert configuration.runtime()["logLevel"] == "debug"


async def test_the_cache_shrinks_when_its_size_is_changed(tmp_path: Path) -> None:
    async with configured(tmp_path) as (harness, configuration):
        await configuration.put("tailCacheMB", "0")
        assert harness.broker.tail_cache.limit_bytes == 0


async def test_what_does_not_concern_the_broker_is_carried_out_by_whoever_asked_for_it(tmp_path: Path) -> None:
    levels: list[str] = []

    def remember(keys: Keys) -> None:
        levels.append(keys.values()["logLevel"])

    async with running(tmp_path) as harness:
        configuration = Configuration(harness.broker.catalog, harness.broker.changes, live(), remember)
        await configuration.put("logLevel", "debug")
        await configuration.remove("logLevel")
    assert levels == ["debug", "info"]


# -- at the next start


async def test_changes_are_in_force_again_after_a_restart(tmp_path: Path) -> None:
    async with configured(tmp_path) as (_, configuration):
        await configuration.put("maxProducersPerTopic", "1")
    async with configured(tmp_path, live(maxProducersPerTopic="5")) as (harness, _):
        assert harness.broker.limits.policies.max_producers_per_topic == 1


async def test_a_stored_value_that_is_no_good_any_more_is_told_by_name_and_does_not_stop_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as harness:
        catalog = harness.broker.catalog
        for key, value in (("maxProducersPerTopic", "many"), ("maxConsumersPerTopic", "2")):
            await harness.broker.changes.stored(partial(catalog.set_configuration, key, value))
    with caplog.at_level(logging.INFO):
        async with configured(tmp_path) as (harness, configuration):
            assert harness.broker.limits.policies.max_consumers_per_topic == 2
            assert harness.broker.limits.policies.max_producers_per_topic == 0
            (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
            assert "maxProducersPerTopic" in error.getMessage()
            assert any("maxConsumersPerTopic=2" in record.getMessage() for record in caplog.records)
            await configuration.remove("maxProducersPerTopic")
            assert configuration.overridden() == {"maxConsumersPerTopic": "2"}


async def test_a_broker_without_settings_of_its_own_has_nothing_to_change(harness: Harness) -> None:
    assert harness.broker.configuration.dynamic() == []
    with pytest.raises(PreconditionFailed, match="non-dynamic"):
        await harness.broker.configuration.put("logLevel", "debug")


async def test_a_change_that_nobody_waits_for_any_more_is_in_force_when_it_is_stored(tmp_path: Path) -> None:
    async with configured(tmp_path) as (harness, configuration):
        with harness.catalog_held():
            change = asyncio.ensure_future(configuration.put("maxProducersPerTopic", "3"))
            await turns(2)
            change.cancel()
            await asyncio.wait((change,))
        await until(lambda: configuration.overridden() == {"maxProducersPerTopic": "3"})
        await until(lambda: harness.broker.limits.policies.max_producers_per_topic == 3)


async def test_the_memory_of_listings_changes_while_others_wait_for_it(tmp_path: Path) -> None:
    async with configured(tmp_path) as (harness, configuration):
        limiter = harness.broker.listings
        await configuration.put("maxTopicListInFlightHeapMemSizeMB", "1")
        async with limiter.with_acquired_permits(MIB, LimitType.HEAP_MEMORY):
            waiting = asyncio.create_task(limiter.acquire(MIB, LimitType.HEAP_MEMORY))
            await turns()
            assert not waiting.done()
            await configuration.put("maxTopicListInFlightHeapMemSizeMB", "2")
            limiter.release(await waiting)
        await configuration.remove("maxTopicListInFlightHeapMemSizeMB")
        assert limiter.snapshot().heap.permits_max == 100 * MIB


async def test_adaptive_throttling_is_changed_at_run_time_but_for_its_first_key(tmp_path: Path) -> None:
    keys = live(adaptivePublisherThrottlingEnabled="true")
    async with configured(tmp_path, keys) as (harness, configuration):
        prefix = "adaptivePublisherThrottling"
        dynamic = {key.removeprefix(prefix): value for key, value in configuration.runtime().items() if prefix in key}
        assert len(dynamic) == 10
        assert {key for key in configuration.dynamic() if prefix in key} == {
            prefix + name for name in dynamic if name != "Enabled"
        }
        with pytest.raises(PreconditionFailed, match="read at the start only"):
            await configuration.put(f"{prefix}Enabled", "false")
        await configuration.put(f"{prefix}MemoryHighWatermarkPct", "0.9")
        await configuration.put(f"{prefix}MemoryLowWatermarkPct", "0.8")
        assert harness.broker.limits.adaptive_memory_low == 0.8
        with pytest.raises(
            PreconditionFailed, match=r"MemoryLowWatermarkPct=0.95 must be below .*MemoryHighWatermarkPct=0.9$"
        ):
            await configuration.put(f"{prefix}MemoryLowWatermarkPct", "0.95")
        with pytest.raises(PreconditionFailed, match=r"BacklogHighWatermarkPct=0\.5"):
            await configuration.put(f"{prefix}BacklogHighWatermarkPct", "0.5")
        for value in ("0", "1.5", "nan", "a lot"):
            with pytest.raises(PreconditionFailed, match="want a number above 0 and up to 1"):
                await configuration.put(f"{prefix}MinRateFactor", value)
        # Without its pair, a stored value may be wrong: it cannot be removed alone.
        with pytest.raises(PreconditionFailed, match="must be below"):
            await configuration.put(f"{prefix}MemoryHighWatermarkPct", "0.75")

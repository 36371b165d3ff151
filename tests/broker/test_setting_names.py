# SPDX-License-Identifier: Apache-2.0
"""Every name of a setting that can be changed at run time, with good, bad and absurd values, and with restarts.

The names, and what each takes, are read from the table of settings: a new setting is tested without a new test. Real
processes do a part of this in `tests/processes/test_settings_of_brokers.py`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

import pytest

from penstock.broker.configuration import usable
from penstock.core.errors import ConfigurationError, PreconditionFailed
from penstock.core.units import GIB
from penstock.settings import MachineFacts, load
from penstock.settings.limits import Live
from penstock.settings.model import ALIASES, FIELDS, KEYS
from tests.broker.cluster import several
from tests.net.harness import Client, Harness, running, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from pathlib import Path

FACTS = MachineFacts(ram_bytes=8 * GIB, cgroup_limit_bytes=None, hostname="host-1")
START = Live(load(facts=FACTS))
# All names, aliases included, with the key that each means.
NAMES = {name: key for name, key in {**{key: key for key in FIELDS}, **ALIASES}.items() if KEYS[FIELDS[key]].dynamic}
ALIAS, KEY = "resourceUsageTransportPublishIntervalInSecs", "resourceUsagePublishIntervalInSecs"

# What people, scripts and attackers write; each setting takes some of them.
POOL = (
    "true", "FALSE", "1", "2", "0.5", "0.6", "0.95", "20", " 300 ", "admin,ops", "debug", "Shared", "partitioned",
    "usage", "pulsar", "earliest", "delete_when_subscriptions_caught_up", "consumer_backlog_eviction",
)  # fmt: skip
ABSURD = (
    "", " ", "\0", "-1", "-9223372036854775809", "9" * 18, "9" * 19, "9" * 400, "9" * 5_000, "1e308", "1e-308", "nan",
    "inf", "-inf", "0x10", "٣", "null", "{}", "a" * 10_000, "tru\u0435", "\ud7ff\U0001f512", "../..", "%s%n", ",",
    "1;2",
)  # fmt: skip


@cache
def taken(key: str, value: str) -> bool:
    """Whether the setting can have this value, beside the others at the start."""
    try:
        KEYS[FIELDS[key]].parse(value.strip())
        START.changed({key: value.strip()})
    except (ValueError, ConfigurationError):
        return False
    return bool(value.strip())


@cache
def values(key: str) -> tuple[list[str], list[str]]:
    """Those that the setting takes, the default first, and those that it does not take."""
    everything = dict.fromkeys([START.values()[key], *POOL, *ABSURD])
    return [one for one in everything if taken(key, one)], [one for one in everything if not taken(key, one)]


@asynccontextmanager
async def one(directory: Path) -> AsyncIterator[Harness]:
    async with running(directory, keys=lambda _: START) as harness:
        harness.broker.configuration.restore()
        yield harness


@asynccontextmanager
async def two(directory: Path) -> AsyncIterator[list[Harness]]:
    async with several(directory, keys=lambda _: START) as harnesses:
        for harness in harnesses:
            harness.broker.configuration.restore()
        yield harnesses


async def store(harness: Harness, rows: Mapping[str, str]) -> None:
    """Store settings as another version may have done."""
    changes, catalog = harness.broker.changes, harness.broker.catalog
    await asyncio.gather(*(changes.stored(partial(catalog.set_configuration, *row)) for row in rows.items()))


def has(harness: Harness, key: str) -> bool:
    return key in harness.broker.catalog.configuration()


def has_not(harness: Harness, key: str) -> bool:
    return not has(harness, key)


def errors_of(records: Iterable[logging.LogRecord]) -> list[str]:
    return [record.getMessage() for record in records if record.levelno >= logging.ERROR]


# -- names


async def test_a_setting_is_changed_and_reset_by_any_of_its_names(tmp_path: Path) -> None:
    async with one(tmp_path) as harness:
        configuration = harness.broker.configuration
        assert {ALIAS, KEY} <= set(configuration.dynamic())
        await configuration.put(ALIAS, "2")
        assert harness.broker.limits.resource_usage_publish_interval_in_secs == 2
        assert harness.broker.catalog.configuration() == {KEY: "2"}
        assert configuration.overridden() == {KEY: "2", ALIAS: "2"}
        assert configuration.runtime()[ALIAS] == "2.0"
    async with one(tmp_path) as harness:
        assert harness.broker.limits.resource_usage_publish_interval_in_secs == 2
        await harness.broker.configuration.remove(ALIAS)
        assert harness.broker.configuration.overridden() == {}
        assert harness.broker.limits.resource_usage_publish_interval_in_secs == 1


async def test_what_an_earlier_version_stored_under_an_alias_is_understood_at_a_start(tmp_path: Path) -> None:
    async with one(tmp_path) as harness:
        await store(harness, {ALIAS: "2"})
    async with one(tmp_path) as harness:
        assert harness.broker.limits.resource_usage_publish_interval_in_secs == 2
        assert harness.broker.health.problems == ()
        await harness.broker.configuration.put(KEY, "3")
        assert harness.broker.catalog.configuration() == {KEY: "3"}


@pytest.mark.parametrize("name", [ALIAS, KEY])
async def test_of_two_stored_values_of_one_setting_that_of_its_key_counts_and_both_are_replaced(
    tmp_path: Path, name: str
) -> None:
    async with one(tmp_path) as harness:
        await store(harness, {ALIAS: "2", KEY: "3"})
    async with one(tmp_path) as harness:
        assert harness.broker.limits.resource_usage_publish_interval_in_secs == 3
        await harness.broker.configuration.remove(name)
        assert harness.broker.catalog.configuration() == {}
        assert harness.broker.limits.resource_usage_publish_interval_in_secs == 1


# -- all names and values


async def test_every_name_takes_good_values_and_no_others_and_a_restart_keeps_them(tmp_path: Path) -> None:
    async with one(tmp_path) as harness:
        configuration = harness.broker.configuration
        assert configuration.dynamic() == sorted(NAMES)
        for name, key in NAMES.items():
            good, bad = values(key)
            assert len(good) >= 2, f"{name}: give the pool of this test another value that it takes"
            for value in good:
                await configuration.put(name, value)
                assert harness.broker.catalog.configuration() == {key: value.strip()}
            stored, current = configuration.overridden(), configuration.runtime()
            for value in bad:
                with pytest.raises(PreconditionFailed, match=" Invalid dynamic-config value"):
                    await configuration.put(name, value)
            assert (configuration.overridden(), configuration.runtime()) == (stored, current)
            await configuration.remove(name)
        assert harness.broker.catalog.configuration() == {}
        defaults = {**START.values(), **{name: START.values()[key] for name, key in ALIASES.items()}}
        assert configuration.runtime() == defaults
        for name, key in NAMES.items():
            await configuration.put(name, values(key)[0][1])
        stored, current = configuration.overridden(), configuration.runtime()
    async with one(tmp_path) as harness:
        configuration = harness.broker.configuration
        assert (configuration.overridden(), configuration.runtime()) == (stored, current)
        assert harness.broker.health.problems == ()
        for name in NAMES:
            await configuration.remove(name)
        assert harness.broker.catalog.configuration() == {}


async def test_two_brokers_follow_every_name_and_both_keep_it_over_a_restart(tmp_path: Path) -> None:
    async with two(tmp_path) as (first, second):
        for name, key in NAMES.items():
            value = values(key)[0][1]
            await first.broker.configuration.put(name, value)
            await until(partial(has, second, key))
            assert second.broker.configuration.runtime() == first.broker.configuration.runtime()
            with pytest.raises(PreconditionFailed, match=" Invalid dynamic-config value"):
                await second.broker.configuration.put(name, values(key)[1][0])
        current = first.broker.configuration.runtime()
    async with two(tmp_path) as (first, second):
        assert first.broker.configuration.runtime() == second.broker.configuration.runtime() == current
        for name, key in NAMES.items():
            await second.broker.configuration.remove(name)
            await until(partial(has_not, first, key))
        assert first.broker.configuration.runtime() == second.broker.configuration.runtime()
        assert first.broker.configuration.overridden() == {}


@pytest.mark.parametrize("value", ["0", "1", "0.001", "9" * 18])
async def test_a_broker_works_and_restarts_with_extreme_values_wherever_they_are_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    async with one(tmp_path) as harness:
        for name, key in NAMES.items():
            if taken(key, value):
                try:
                    await harness.broker.configuration.put(name, value)
                except PreconditionFailed:
                    continue  # It contradicts one of the others.
        current = harness.broker.configuration.runtime()
    for _ in range(2):
        async with one(tmp_path) as harness:
            assert harness.broker.configuration.runtime() == current
            client = await Client.connected(harness.port)
            await asyncio.sleep(3_600)
            await client.close()
    assert errors_of(caplog.records) == []


# -- stored values that cannot be used


@pytest.mark.parametrize("seed", range(6))
async def test_no_stored_value_stops_a_start_and_each_is_in_force_or_reported_and_can_be_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    chance = random.Random(seed)
    names = [*NAMES, "clusterName", "servicePort", "keyOfTheFuture", "a/../b", "", "\0", "x" * 5_000]
    stored = {name: chance.choice((*POOL, *ABSURD)) for name in names if chance.random() < 0.7}
    async with one(tmp_path) as harness:
        await store(harness, stored)
    caplog.clear()
    async with one(tmp_path) as harness:
        configuration = harness.broker.configuration
        in_force, errors = usable(START, stored)
        assert in_force.keys() | errors.keys() == {ALIASES.get(name, name) for name in stored}
        assert configuration.runtime().items() >= START.changed(in_force).values().items()
        said = errors_of(caplog.records)
        assert len(said) == len(errors)
        for name in errors:
            assert any(text.startswith(f"stored value of {name} is ignored: ") for text in said)
        (problem,) = harness.broker.health.problems
        assert f"{sorted(errors)[1]}, " in problem
        assert f" and {len(errors) - 10} more" in problem
        assert len(problem) < 2_000
        for name in sorted(errors):
            await configuration.remove(name)
        assert harness.broker.health.problems == ()
        assert harness.broker.catalog.configuration().keys() <= NAMES.keys()


async def test_stored_values_that_are_valid_only_together_count_beside_one_that_is_not(tmp_path: Path) -> None:
    prefix = "adaptivePublisherThrottlingMemory"
    pair = {f"{prefix}HighWatermarkPct": "0.5", f"{prefix}LowWatermarkPct": "0.4"}
    bad = {"logLevel": "loud", "tailCacheMB": "4000", "maxProducersPerTopic": "many"}
    async with one(tmp_path) as harness:
        await store(harness, pair | bad)
    async with one(tmp_path) as harness:
        assert harness.broker.limits.adaptive_memory_high == 0.5
        (problem,) = harness.broker.health.problems
        assert all(name in problem for name in bad)
        assert "loud" not in problem  # Everybody may read the health, and not every value.


async def test_a_change_that_would_make_another_stored_value_unusable_is_refused(tmp_path: Path) -> None:
    prefix = "adaptivePublisherThrottlingMemory"
    async with one(tmp_path) as harness:
        configuration = harness.broker.configuration
        await configuration.put(f"{prefix}HighWatermarkPct", "0.95")
        await configuration.put(f"{prefix}LowWatermarkPct", "0.9")
        for refused in (
            configuration.put(f"{prefix}HighWatermarkPct", "0.8"),
            configuration.remove(f"{prefix}HighWatermarkPct"),
        ):
            with pytest.raises(PreconditionFailed, match="must be below"):
                await refused
        assert harness.broker.limits.adaptive_memory_high == 0.95


async def test_two_brokers_that_take_contradicting_changes_at_once_agree_and_report_it(tmp_path: Path) -> None:
    high, low = (f"adaptivePublisherThrottlingMemory{which}WatermarkPct" for which in ("High", "Low"))
    async with two(tmp_path) as (first, second):
        await asyncio.gather(
            first.broker.configuration.put(high, "0.75"),
            second.broker.configuration.put(low, "0.8"),
            return_exceptions=True,
        )
        await until(lambda: all(len(one.broker.catalog.configuration()) == 2 for one in (first, second)))
        current = first.broker.configuration.runtime()
        assert second.broker.configuration.runtime() == current
        assert len(first.broker.health.problems) == len(second.broker.health.problems) == 1
    async with two(tmp_path) as (first, second):
        assert first.broker.configuration.runtime() == second.broker.configuration.runtime() == current


async def test_a_row_of_the_cache_that_pulsars_key_asks_for_at_run_time_must_fit(tmp_path: Path) -> None:
    async with one(tmp_path) as harness:
        with pytest.raises(PreconditionFailed, match="the memory budget does not fit"):
            await harness.broker.configuration.put("managedLedgerCacheSizeMB", "100000")

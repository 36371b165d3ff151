# SPDX-License-Identifier: Apache-2.0
"""The file of resource groups: what it may say, what it is told when it says something else, and its changes."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from penstock.core.clock import ManualClock
from penstock.core.errors import ConfigurationError
from penstock.core.names import TopicName
from penstock.governance.resource_group import GroupRate, GroupRates
from penstock.proxy.groups import GroupFile, ProxyGroups, parse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GOLD = """
[gold]
publishRateInMsgs = 1000
publishRateInBytes = -1
dispatchRateInBytes = 10_000_000
tenants = ["acme"]
namespaces = ["shop/orders"]
"""


def test_a_group_has_rates_namespaces_and_tenants() -> None:
    found = parse(GOLD, "groups.toml")
    assert found.quotas == {"gold": GroupRates(GroupRate(1_000, None), GroupRate(None, 10_000_000))}
    assert found.of_topic(TopicName.parse("persistent://shop/orders/t")) == ("gold",)
    assert found.of_topic(TopicName.parse("persistent://acme/any/t-partition-3")) == ("gold",)
    assert found.of_topic(TopicName.parse("persistent://shop/other/t")) == ()


def test_a_topic_is_limited_by_the_groups_of_its_namespace_and_its_tenant_each_once() -> None:
    found = parse(
        '[one]\nnamespaces = ["acme/a"]\n[two]\ntenants = ["acme"]\n[both]\nnamespaces = ["b/b"]\ntenants = ["b"]', "f"
    )
    assert found.of_topic(TopicName.parse("persistent://acme/a/t")) == ("one", "two")
    assert found.of_topic(TopicName.parse("persistent://b/b/t")) == ("both",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[".."]', "'..' may hold letters"),
        ('["a b"]', "'a b' may hold letters"),
        ('["\\u0007"]', "may hold letters"),
        (f"[{'a' * 256}]", "at most 255"),
        ('[gold]\ntenants = ["a/b"]', "tenants: 'a/b' may hold letters"),
        ('[gold]\npublishRateInMsgs = "7"', "publishRateInMsgs = '7': want a whole number"),
        ("gold = 1", r"\[gold\]: want a table"),
        ("[gold]\npublishRateInMsg = 1", r"\[gold\] has no member publishRateInMsg; do you mean publishRateInMsgs\?"),
        ("[gold]\nsize = 1", "want one of publishRateInMsgs"),
        ("[gold]\npublishRateInMsgs = 1.5", r"publishRateInMsgs = 1\.5: want a whole number"),
        ("[gold]\npublishRateInMsgs = -2", "publishRateInMsgs = -2: want a whole number"),
        ("[gold]\npublishRateInMsgs = true", "publishRateInMsgs = True: want a whole number"),
        ('[gold]\ntenants = "acme"', "tenants = 'acme': want a list of names"),
        ('[gold]\nnamespaces = ["acme"]', "namespaces: "),
        ('[a]\ntenants = ["x"]\n[b]\ntenants = ["x"]', r"x is in \[a\] already"),
        ("[gold", "not TOML"),
    ],
)
def test_anything_else_is_an_error_that_names_the_group_and_the_member(text: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as refused:
        parse(text, "groups.toml")
    assert str(refused.value).startswith("groups.toml: ")


@pytest.fixture
def groups() -> Iterator[ProxyGroups]:
    loop = asyncio.new_event_loop()
    yield ProxyGroups(ManualClock(), loop)
    loop.close()


def write(path: Path, text: str, *, at_s: int) -> None:
    path.write_text(text, encoding="utf-8")
    os.utime(path, (at_s, at_s))


def test_a_changed_file_counts_at_once_and_a_wrong_one_changes_nothing(
    tmp_path: Path, groups: ProxyGroups, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "groups.toml"
    write(path, GOLD, at_s=1_000)
    file = GroupFile(path, groups)
    (gold,) = groups.of_topic(TopicName.parse("persistent://acme/n/t"))
    assert gold.limiter.publish.share.messages == 1_000
    changes: list[int] = []
    groups.when_changed(lambda: changes.append(1))
    file.look()
    assert not changes
    write(path, GOLD.replace("1000", "50"), at_s=1_001)
    file.look()
    assert (gold.limiter.publish.share.messages, len(changes)) == (50, 1)
    write(path, "[gold", at_s=1_002)
    file.look()
    assert groups.of_topic(TopicName.parse("persistent://acme/n/t")) == (gold,)
    assert "resource groups stay as they were" in caplog.text
    path.unlink()
    file.look()
    assert groups.of_topic(TopicName.parse("persistent://acme/n/t")) == (gold,)
    write(path, "", at_s=1_003)
    file.look()
    assert groups.of_topic(TopicName.parse("persistent://acme/n/t")) == ()
    assert not gold.limiter.publish.share.limited


def test_a_file_that_is_missing_at_the_start_is_an_error(tmp_path: Path, groups: ProxyGroups) -> None:
    with pytest.raises(ConfigurationError, match=r"resourceGroupsFile=.*cannot be read"):
        GroupFile(tmp_path / "none.toml", groups)

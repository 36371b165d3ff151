# SPDX-License-Identifier: Apache-2.0
"""What settings come to in the words of those who are told."""

from __future__ import annotations

import dataclasses

import pytest

from penstock.broker.limits import BrokerLimits
from penstock.core.errors import ConfigurationError
from penstock.core.service_urls import ServiceUrls
from penstock.core.units import GIB, MIB
from penstock.settings import MachineFacts, Settings, load
from penstock.settings.limits import (
    Live,
    broker_limits,
    http_limits,
    log_limits,
    named_listeners,
    unnamed_listener,
)

FACTS = MachineFacts(ram_bytes=8 * GIB, cgroup_limit_bytes=None, hostname="host-1")


def made_of(**values: str) -> Settings:
    return load(environment={f"PULSAR_PREFIX_{key}": value for key, value in values.items()}, facts=FACTS)


def test_a_broker_that_is_told_nothing_does_what_the_settings_say_by_default() -> None:
    limits = broker_limits(made_of())
    told = {
        field.name: getattr(limits, field.name)
        for field in dataclasses.fields(BrokerLimits)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    by_itself = BrokerLimits(**told)
    for field in dataclasses.fields(BrokerLimits):
        if field.name != "policies":
            assert getattr(by_itself, field.name) == getattr(limits, field.name), field.name
    # Two defaults are worked out: by itself, "as often as it is looked" is written as 0.
    worked_out = {"broker_delete_inactive_topics_max_inactive_duration_seconds"}
    for field in dataclasses.fields(limits.policies):
        if field.name not in worked_out:
            assert getattr(by_itself.policies, field.name) == getattr(limits.policies, field.name), field.name


def test_a_quota_in_gibibytes_counts_where_there_is_none_in_bytes() -> None:
    def quota(**values: str) -> int:
        return broker_limits(made_of(**values)).policies.backlog_quota_default_limit_bytes

    assert quota() == -1
    assert quota(backlogQuotaDefaultLimitGB="2") == 2 * GIB
    assert quota(backlogQuotaDefaultLimitGB="0.5") == 512 * MIB
    assert quota(backlogQuotaDefaultLimitGB="2", backlogQuotaDefaultLimitBytes="100") == 100
    assert quota(backlogQuotaDefaultLimitGB="-1") == -1


def test_topics_that_nobody_uses_are_kept_as_long_as_it_is_looked_for_them_unless_it_is_said() -> None:
    def seconds(**values: str) -> int:
        return broker_limits(made_of(**values)).policies.broker_delete_inactive_topics_max_inactive_duration_seconds

    assert seconds() == 60
    assert seconds(brokerDeleteInactiveTopicsFrequencySeconds="5") == 5
    assert (
        seconds(
            brokerDeleteInactiveTopicsFrequencySeconds="5", brokerDeleteInactiveTopicsMaxInactiveDurationSeconds="9"
        )
        == 9
    )


def test_the_admin_port_never_takes_more_than_an_eighth_of_the_descriptors() -> None:
    assert http_limits(made_of(maxHttpServerConnections="2048"), descriptors=1024).connections_max == 128
    assert http_limits(made_of(maxHttpServerConnections="16"), descriptors=1024).connections_max == 16


def test_segments_of_the_log_grow_with_the_largest_message() -> None:
    small, large = log_limits(made_of()), log_limits(made_of(maxMessageSize="64M", memoryLimitMB="4000"))
    assert small.segment_bytes == 64 * MIB
    assert large.segment_bytes >= 4 * 64 * MIB


def test_a_change_of_live_settings_leaves_the_others_as_they_were() -> None:
    start = Live(made_of(maxProducersPerTopic="3"))
    changed = start.changed({"allowAutoTopicCreation": "false"})
    assert not changed.limits.policies.allow_auto_topic_creation
    assert changed.limits.policies.max_producers_per_topic == 3
    assert start.limits.policies.allow_auto_topic_creation
    assert changed.changed({}).limits == start.limits


def test_the_consoles_of_other_clusters_have_names_and_addresses() -> None:
    shown = made_of(consoleClusters="the west=https://west.example.com:8443/,test=http://10.0.0.9:8080/console")
    assert http_limits(shown, descriptors=1_000).consoles == (
        ("the west", "https://west.example.com:8443"),
        ("test", "http://10.0.0.9:8080/console"),
    )
    assert http_limits(made_of(), descriptors=1_000).consoles == ()


@pytest.mark.parametrize(
    "bad", ["https://west:8443", "west=west:8443", "x=javascript:alert(1)", "x=https://a b", "=http://a"]
)
def test_an_address_that_is_no_link_is_refused(bad: str) -> None:
    with pytest.raises(ConfigurationError, match=r"consoleClusters.*NAME=https://HOST:PORT"):
        made_of(consoleClusters=bad)


LISTENERS = "inside:pulsar://10.0.0.5:6650,inside:pulsar+ssl://10.0.0.5:6651,outside:pulsar://broker.example.com:16650"


def test_each_named_listener_has_its_addresses_and_the_first_is_for_those_who_name_none() -> None:
    settings = made_of(advertisedListeners=LISTENERS)
    inside = ServiceUrls("pulsar://10.0.0.5:6650", "pulsar+ssl://10.0.0.5:6651")
    outside = ServiceUrls("pulsar://broker.example.com:16650", None)
    assert named_listeners(settings) == {"inside": inside, "outside": outside}
    assert unnamed_listener(settings) == inside
    assert unnamed_listener(made_of(advertisedListeners=LISTENERS, internalListenerName="outside")) == outside


def test_an_advertised_address_counts_for_those_who_name_no_listener() -> None:
    assert unnamed_listener(made_of(advertisedListeners=LISTENERS, advertisedAddress="10.0.0.5")) is None
    assert unnamed_listener(made_of()) is None


@pytest.mark.parametrize("text", ["pulsar://host:6650", "a:amqp://host:6650", "a:pulsar://host"])
def test_a_listener_that_is_none_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{text} is no NAME:pulsar://HOST:PORT"):
        made_of(advertisedListeners=text)


def test_the_internal_listener_is_one_of_the_advertised() -> None:
    said = "internalListenerName=other is not in advertisedListeners: inside, outside"
    with pytest.raises(ConfigurationError, match=said):
        made_of(advertisedListeners=LISTENERS, internalListenerName="other")

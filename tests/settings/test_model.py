# SPDX-License-Identifier: Apache-2.0
"""The table of settings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from penstock.settings.model import FIELDS, GROUPS, KEYS, Settings

if TYPE_CHECKING:
    from penstock.core.setting import Key


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("queued.max.request.bytes", "PENSTOCK_QUEUED_MAX_REQUEST_BYTES"),
        ("memoryLimitMB", "PENSTOCK_MEMORY_LIMIT_MB"),
        ("maxMessageSize", "PENSTOCK_MAX_MESSAGE_SIZE"),
        ("brokerServicePortTls", "PENSTOCK_BROKER_SERVICE_PORT_TLS"),
        ("durability", "PENSTOCK_DURABILITY"),
    ],
)
def test_a_key_is_spelled_in_capitals_in_the_environment(name: str, variable: str) -> None:
    assert {key.name: key.variable for key in KEYS.values()}[name] == variable


def test_no_two_keys_share_a_name_a_variable_or_a_flag() -> None:
    for spelling in ("name", "variable"):
        spelled = [getattr(key, spelling) for key in KEYS.values()]
        assert len(spelled) == len(set(spelled))
    flags = [key.flag for key in KEYS.values() if key.flag]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize("key", [key for key in KEYS.values() if key.default is not None], ids=lambda key: key.name)
def test_a_default_can_be_written_into_a_file(key: Key) -> None:
    assert key.parse(key.default_text) == key.default


def test_every_field_of_every_group_is_a_key_of_the_settings() -> None:
    assert set(Settings.__bases__) == set(GROUPS)
    rows = [field for group in GROUPS for field in dataclasses.fields(group)]
    assert {field.name for field in rows} == set(KEYS) == set(FIELDS.values())
    assert all("key" in field.metadata for field in rows)


def test_every_group_has_a_heading_and_every_key_a_sentence() -> None:
    for group in GROUPS:
        assert str(group.__doc__).endswith(".")
    assert all(key.text.endswith(".") for key in KEYS.values())


@pytest.mark.parametrize("name", ["tokenSecretKey", "basicAuthConf"])
def test_keys_and_passwords_are_secrets(name: str) -> None:
    assert KEYS[FIELDS[name]].secret


def test_nothing_secret_can_be_changed_while_the_broker_runs() -> None:
    """What is changed so is logged, and stored as it is."""
    assert not [key.name for key in KEYS.values() if key.secret and key.dynamic]


# Keys that Pulsar changes while it runs, as far as they are ours.
@pytest.mark.parametrize(
    "name",
    [
        "brokerPublisherThrottlingMaxMessageRate",
        "brokerPublisherThrottlingMaxByteRate",
        "maxPublishRatePerTopicInMessages",
        "maxPublishRatePerTopicInBytes",
        "dispatchThrottlingRateInMsg",
        "dispatchThrottlingRatePerTopicInByte",
        "dispatchThrottlingRatePerSubscriptionInMsg",
        "dispatchThrottlingOnNonBacklogConsumerEnabled",
        "subscribeThrottlingRatePerConsumer",
        "maxConcurrentLookupRequest",
        "maxConcurrentTopicLoadRequest",
        "dispatcherMaxRoundRobinBatchSize",
        "managedLedgerCacheSizeMB",
        "allowAutoTopicCreation",
        "allowAutoTopicCreationType",
        "allowAutoSubscriptionCreation",
        "defaultNumPartitions",
        "maxTopicsPerNamespace",
        "maxNumPartitionsPerPartitionedTopic",
        "brokerDeleteInactiveTopicsEnabled",
        "forceDeleteTenantAllowed",
        "forceDeleteNamespaceAllowed",
        "superUserRoles",
        "subscriptionTypesEnabled",
        "strictlyVerifySubscriptionName",
    ],
)
def test_what_pulsar_changes_while_it_runs_we_do_too(name: str) -> None:
    assert KEYS[FIELDS[name]].dynamic

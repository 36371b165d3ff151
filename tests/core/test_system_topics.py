# SPDX-License-Identifier: Apache-2.0
"""The closed list of system topics."""

from __future__ import annotations

import pytest

from penstock.core.system_topics import is_record_topic, is_system_topic


@pytest.mark.parametrize("name", ["usage", "usage-partition-0", "governance", "governance-partition-12"])
def test_topics_of_records_and_their_partitions_are_system_topics(name: str) -> None:
    assert is_record_topic(f"persistent://pulsar/system/{name}")
    assert is_system_topic(f"persistent://pulsar/system/{name}")


def test_the_topic_of_reports_is_a_system_topic() -> None:
    assert is_system_topic("non-persistent://pulsar/system/resource-usage")
    assert not is_record_topic("non-persistent://pulsar/system/resource-usage")


@pytest.mark.parametrize(
    "name",
    [
        "non-persistent://pulsar/system/usage",
        "non-persistent://pulsar/system/resource-usage-partition-0",
        "non-persistent://pulsar/system/proxy-resource-usage",
        "non-persistent://pulsar/system/anything",
        "persistent://acme/system/usage",
        "persistent://pulsar/default/usage",
        "persistent://pulsar/system/resource-usage",
        "persistent://pulsar/system/usage-partition-01",
        "persistent://pulsar/system/usage-partition-x",
        "persistent://pulsar/system/usage-partition-0-partition-0",
        "persistent://pulsar/system/usage ",
        "persistent://pulsar/system/Usage",
        "persistent://pulsar/system/usage-dlq",
        "persistent://pulsar/system/transaction_coordinator_assign-partition-3",
        "persistent://pulsar/system/__transaction_log_7",
        "persistent://acme/sales/__change_events",
        "persistent://acme/sales/__transaction_buffer_snapshot",
        "persistent://acme/sales/t-s__transaction_pending_ack",
    ],
)
def test_no_other_topic_is(name: str) -> None:
    assert not is_system_topic(name)

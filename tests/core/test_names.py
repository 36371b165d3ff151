# SPDX-License-Identifier: Apache-2.0
"""Names mean the same topic as in Pulsar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidTopicName, WireCode
from penstock.core.names import NamespaceName, TopicName

entities = st.text("abcXYZ019-=:._", min_size=1, max_size=12)
locals_ = st.text(min_size=1, max_size=20).filter(lambda text: text.strip() and "/" not in text)
topics = st.builds(TopicName, st.sampled_from(["persistent", "non-persistent"]), entities, entities, locals_)


@given(topics)
def test_a_printed_name_reads_back_as_itself(topic: TopicName) -> None:
    assert TopicName.parse(str(topic)) == topic


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("t", "persistent://public/default/t"),
        ("acme/sales/t", "persistent://acme/sales/t"),
        ("persistent://acme/sales/t", "persistent://acme/sales/t"),
        ("non-persistent://acme/sales/t", "non-persistent://acme/sales/t"),
        # Clients look up the regular expression of a pattern as if it were a topic.
        ("persistent://public/default/orders-.*[a-z]+?", "persistent://public/default/orders-.*[a-z]+?"),
    ],
)
def test_short_forms_mean_the_default_tenant_and_namespace(text: str, full: str) -> None:
    assert str(TopicName.parse(text)) == full


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a/b",
        "a/b/c/d",
        "persistent://t",
        "persistent://a/b/",
        "persistent:///b/c",
        "persistent://a/cluster/b/c",
        "durable://a/b/c",
        "://a/b/c",
        "a b/c/d",
        "a/b!/c",
    ],
)
def test_what_is_not_a_topic_is_refused_with_the_code_clients_know(text: str) -> None:
    with pytest.raises(InvalidTopicName) as caught:
        TopicName.parse(text)
    assert caught.value.wire_code == WireCode.INVALID_TOPIC_NAME


@pytest.mark.parametrize(
    ("local", "partition"),
    [
        ("t", -1),
        ("t-partition-0", 0),
        ("t-partition-12", 12),
        ("t-partition-1-partition-2", 2),
        # These are plain topics to Pulsar: the number is not written as it would print it.
        ("t-partition-01", -1),
        ("t-partition--1", -1),
        ("t-partition-", -1),
        ("t-partition-1x", -1),
        ("t-partition-1\n", -1),
        ("t-partition-2147483647", 2**31 - 1),
        ("t-partition-2147483648", -1),
    ],
)
def test_the_partition_is_read_from_the_name(local: str, partition: int) -> None:
    assert TopicName("persistent", "public", "default", local).partition == partition


@given(topics.filter(lambda topic: topic.partition < 0), st.integers(0, 2**31 - 1))
def test_a_partition_leads_back_to_its_topic(topic: TopicName, index: int) -> None:
    partition = topic.of_partition(index)
    assert partition.partition == index
    assert partition.parent == topic
    assert topic.parent == topic


def test_a_topic_knows_its_namespace_and_whether_it_is_stored() -> None:
    topic = TopicName.parse("non-persistent://acme/sales/t")
    assert topic.namespace_name == NamespaceName.parse("acme/sales")
    assert not topic.is_persistent
    assert TopicName.parse("t").is_persistent


@pytest.mark.parametrize("text", ["", "acme", "acme/", "/sales", "acme/a/b", "acme/sa les"])
def test_what_is_not_a_namespace_is_refused(text: str) -> None:
    with pytest.raises(InvalidTopicName):
        NamespaceName.parse(text)

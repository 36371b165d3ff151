# SPDX-License-Identifier: Apache-2.0
"""A query may be started before its topic exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.spark.client.errors import Refused, TopicNotYetThere
from penstock.spark.planner import Planner
from penstock.spark.source import PulsarDataSource
from tests.spark.topics import create_partitions

if TYPE_CHECKING:
    from penstock.testing.process import BrokerProcess


def source(broker: BrokerProcess, topic: str, **options: str) -> PulsarDataSource:
    return PulsarDataSource({"service.url": broker.url, "topic": topic, **options})


def test_a_topic_that_does_not_exist_fails_at_once_or_after_the_wait(broker: BrokerProcess, topic: str) -> None:
    with pytest.raises(Refused, match="TOPIC_NOT_FOUND"):
        source(broker, topic).schema()
    with pytest.raises(TopicNotYetThere, match="raise operationTimeoutMs"):
        source(broker, topic, waitingForNonExistedTopic="true", operationTimeoutMs="50").schema()


def test_a_topic_is_waited_for_until_somebody_creates_it(
    broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions, refused = Planner.partitions, []

    def create_after_refusal(self: Planner) -> list[str]:
        try:
            return partitions(self)
        except Refused as error:
            refused.append(error)
            create_partitions(broker, topic, 2)
            raise

    monkeypatch.setattr(Planner, "partitions", create_after_refusal)
    assert source(broker, topic, waitingForNonExistedTopic="true").schema().names[0] == "value"
    assert len(refused) == 1

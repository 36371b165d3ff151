# SPDX-License-Identifier: Apache-2.0
"""Usage and decision records of a proxy, with the official client, before a penstock broker."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING, Any, cast

import fastavro
import httpx
import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.accounting.records import DECISION, USAGE
from penstock.testing.process import BrokerProcess, ProxyProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_S = 45
TOPIC = "persistent://public/default/used"
USAGE_TOPIC = "persistent://pulsar/system/proxy-usage"
DECISION_TOPIC = "persistent://pulsar/system/proxy-governance"
SETTINGS = "usageRecordsEnabled=true\nusageRecordsIntervalInSeconds=1\ngovernanceRecordsEnabled=true\nproxyName=front\n"

Record = dict[str, Any]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


def proxy_before(broker: BrokerProcess, tmp_path: Path, more: str = "") -> ProxyProcess:
    config = tmp_path / "proxy.conf"
    config.write_text(SETTINGS + more)
    return ProxyProcess(broker.url, ["--config", str(config)], log_path=tmp_path / "proxy.log")


def client_of(process: BrokerProcess) -> pulsar.Client:
    return pulsar.Client(process.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


class Records:
    """Reads records as they come, with a client of its own that is connected to the broker."""

    def __init__(self, broker: BrokerProcess, topic: str, schema: object) -> None:
        self._client = client_of(broker)
        self._reader = self._client.create_reader(topic, pulsar.MessageId.earliest)
        self._schema = fastavro.parse_schema(dict(schema))  # type: ignore[call-overload]
        self.seen: list[Record] = []

    def until(self, found: Any) -> Record:  # noqa: ANN401
        """Return a record that satisfies `found`: one that was read, or one that comes."""
        for record in self.seen:
            if found(record):
                return record
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = self._reader.read_next(TIMEOUT_S * 1_000)
            read = fastavro.schemaless_reader(io.BytesIO(message.data()), self._schema)
            record = cast("Record", read)
            self.seen.append(record)
            if found(record):
                return record
        raise AssertionError(f"no such record among {len(self.seen)}")

    def close(self) -> None:
        self._client.close()


def stats_of(broker: BrokerProcess, topic: str) -> dict[str, Any]:
    path = topic.replace("://", "/")
    stats: dict[str, Any] = httpx.get(f"{broker.admin_url}/admin/v2/{path}/stats", timeout=TIMEOUT_S).json()
    return stats


@pytest.mark.timeout(180)  # the client may wait half a minute before it tries a broker again
def test_usage_is_what_the_broker_has_stored_to_the_byte_also_after_it_was_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, proxy_before(broker, tmp_path) as proxy:
        client = client_of(proxy)
        try:
            batched = client.create_producer(TOPIC, batching_enabled=True, block_if_queue_full=True)
            single = client.create_producer(TOPIC, batching_enabled=False, send_timeout_millis=150_000)
            failed: list[object] = []
            for number in range(500):
                batched.send_async(
                    b"%d" % number, lambda result, _id: failed.append(result) if result != pulsar.Result.Ok else None
                )
            batched.flush()
            for number in range(50):
                single.send(bytes(number))
            assert not failed
            before = stats_of(broker, TOPIC)
            port, admin_port = broker.port, broker.admin_port
            broker.kill()
            broker.start(port=port, admin_port=admin_port)
            for number in range(30):
                single.send(bytes(10 * number))
            after = stats_of(broker, TOPIC)
            assert before["msgInCounter"] == 550
            messages, nbytes = (before[name] + after[name] for name in ("msgInCounter", "bytesInCounter"))
        finally:
            client.close()
        records = Records(broker, USAGE_TOPIC, USAGE.schema)
        try:
            last = records.until(lambda one: one["topic"] == TOPIC and one["published_messages"] >= messages)
            assert (last["published_messages"], last["published_bytes"]) == (messages, nbytes)
            assert last["broker"] == "proxy-front"
            assert (last["tenant"], last["namespace"], last["ledger_id"]) == ("public", "public/default", -1)
            of_topic = [one for one in records.seen if one["topic"] == TOPIC]
            assert len({(one["epoch"], one["counters_since_ms"]) for one in of_topic}) == 1
            counted = [one["published_bytes"] for one in of_topic]
            assert counted == sorted(counted)
            whole = records.until(lambda one: one["scope"] == "broker" and one["published_messages"] >= messages)
            assert (whole["published_messages"], whole["published_bytes"]) == (messages, nbytes)
        finally:
            records.close()


def test_what_is_dispatched_is_counted_for_each_subscription(broker: BrokerProcess, tmp_path: Path) -> None:
    topic = f"{TOPIC}-dispatched"
    with proxy_before(broker, tmp_path) as proxy:
        client = client_of(proxy)
        try:
            consumers = [
                client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest) for name in ("a", "b")
            ]
            producer = client.create_producer(topic)
            for number in range(20):
                producer.send(bytes(1_000 + number))
            for consumer in consumers:
                for _ in range(20):
                    consumer.acknowledge(consumer.receive(TIMEOUT_S * 1_000))
        finally:
            client.close()
        records = Records(broker, USAGE_TOPIC, USAGE.schema)
        try:
            last = records.until(lambda one: one["topic"] == topic and one["dispatched_messages"] == 40)
            assert last["published_messages"] == 20
            assert last["dispatched_bytes"] == 2 * last["published_bytes"]
        finally:
            records.close()


def test_a_group_in_debt_is_an_episode_and_its_usage_is_recorded(broker: BrokerProcess, tmp_path: Path) -> None:
    groups = tmp_path / "groups.toml"
    groups.write_text('[slow]\npublishRateInMsgs = 50\nnamespaces = ["public/default"]\n')
    with proxy_before(broker, tmp_path, f"resourceGroupsFile={groups}\n") as proxy:
        client = client_of(proxy)
        try:
            producer = client.create_producer(f"{TOPIC}-slow", batching_enabled=False, block_if_queue_full=True)
            for number in range(150):
                producer.send_async(b"%d" % number, lambda _result, _id: None)
            producer.flush()
        finally:
            client.close()
        decisions, usage = (
            Records(broker, topic, schema)
            for topic, schema in ((DECISION_TOPIC, DECISION.schema), (USAGE_TOPIC, USAGE.schema))
        )
        try:
            begun = decisions.until(lambda one: one["limiter"] == "group-quota")
            assert (begun["broker"], begun["kind"], begun["resource_group"]) == ("proxy-front", "begun", "slow")
            used = usage.until(lambda one: one["scope"] == "group" and one["published_messages"] == 150)
            assert used["resource_groups"] == ["slow"]
            assert used["quota_publish_messages"] == 50
            of_topic = usage.until(lambda one: one["topic"].endswith("-slow") and one["published_messages"] == 150)
            assert of_topic["resource_groups"] == ["slow"]
        finally:
            decisions.close()
            usage.close()


def failures(proxy: ProxyProcess, name: str, **labels: str) -> float:
    text = httpx.get(f"{proxy.admin_url}/metrics", timeout=TIMEOUT_S).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    )


def test_a_topic_of_records_that_refuses_them_slows_nobody(broker: BrokerProcess, tmp_path: Path) -> None:
    # No client may publish to the brokers' own topics of records.
    refusing = "proxyUsageRecordsTopicName=persistent://pulsar/system/usage\n"
    refusing += "proxyGovernanceRecordsTopicName=persistent://pulsar/system/governance\n"
    with proxy_before(broker, tmp_path, refusing) as proxy:
        client = client_of(proxy)
        try:
            producer = client.create_producer(f"{TOPIC}-refused")
            deadline = time.monotonic() + TIMEOUT_S
            while failures(proxy, "penstock_records_failures_total", kind="usage") < 2:
                producer.send(b"x")
                assert time.monotonic() < deadline
        finally:
            client.close()
        assert failures(proxy, "penstock_records_written_total", kind="usage") == 0
        proxy.stop()
        lines = (tmp_path / "proxy.log").read_text().splitlines()
        assert len([line for line in lines if "usage is not recorded" in line]) == 1

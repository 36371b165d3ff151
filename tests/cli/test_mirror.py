# SPDX-License-Identifier: Apache-2.0
"""`penstock mirror`: what is copied, who may publish, and what a start after a crash does."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pulsar
import pytest

from penstock.cli.contexts import Target
from penstock.cli.exits import CommandFailed, Exit
from penstock.cli.feeds import Feed, connected, ends, reader_body
from penstock.cli.main import main
from penstock.cli.mirroring import Place, Places
from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.testing.process import BrokerProcess
from penstock.testing.tokens import SECRET, data_url, token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.wire.client.events import Message

WAIT_S = 120.0


class Running:
    """A mirror that runs."""

    def __init__(self, process: subprocess.Popen[str], url: str, admin_url: str) -> None:
        self.process, self.url, self.admin_url = process, url, admin_url
        self.said: list[str] = []
        self._told = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._told:
                self.said.append(line)
                self._told.notify_all()

    def wait_for(self, words: str) -> str:
        with self._told:
            found = self._told.wait_for(lambda: [line for line in self.said if words in line], WAIT_S)
        assert found, self.said
        return found[0]

    def join(self) -> None:
        self._reader.join(WAIT_S)


@contextmanager
def mirror(source: BrokerProcess, *words: str, stop: signal.Signals = signal.SIGINT) -> Iterator[Running]:
    command = [sys.executable, "-u", "-m", "penstock", "mirror", "--from", source.url, "--rate", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        running = None
        try:
            ready = process.stdout.readline().split()
            assert ready[:2] == ["penstock", "ready"]
            running = Running(process, ready[2], ready[3])
            yield running
        finally:
            process.send_signal(stop)
            assert process.wait(WAIT_S) == (-stop if stop is signal.SIGKILL else 0)
            if running is not None:
                running.join()


@pytest.fixture
def namespace(broker: BrokerProcess) -> str:
    name = f"mirrored/n{uuid.uuid4().hex}"
    admin = httpx.Client(base_url=f"{broker.admin_url}/admin/v2/", timeout=60)
    tenant = {"adminRoles": [], "allowedClusters": admin.get("clusters").json()}
    assert admin.put("tenants/mirrored", json=tenant).status_code in {httpx.codes.NO_CONTENT, httpx.codes.CONFLICT}
    admin.put(f"namespaces/{name}", json={}).raise_for_status()
    admin.close()
    return name


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def stored(url: str, topic: str, count: int) -> list[Message]:
    """Entries of a topic as a reader is given them: all that there are, and so many at least."""
    pause, found = threading.Event(), []
    with connected(Target(url=url)) as cluster:
        feed = Feed(cluster, topic, reader_body(topic, EARLIEST))
        for _ in range(int(WAIT_S * 100)):
            while (entry := feed.next_entry()) is not None:
                found.append(entry)
            last = ends(cluster, [topic])[topic] if len(found) >= count else None
            if last is not None and tuple(found[-1].position) >= last[:2]:
                break
            pause.wait(0.01)
        feed.close()
    return found


def values(url: str, topic: str, count: int) -> list[bytes]:
    return [bytes(entry.payload) for entry in stored(url, topic, count)]


def publish(client: pulsar.Client, topic: str, *messages: bytes) -> None:
    producer = client.create_producer(topic)
    for message in messages:
        producer.send(message)
    producer.close()


def test_entries_are_copied_to_the_byte_and_nobody_else_may_publish(
    broker: BrokerProcess, client: pulsar.Client, namespace: str
) -> None:
    topic, parts = f"persistent://{namespace}/plain", f"persistent://{namespace}/parts"
    httpx.put(
        f"{broker.admin_url}/admin/v2/{parts.replace('://', '/')}/partitions", json=2, timeout=60
    ).raise_for_status()
    batching = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=1, compression_type=pulsar.CompressionType.LZ4
    )
    for number in range(20):
        batching.send_async(
            b"batch %d" % number, lambda *_: None, partition_key=f"k{number}", event_timestamp=number + 1
        )
    batching.flush()
    single = client.create_producer(topic)
    single.send(b"single", partition_key="k", ordering_key="o", properties={"a": "b"}, event_timestamp=5)
    partitioned = client.create_producer(
        parts, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    for number in range(10):
        partitioned.send(b"%d" % number)
    there = stored(broker.url, topic, 2)
    with mirror(broker, namespace) as copy:
        assert "of 3 topics; it is served until Ctrl-C" in copy.wait_for("the copy is complete: 31 messages")
        assert [one.entry for one in stored(copy.url, topic, len(there))] == [one.entry for one in there]
        for number in range(2):
            part = f"{parts}-partition-{number}"
            assert values(copy.url, part, 5) == values(broker.url, part, 5)
        other = pulsar.Client(copy.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        assert len(other.get_topic_partitions(parts)) == 2
        for name in (topic, parts, f"persistent://{namespace}/new"):
            with pytest.raises(pulsar.PulsarException, match="NotAllowed"):
                other.create_producer(name)
        publish(other, "persistent://public/default/own", b"mine")
        other.close()
        said = httpx.post(
            f"{copy.admin_url}/admin/v3/messages/{topic.replace('://', '/')}", json={"value": "x"}, timeout=60
        )
        assert said.status_code == httpx.codes.METHOD_NOT_ALLOWED
        assert "is read-only at this broker (readOnlyTopics): publish where it comes from" in said.text


def test_a_schema_is_registered_before_the_messages_that_need_it(
    broker: BrokerProcess, client: pulsar.Client, namespace: str
) -> None:
    class Order(pulsar.schema.Record):  # type: ignore[misc]
        number = pulsar.schema.Integer()

    topic = f"persistent://{namespace}/orders"
    producer = client.create_producer(topic, schema=pulsar.schema.JsonSchema(Order))
    producer.send(Order(number=7))
    with mirror(broker, topic) as copy:
        copy.wait_for("the copy is complete")
        other = pulsar.Client(copy.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        reader = other.create_reader(topic, pulsar.MessageId.earliest, schema=pulsar.schema.JsonSchema(Order))
        assert reader.read_next(60_000).value().number == 7
        other.close()
        path = topic.replace("persistent://", "/admin/v2/schemas/") + "/schema"
        assert httpx.get(copy.admin_url + path, timeout=60).json()["type"] == "JSON"


def test_a_copy_follows_and_goes_on_after_a_kill_without_repeating_or_losing(
    broker: BrokerProcess, client: pulsar.Client, namespace: str, tmp_path: Path
) -> None:
    topic = f"persistent://{namespace}/followed"
    publish(client, topic, b"0", b"1")
    words = (topic, "--data-dir", str(tmp_path / "copy"), "--follow")
    with mirror(broker, *words, stop=signal.SIGKILL) as copy:
        copy.wait_for("what is published there follows")
        publish(client, topic, b"2", b"3")
        assert values(copy.url, topic, 4) == [b"0", b"1", b"2", b"3"]
    file = tmp_path / "copy" / "mirror.json"
    said = json.loads(file.read_text())
    # As if it had been killed earlier: the log has more than the file says.
    ((where, _),) = said["topics"].values()
    said["topics"][topic] = [f"{where.split(':')[0]}:1", 1]
    file.write_text(json.dumps(said))
    publish(client, topic, b"4")
    with mirror(broker, *words) as copy:
        copy.wait_for("the copy is complete: 1 messages")
        assert values(copy.url, topic, 5) == [b"0", b"1", b"2", b"3", b"4"]
    with mirror(broker, *words) as copy:
        copy.wait_for("the copy is complete: 0 messages")
        assert values(copy.url, topic, 5) == [b"0", b"1", b"2", b"3", b"4"]


def test_only_what_was_published_since_a_time_is_copied(
    broker: BrokerProcess, client: pulsar.Client, namespace: str
) -> None:
    topic = f"persistent://{namespace}/since"
    publish(client, topic, b"old")
    (old,) = stored(broker.url, topic, 1)
    old_ms = old.metadata().publish_time
    while True:  # The clock of publish times has milliseconds.
        publish(client, topic, b"new")
        last = stored(broker.url, topic, 2)[-1].metadata().publish_time
        if last > old_ms:
            break
    with mirror(broker, topic, "--from-time", str(old_ms + 1)) as copy:
        copy.wait_for("the copy is complete")
        assert set(values(copy.url, topic, 1)) == {b"new"}


def test_whoever_may_consume_may_mirror_and_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "conf").write_text(
        "authenticationEnabled=true\nauthorizationEnabled=true\n"
        "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken\n"
        f"tokenSecretKey={data_url(SECRET)}\nsuperUserRoles=admin\n"
    )
    (tmp_path / "reader").write_text(token("reader"))
    name = "persistent://public/default/secret"
    with BrokerProcess(tmp_path / "data", ["--config", str(tmp_path / "conf")]) as source:
        headers = {"authorization": f"Bearer {token('admin')}"}
        admin = httpx.Client(base_url=f"{source.admin_url}/admin/v2/", headers=headers, timeout=60)
        admin.post("namespaces/public/default/permissions/reader", json=["consume"]).raise_for_status()
        client = pulsar.Client(
            source.url,
            authentication=pulsar.AuthenticationToken(token("admin")),
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        publish(client, name, b"0", b"1")
        with mirror(source, "public/default", "--token-file", str(tmp_path / "reader")) as copy:
            copy.wait_for("the copy is complete: 2 messages")
            assert values(copy.url, name, 2) == [b"0", b"1"]
        assert admin.get("persistent/public/default").json() == [name]
        assert admin.get("persistent/public/default/secret/subscriptions").json() == []
        (tmp_path / "nobody").write_text(token("nobody"))
        status = main(["mirror", name, "--from", source.url, "--token-file", str(tmp_path / "nobody")])
        assert status == Exit.NOT_ALLOWED
        client.close()
        admin.close()


def test_what_is_wrong_is_said_before_anything_is_started(
    broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*words: str) -> tuple[int, str]:
        status = main(["mirror", *words])
        return status, capsys.readouterr().err

    there = ("--from", broker.url)
    status, said = failing("persistent://public/default/none-such", *there)
    assert (status, "none-such" in said) == (Exit.NOT_FOUND, True)
    assert failing("a/b/c/d", *there)[0] == Exit.USAGE
    assert failing("non-persistent://public/default/t", *there)[0] == Exit.USAGE
    assert "--rate 1K/s: give 64KB/s or more" in failing("t", *there, "--rate", "1K/s")[1]
    assert "--max-bytes 5: give 1MB or more" in failing("t", *there, "--max-bytes", "5")[1]
    assert "'soon' is no place in a topic" in failing("t", *there, "--last", "soon")[1]
    assert list(tmp_path.iterdir()) == []


def test_places_are_kept_in_a_file_of_one_cluster(tmp_path: Path) -> None:
    file = tmp_path / "mirror.json"
    places = Places(file, "pulsar://a:6650")
    assert places.get("t") is None
    places.put("t", Place(MessageId(3, 4), 5))
    places.save()
    assert Places(file, "pulsar://a:6650").get("t") == Place(MessageId(3, 4), 5)
    with pytest.raises(CommandFailed, match=re.escape("has a copy of pulsar://a:6650, not of pulsar://b:6650")):
        Places(file, "pulsar://b:6650")
    broken: Any
    for broken in ("", "[]", '{"from": "pulsar://a:6650", "topics": {"t": 3}}'):
        file.write_text(broken)
        with pytest.raises(CommandFailed, match="does not say how far the mirror is"):
            Places(file, "pulsar://a:6650")

# SPDX-License-Identifier: Apache-2.0
"""`penstock produce`, `consume`, `tail`, `export`, `import`, `redrive`, `copy` and `rewind`, against a real broker."""

from __future__ import annotations

import io
import json
import re
import threading
import uuid
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx
import pulsar
import pytest

from penstock.cli.consume import readers
from penstock.cli.contexts import Target
from penstock.cli.exits import Exit
from penstock.cli.feeds import connected
from penstock.cli.main import main
from penstock.core.hashing import java_string_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.testing.process import BrokerProcess

Run: TypeAlias = "Callable[..., str]"


@pytest.fixture(autouse=True)
def _here(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_URL", broker.url)
    monkeypatch.setenv("PENSTOCK_ADMIN_URL", broker.admin_url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command that must succeed; returns what it printed."""

    def run(*words: str) -> str:
        status = main([*words])
        printed = capsys.readouterr()
        assert status == Exit.OK, printed.err
        return printed.out

    return run


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/cli-{uuid.uuid4().hex}"


@pytest.fixture
def partitioned(broker: BrokerProcess, topic: str) -> str:
    path = topic.replace("://", "/")
    httpx.put(f"{broker.admin_url}/admin/v2/{path}/partitions", json=3, timeout=60).raise_for_status()
    return topic


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    client = pulsar.Client(broker.url)
    yield client
    client.close()


def lines(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def test_what_is_produced_is_consumed_once(run: Run, topic: str) -> None:
    run("produce", topic, "-m", "one", "-m", "zwei ä", "--key", "k", "--property", "a=b", "--event-time", "5")
    first = run("consume", topic, "-s", "s", "--from", "earliest", "-n", "2", "-o", "json")
    assert [(one["value"], one["key"], one["properties"], one["eventTime"]) for one in lines(first)] == [
        ("one", "k", {"a": "b"}, 5),
        ("zwei ä", "k", {"a": "b"}, 5),
    ]
    assert run("consume", topic, "-s", "s", "--idle", "0.2") == ""


def test_what_is_only_looked_at_is_delivered_again(run: Run, topic: str) -> None:
    run("produce", topic, "-m", "one")
    for _ in range(2):
        assert run("consume", topic, "-s", "s", "--from", "earliest", "-n", "1", "--no-ack") == "one\n"


def test_lines_of_standard_input_are_messages(run: Run, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a\n\nb"))
    run("produce", topic)
    assert run("tail", topic, "--from", "earliest", "-n", "3") == "a\n\nb\n"


def test_messages_of_a_key_are_in_one_partition_that_its_hash_says(run: Run, partitioned: str) -> None:
    keys = [f"key-{number}" for number in range(12)]
    for key in keys:
        run("produce", partitioned, "-m", "x", "-m", "y", "--key", key)
    found = lines(run("tail", partitioned, "--from", "earliest", "-n", "24", "-o", "json"))
    places = {(one["key"], int(one["topic"].rpartition("-")[2])) for one in found}
    assert places == {(key, java_string_hash(key.encode()) % 3) for key in keys}


def test_batches_of_the_official_client_compressed_and_chunked_messages_are_read(
    run: Run, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=50, compression_type=pulsar.CompressionType.ZSTD
    )
    for number in range(10):
        producer.send_async(f"{number}".encode() * 300, None, properties={"n": str(number)})
    producer.flush()
    chunked = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    chunked.send(b"x" * 6_000_000)
    found = lines(run("tail", topic, "--from", "earliest", "-n", "11", "-o", "json"))
    assert [one["properties"]["n"] for one in found[:10]] == [str(number) for number in range(10)]
    assert found[10]["value"] == "x" * 6_000_000
    assert len(run("consume", topic, "-s", "s", "--from", "earliest", "-n", "11").splitlines()) == 11
    assert run("consume", topic, "-s", "s", "--idle", "0.2") == ""


def test_filters_choose_by_key_property_and_json(run: Run, topic: str) -> None:
    for number in range(4):
        value = json.dumps({"order": {"lines": [{"price": number * 10}], "who": f"ann-{number}"}})
        run("produce", topic, "-m", value, "--key", f"k{number}", "--property", f"parity={number % 2}")

    def keys(*options: str) -> list[str]:
        printed = run("tail", topic, "--from", "earliest", "--idle", "0.2", "-o", "json", *options)
        return [one["key"] for one in lines(printed)]

    assert keys("--key", "k1", "--key", "k[23]") == ["k1", "k2", "k3"]
    assert keys("--property", "parity=1") == ["k1", "k3"]
    assert keys("--property", "none") == []
    assert keys("--where", "$.order.lines[0].price>=20") == ["k2", "k3"]
    assert keys("--where", "$.order.who~ann-*", "--where", "$.order.who!=ann-0", "--key", "k[01]") == ["k1"]
    assert keys("--where", "$.order.nothing") == []
    assert main(["tail", topic, "--where", "order"]) == Exit.USAGE


@pytest.mark.parametrize("name", ["all.jsonl", "all.csv"])
def test_an_export_is_imported_with_all_that_it_had(
    run: Run, client: pulsar.Client, partitioned: str, tmp_path: Path, name: str
) -> None:
    producer = client.create_producer(partitioned)
    values = [b"text", b"\xff\x00binary", b"", 'quo"ted,\nlines ä'.encode()]
    for number, value in enumerate(values):
        producer.send(value, partition_key=f"k{number}", properties={"n": str(number), "ü": "x,y"}, event_timestamp=7)
    producer.send(b"without anything")
    file = str(tmp_path / name)
    run("export", partitioned, file)
    other = f"{partitioned}-again"
    run("import", other, file, "--compression", "lz4")
    wanted = lines(run("tail", partitioned, "--from", "earliest", "-n", "5", "-o", "json"))
    found = lines(run("tail", other, "--from", "earliest", "-n", "5", "-o", "json"))

    def kept(messages: list[dict[str, Any]]) -> list[str]:
        gone = {"topic", "id", "publishTime"}
        return sorted(json.dumps({key: one[key] for key in one if key not in gone}, sort_keys=True) for one in messages)

    assert kept(found) == kept(wanted)
    assert len(found) == 5


def test_an_export_ends_where_the_topic_ended_and_begins_where_it_is_told(run: Run, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "part"
    run("produce", topic, *[word for number in range(5) for word in ("-m", str(number))])
    messages = lines(run("tail", topic, "--from", "earliest", "-n", "5", "-o", "json"))
    run("export", topic, str(file), "--from", messages[3]["id"])
    assert [one["value"] for one in lines(file.read_text())] == ["3", "4"]
    run("export", topic, str(file), "--from", "1h", "--to", str(messages[0]["publishTime"]))
    assert file.read_text() == ""
    run("export", topic, str(file), "--from", "latest")
    assert file.read_text() == ""
    run("export", topic, str(file), "--from", "15m")
    assert len(lines(file.read_text())) == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"value": "a"}\nnot json\n', "line 2 of .* is not JSON"),
        ('{"key": "a"}\n', "line 1 of .* is no message: it has neither value nor valueBase64"),
        ('{"value": "a", "properties": {"n": 1}}\n', "properties must be an object of texts"),
        ('{"valueBase64": "%"}\n', "line 1 of .* is no message"),
        ("[1]\n", "line 1 of .* is no message"),
    ],
)
def test_a_line_that_is_no_message_is_named(
    topic: str, tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f").write_text(text)
    assert main(["import", topic, str(tmp_path / "f")]) == Exit.USAGE
    assert re.search(said, capsys.readouterr().err)


def test_dead_letters_are_sent_back_once(run: Run, client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=1, dead_letter_topic=f"{topic}-DLQ")
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=100,
    )
    letters = client.subscribe(f"{topic}-DLQ", "watch")
    client.create_producer(topic).send(b"poison", partition_key="k", properties={"a": "b"})
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(60_000))
    letters.receive(60_000)
    run("redrive", f"{topic}-DLQ", "--idle", "0.5", "--dry-run")
    run("redrive", f"{topic}-DLQ", "--idle", "0.5")
    again = consumer.receive(60_000)
    assert (again.data(), again.partition_key()) == (b"poison", "k")
    assert again.properties() == {"a": "b"}
    consumer.acknowledge(again)
    run("redrive", f"{topic}-DLQ", "--idle", "0.3")
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)


def test_a_range_is_copied(run: Run, topic: str) -> None:
    run("produce", topic, *[word for number in range(5) for word in ("-m", str(number))], "--key", "k")
    run("copy", topic, "--into", f"{topic}-2", "--key", "k")
    assert run("tail", f"{topic}-2", "--from", "earliest", "-n", "5").split() == ["0", "1", "2", "3", "4"]
    ids = [one["id"] for one in lines(run("tail", topic, "--from", "earliest", "-n", "5", "-o", "json"))]
    run("copy", topic, "--into", f"{topic}-3", "--from", ids[1], "--to", ids[3])
    run("copy", topic, "--into", f"{topic}-3", "--from", ids[4], "--to", f"{ids[4]}9")
    assert run("tail", f"{topic}-3", "--from", "earliest", "-n", "3").split() == ["1", "2", "4"]


def consumed(run: Run, topic: str) -> list[int]:
    """Take all that a subscription has, and acknowledge it."""
    return sorted(int(one) for one in run("consume", topic, "-s", "s", "--idle", "0.5").split())


def produced(run: Run, topic: str, count: int, *more: str) -> list[str]:
    """Publish numbers, and return their message ids."""
    run("produce", topic, *[word for number in range(count) for word in ("-m", str(number))], *more)
    return [one["id"] for one in lines(run("tail", topic, "--from", "earliest", "-n", str(count), "-o", "json"))]


def test_a_range_is_delivered_to_one_subscription_again(run: Run, topic: str) -> None:
    run("subscriptions", "create", topic, "s")
    run("subscriptions", "create", topic, "other")
    ids = produced(run, topic, 10)
    assert consumed(run, topic) == list(range(10))
    run("rewind", topic, "-s", "s", "--from", ids[3], "--to", ids[6], "--dry-run")
    assert consumed(run, topic) == []
    run("rewind", topic, "-s", "s", "--from", ids[3], "--to", ids[6])
    assert consumed(run, topic) == [3, 4, 5]
    run("rewind", topic, "-s", "s", "--from", ids[8])
    assert consumed(run, topic) == [8, 9]
    run("rewind", topic, "-s", "s", "--to", ids[2])
    assert consumed(run, topic) == [0, 1]
    assert len(run("consume", topic, "-s", "other", "--idle", "0.5").split()) == 10


def test_acknowledgements_outside_of_the_range_stay_as_they_were(
    run: Run, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those behind the mark, and what was not acknowledged before."""
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    ids = produced(run, topic, 10)
    got = {int(message.data()): message for message in (consumer.receive(20_000) for _ in range(10))}
    for number in (0, 1, 4, 5, 6, 8):
        consumer.acknowledge(got[number])
    consumer.close()
    run("rewind", topic, "-s", "s", "--from", ids[5], "--to", ids[8])
    assert consumed(run, topic) == [2, 3, 5, 6, 7, 9]
    run("rewind", topic, "-s", "s", "--from", ids[0], "--to", ids[1])
    assert consumed(run, topic) == [0]
    with_consumer = client.subscribe(topic, "s")
    assert main(["rewind", topic, "-s", "s"]) == Exit.FAILED
    assert "consumer" in capsys.readouterr().err
    with_consumer.close()
    assert consumed(run, topic) == []
    assert main(["rewind", topic, "-s", "none"]) == Exit.NOT_FOUND


def test_a_range_of_a_partitioned_topic_is_told_by_time(run: Run, partitioned: str) -> None:
    run("subscriptions", "create", partitioned, "s")
    produced(run, partitioned, 9)
    assert consumed(run, partitioned) == list(range(9))
    run("rewind", partitioned, "-s", "s", "--from", "1h", "--to", "30m")
    assert consumed(run, partitioned) == []
    run("rewind", partitioned, "-s", "s", "--from", "1h")
    assert consumed(run, partitioned) == list(range(9))


def test_what_is_not_there_or_not_allowed_has_its_status(
    broker: BrokerProcess, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tail", f"{topic}-none"]) == Exit.NOT_FOUND
    assert main(["consume", topic, "-s", "s", "--url", "pulsar://127.0.0.1:1"]) == Exit.NO_ANSWER
    assert "--url" in capsys.readouterr().err
    assert main(["consume", topic, "-s", "s", "--url", "x"]) == Exit.USAGE
    assert main(["tail", topic, "--from", "yesterday"]) == Exit.NOT_FOUND
    assert main(["produce", topic, "-m", "x"]) == Exit.OK
    capsys.readouterr()
    assert main(["tail", topic, "--from", "yesterday"]) == Exit.USAGE
    assert "is no place in a topic" in capsys.readouterr().err
    assert main(["produce", topic, "-m", "x", "--property", "a"]) == Exit.USAGE


def test_a_tail_goes_on_when_its_broker_starts_again(own_broker: BrokerProcess, run: Run, topic: str) -> None:
    port = own_broker.port
    assert main(["produce", topic, "-m", "before", "--url", own_broker.url]) == 0
    found: list[bytes | None] = []
    with connected(Target(url=own_broker.url)) as cluster, readers(cluster, topic, "earliest") as feeds:
        messages = (got for got in feeds.messages() if got is not None)
        found.append(next(messages).message.value)
        own_broker.stop()
        own_broker.start(port=port)
        writer = threading.Thread(target=main, args=(["produce", topic, "-m", "after", "--url", own_broker.url],))
        writer.start()
        found.append(next(messages).message.value)
        writer.join()
    assert found == [b"before", b"after"]

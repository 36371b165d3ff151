# SPDX-License-Identifier: Apache-2.0
"""Pages of messages over HTTP: where they begin, what is chosen, cut and masked; sending one; dead letters."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pulsar
import pulsar.schema
import pytest

from penstock.core.hashing import java_string_hash

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

MESSAGES = "/admin/v3/messages/persistent"


def values(page: dict[str, Any]) -> list[str]:
    return [row["value"] for row in page["messages"]]


def get(rest: httpx.Client, topic: str, **query: object) -> dict[str, Any]:
    answer = rest.get(f"{MESSAGES}/{topic}", params={name.rstrip("_"): str(one) for name, one in query.items()})
    assert answer.is_success, answer.text
    page: dict[str, Any] = answer.json()
    return page


@pytest.fixture
def ten(client: pulsar.Client, topic: str) -> str:
    """A topic with ten messages, each with its number as key and property."""
    producer = client.create_producer(f"persistent://{topic}", batching_enabled=False)
    for number in range(10):
        producer.send(
            json.dumps({"number": number, "card": "4000"}).encode(),
            partition_key=str(number),
            properties={"parity": "even" if number % 2 == 0 else "odd"},
        )
    return topic


def numbers(page: dict[str, Any]) -> list[int]:
    return [json.loads(value)["number"] for value in values(page)]


def test_pages_follow_one_another_and_the_last_says_so(rest: httpx.Client, ten: str) -> None:
    first = get(rest, ten, limit=6)
    assert numbers(first) == [0, 1, 2, 3, 4, 5]
    assert (first["atEnd"], first["behind"]) == (False, 4)
    second = get(rest, ten, limit=6, from_=first["next"])
    assert numbers(second) == [6, 7, 8, 9]
    assert (second["atEnd"], second["behind"]) == (True, 0)
    assert get(rest, ten, from_=second["next"])["messages"] == []


def test_a_page_begins_before_the_end_or_before_a_message_or_at_a_time(rest: httpx.Client, ten: str) -> None:
    assert numbers(get(rest, ten, from_="latest", back=3)) == [7, 8, 9]
    assert get(rest, ten, from_="latest")["messages"] == []
    fifth = get(rest, ten)["messages"][5]
    assert numbers(get(rest, ten, from_=fifth["id"], limit=2)) == [5, 6]
    assert numbers(get(rest, ten, from_=fifth["id"], back=2, limit=2)) == [3, 4]
    assert numbers(get(rest, ten, since=fifth["publishTime"]))[-1] == 9
    assert get(rest, ten, since=fifth["publishTime"] + 3_600_000)["messages"] == []


def test_what_is_published_later_is_behind_the_last_page(client: pulsar.Client, rest: httpx.Client, ten: str) -> None:
    end = get(rest, ten, from_="latest")["next"]
    client.create_producer(f"persistent://{ten}").send(b"later")
    assert values(get(rest, ten, from_=end)) == ["later"]


def test_messages_are_chosen_by_key_property_and_text(rest: httpx.Client, ten: str) -> None:
    assert numbers(get(rest, ten, key="[34]")) == [3, 4]
    assert numbers(get(rest, ten, property="parity=o*")) == [1, 3, 5, 7, 9]
    assert numbers(get(rest, ten, text='"NUMBER": 7')) == [7]
    assert numbers(get(rest, ten, property="parity=odd", key="4")) == []
    page = get(rest, ten, property="parity=odd", limit=2)
    assert numbers(page) == [1, 3]
    assert numbers(get(rest, ten, property="parity=odd", limit=9, from_=page["next"])) == [5, 7, 9]


def test_a_batch_is_paged_message_by_message(client: pulsar.Client, rest: httpx.Client, topic: str) -> None:
    producer = client.create_producer(
        f"persistent://{topic}",
        batching_enabled=True,
        batching_max_publish_delay_ms=60_000,
        compression_type=pulsar.CompressionType.ZSTD,
    )
    for number in range(7):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    first = get(rest, topic, limit=3)
    second = get(rest, topic, limit=3, from_=first["next"])
    third = get(rest, topic, limit=3, from_=second["next"])
    assert [*values(first), *values(second), *values(third)] == [str(number) for number in range(7)]
    assert (first["atEnd"], second["atEnd"], third["atEnd"]) == (False, False, True)


def test_large_and_hostile_contents_are_cut_with_their_size_and_are_text(
    client: pulsar.Client, rest: httpx.Client, topic: str
) -> None:
    producer = client.create_producer(f"persistent://{topic}")
    producer.send(
        "é".encode() * 100_000, properties={"<script>": "x" * 100_000, "rest": "y"}, partition_key="k" * 2_000
    )
    producer.send(b"\xff\x00\x01" * 1_000)
    text, binary = get(rest, topic, shown=1_001)["messages"]
    assert text["value"] == "é" * 500
    assert (text["size"], text["cut"], text["propertiesBytes"]) == (200_000, True, 100_013)
    assert (len(text["key"]), text["keyBytes"]) == (1_001, 2_000)
    assert sum(len(name) + len(one) for name, one in text["properties"].items()) <= 1_001
    assert binary["valueBase64"] == b64encode((b"\xff\x00\x01" * 334)[:1_001]).decode()
    whole, _ = get(rest, topic)["messages"]
    assert (len(whole["value"]), "cut" in whole, len(whole["properties"]["<script>"])) == (100_000, False, 100_000)


def test_bounds_of_a_page_are_checked(rest: httpx.Client, topic: str) -> None:
    for query in ("limit=201", "limit=0", "back=201", "from=middle", "shown=70000", f"text={'x' * 257}", "since=-1"):
        assert rest.get(f"{MESSAGES}/{topic}?{query}").status_code == 400, query
    assert "has no message" in rest.get(f"{MESSAGES}/{topic}?from=999999:0").json()["reason"]
    assert rest.get(f"{MESSAGES}/{topic}-none").status_code == 404
    nothing = rest.get(f"{MESSAGES.replace('persistent', 'non-persistent')}/{topic}")
    assert nothing.status_code == 405


@pytest.fixture
def masked(rest: httpx.Client) -> Iterator[None]:
    """Properties and fields are masked meanwhile."""
    names = {"maskedMessageProperties": "par*,key", "maskedMessageFields": "card"}
    for name, value in names.items():
        assert rest.post(f"/admin/v2/brokers/configuration/{name}/{value}").is_success
    yield
    for name in names:
        rest.delete(f"/admin/v2/brokers/configuration/{name}")


@pytest.mark.usefixtures("masked")
def test_what_is_masked_does_not_leave_the_broker_and_is_not_searched(rest: httpx.Client, ten: str) -> None:
    row = get(rest, ten, limit=1)["messages"][0]
    assert (json.loads(row["value"]), row["key"], row["properties"]) == (
        {"number": 0, "card": "***"},
        "***",
        {"parity": "***"},
    )
    assert get(rest, ten, text="4000")["messages"] == []
    assert get(rest, ten, property="parity=odd")["messages"] == []
    for path in ("examinemessage", f"ledger/{row['id'].replace(':', '/entry/')}"):
        raw = rest.get(f"/admin/v2/persistent/{ten}/{path}")
        assert raw.status_code == 405
        assert "maskedMessageFields" in raw.json()["reason"]


@pytest.mark.usefixtures("masked")
def test_a_value_that_is_no_json_is_hidden_where_fields_are_masked(
    client: pulsar.Client, rest: httpx.Client, topic: str
) -> None:
    client.create_producer(f"persistent://{topic}").send(b"card 4000")
    assert values(get(rest, topic)) == ["***"]


# -- decoded by their schema


class Payment(pulsar.schema.Record):  # type: ignore[misc]  # the client has no types
    """What a client with a schema sends."""

    number = pulsar.schema.Integer()
    card = pulsar.schema.String()


@pytest.fixture
def payments(client: pulsar.Client, topic: str) -> str:
    """A topic with two values in Avro."""
    producer = client.create_producer(f"persistent://{topic}", schema=pulsar.schema.AvroSchema(Payment))
    for number in (1, 2):
        producer.send(Payment(number=number, card=f"400{number}"))
    return topic


def test_values_are_decoded_by_the_schema_of_their_producer_if_that_is_asked_for(
    rest: httpx.Client, payments: str
) -> None:
    first, second = get(rest, payments, decoded=True)["messages"]
    assert json.loads(first["value"]) == {"number": 1, "card": "4001"}
    assert (first["schemaType"], first["schemaVersion"], second["size"]) == ("AVRO", 0, 8)
    assert [json.loads(one)["number"] for one in values(get(rest, payments, decoded=True, text="4002"))] == [2]
    cut = get(rest, payments, decoded=True, shown=5)["messages"][0]
    assert (cut["value"], cut["cut"]) == (first["value"][:5], True)
    stored = get(rest, payments)["messages"][0]
    assert "schemaType" not in stored
    assert "4001" in (stored.get("value") or "") or "valueBase64" in stored


@pytest.mark.usefixtures("masked")
def test_fields_of_decoded_values_are_masked_and_what_is_not_decoded_is_hidden(
    rest: httpx.Client, payments: str
) -> None:
    assert [json.loads(one) for one in values(get(rest, payments, decoded=True))] == [
        {"number": 1, "card": "***"},
        {"number": 2, "card": "***"},
    ]
    assert get(rest, payments, decoded=True, text="4002")["messages"] == []
    assert values(get(rest, payments)) == ["***", "***"]


def test_a_value_that_is_not_what_its_schema_says_is_shown_with_the_reason(
    client: pulsar.Client, rest: httpx.Client, payments: str
) -> None:
    sent = rest.post(f"{MESSAGES}/{payments}", json={"valueBase64": b64encode(b"\xff").decode()})
    assert sent.status_code == 409 or sent.is_success, sent.text
    schema = pulsar.schema.AvroSchema(Payment)
    schema.encode = lambda _value: b"\xff"
    client.create_producer(f"persistent://{payments}", schema=schema).send(Payment(number=1, card=""))
    last = get(rest, payments, decoded=True)["messages"][-1]
    assert last["valueBase64"] == b64encode(b"\xff").decode()
    assert last["undecoded"] == "it ends before what the schema describes"


# -- sending


def test_a_message_is_sent_with_all_that_it_says(client: pulsar.Client, rest: httpx.Client, topic: str) -> None:
    consumer = client.subscribe(f"persistent://{topic}", "s")
    body = {"key": "k", "properties": {"a": "b"}, "eventTime": 1_700_000_000_000, "value": "hello"}
    sent = rest.post(f"{MESSAGES}/{topic}", json=body)
    assert sent.is_success, sent.text
    message = consumer.receive(20_000)
    assert (message.data(), message.partition_key(), message.properties()) == (b"hello", "k", {"a": "b"})
    assert message.event_timestamp() == 1_700_000_000_000
    assert sent.json()["id"] == f"{message.message_id().ledger_id()}:{message.message_id().entry_id()}"
    assert get(rest, topic)["messages"][0]["producer"] == "penstock-admin"


def test_bytes_and_nothing_are_sent_and_delayed_messages_wait(
    client: pulsar.Client, rest: httpx.Client, topic: str
) -> None:
    consumer = client.subscribe(f"persistent://{topic}", "s", consumer_type=pulsar.ConsumerType.Shared)
    for body in ({"value": "late", "deliverAt": 4_000_000_000_000}, {"valueBase64": "/wA="}, {"key": "gone"}):
        assert rest.post(f"{MESSAGES}/{topic}", json=body).is_success
    assert consumer.receive(20_000).data() == b"\xff\x00"
    assert consumer.receive(20_000).data() == b""
    assert [row.get("value") for row in get(rest, topic)["messages"]] == ["late", None, None]
    assert get(rest, topic)["messages"][0]["deliverAt"] == 4_000_000_000_000


def test_a_key_chooses_the_partition_as_it_does_in_clients_of_java(rest: httpx.Client, namespace: str) -> None:
    assert rest.put(f"/admin/v2/persistent/{namespace}/p/partitions", json=4).is_success
    for number in range(8):
        key = f"key {number}"
        sent = rest.post(f"{MESSAGES}/{namespace}/p", json={"key": key, "value": "x"}).json()
        theirs = java_string_hash(key.encode()) % 4
        assert sent["topic"] == f"persistent://{namespace}/p-partition-{theirs}"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"value": "a", "valueBase64": "YQ=="}, "both given"),
        ({"valueBase64": "*"}, "no base64"),
        ({"key": "a", "keyBase64": "YQ=="}, "both given"),
        ({"value": "x" * (6 * 1024 * 1024)}, "too large"),
    ],
)
def test_a_message_that_cannot_be_sent_is_refused_in_words(
    rest: httpx.Client, topic: str, body: dict[str, str], said: str
) -> None:
    answer = rest.post(f"{MESSAGES}/{topic}", json=body)
    assert answer.status_code in {412, 405, 413}
    assert said in answer.text or "size" in answer.text or "bytes" in answer.text


def test_rules_of_the_topic_are_kept(client: pulsar.Client, rest: httpx.Client, topic: str) -> None:
    base = f"/admin/v2/persistent/{topic}"
    assert rest.post(f"{MESSAGES}/{topic}-none", json={"value": "x"}).status_code == 404
    assert rest.post(f"{base}/publishRate", json={"publishThrottlingRateInMsg": 1}).is_success
    statuses = [rest.post(f"{MESSAGES}/{topic}", json={"value": "x"}).status_code for _ in range(20)]
    assert 429 in statuses
    assert rest.delete(f"{base}/publishRate").is_success
    assert rest.post(f"{base}/maxMessageSize", content="100").is_success
    assert "maximum message size" in rest.post(f"{MESSAGES}/{topic}", json={"value": "x" * 200}).json()["reason"]
    assert rest.delete(f"{base}/maxMessageSize").is_success
    schema = {"type": "AVRO", "schema": '{"type":"record","name":"R","fields":[]}', "properties": {}}
    assert rest.post(f"/admin/v2/schemas/{topic}/schema", json=schema).is_success
    assert "AVRO" in rest.post(f"{MESSAGES}/{topic}", json={"value": "x"}).json()["reason"]
    assert rest.post(f"{base}/terminate").is_success
    assert rest.post(f"{MESSAGES}/{topic}", json={"valueBase64": "AA=="}).status_code >= 400


# -- dead letters


def test_dead_letters_go_back_once_without_what_was_added(
    client: pulsar.Client, rest: httpx.Client, namespace: str
) -> None:
    origin, dead = f"persistent://{namespace}/origin", f"{namespace}/dead"
    consumer = client.subscribe(origin, "s")
    producer = client.create_producer(f"persistent://{dead}")
    for number in range(3):
        added = {"REAL_TOPIC": origin, "REAL_SUBSCRIPTION": "s", "own": str(number)}
        producer.send(b"%d" % number, properties=added, partition_key="k")
    answer = rest.post(f"{MESSAGES}/{dead}/redrive")
    assert answer.json() == {"sent": {origin: 3}, "left": 0, "stopped": None}
    messages = [consumer.receive(20_000) for _ in range(3)]
    assert [(one.data(), one.properties(), one.partition_key()) for one in messages] == [
        (b"%d" % number, {"own": str(number)}, "k") for number in range(3)
    ]
    assert rest.post(f"{MESSAGES}/{dead}/redrive").json() == {"sent": {}, "left": 0, "stopped": None}


def test_a_dead_letter_that_says_nothing_stops_the_redrive_until_a_topic_is_named(
    client: pulsar.Client, rest: httpx.Client, namespace: str
) -> None:
    dead, into = f"{namespace}/dead", f"persistent://{namespace}/into"
    client.create_producer(into).close()
    client.create_producer(f"persistent://{dead}").send(b"x")
    stopped = rest.post(f"{MESSAGES}/{dead}/redrive").json()
    assert (stopped["sent"], stopped["left"]) == ({}, 1)
    assert "does not say where it came from" in stopped["stopped"]
    assert rest.post(f"{MESSAGES}/{dead}/redrive", params={"into": into}).json()["sent"] == {into: 1}


def test_a_message_in_chunks_is_shown_in_pieces_and_not_sent_on(
    client: pulsar.Client, rest: httpx.Client, namespace: str
) -> None:
    dead = f"{namespace}/dead"
    producer = client.create_producer(
        f"persistent://{dead}",
        batching_enabled=False,
        chunking_enabled=True,
        compression_type=pulsar.CompressionType.LZ4,
    )
    producer.send(os.urandom(6_000_000), properties={"REAL_TOPIC": f"persistent://{namespace}/origin"})
    rows = [get(rest, dead, shown=10, limit=1, from_=begin)["messages"][0] for begin in ("earliest", last(rest, dead))]
    assert [row["chunk"] for row in rows] == [True, True]
    stopped = rest.post(f"{MESSAGES}/{dead}/redrive").json()
    assert (stopped["sent"], "in chunks" in stopped["stopped"]) == ({}, True)


def last(rest: httpx.Client, topic: str) -> str:
    said = rest.get(f"/admin/v2/persistent/{topic}/lastMessageId").json()
    return f"{said['ledgerId']}:{said['entryId']}"

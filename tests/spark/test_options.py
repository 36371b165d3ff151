# SPDX-License-Identifier: Apache-2.0
"""Options of a read: each is checked on the driver, and a wrong one is told by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.spark.client.message_id import MessageId
from penstock.spark.options import CONNECTION_OPTIONS, READ_OPTIONS, ReadSettings, parse_endpoint, parse_read_options

if TYPE_CHECKING:
    from pathlib import Path

URL = "pulsar://127.0.0.1:6650"


def settings(**given: str) -> ReadSettings:
    return parse_read_options({"service.url": URL, "topic": "t", **{k.replace("__", "."): v for k, v in given.items()}})


def test_names_are_read_in_any_case_and_with_the_prefixes_of_other_connectors() -> None:
    found = parse_read_options(
        {"Service.URL": URL, "TOPIC": "t", "pulsar.client.operationTimeoutMs": "5000", "maxOffsetsPerTrigger": "7"}
    )
    assert found.endpoint.operation_timeout_s == 5.0
    assert found.messages_max == 7


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffset": "earliest"}, ["startingOffset", "did you mean startingOffsets"]),
        ({"frobnicate": "1"}, ["frobnicate", "docs/reference/spark.md"]),
        ({"topics": "a,b"}, ["topic", "topics", "together"]),
        ({"startingOffsets": "yesterday"}, ["startingOffsets", "yesterday", "earliest"]),
        ({"startingOffsets": '{"t": [1]}'}, ["startingOffsets", "[ledger, entry]"]),
        ({"startingTime": "yesterday"}, ["startingTime", "ms since 1970", "2024-03-01T10:00:00Z"]),
        ({"startingTime": '{"t": "noon"}'}, ["startingTime", "noon"]),
        ({"maxTriggerDelay": "5 fortnights"}, ["maxTriggerDelay", "15m"]),
        ({"failOnDataLoss": "maybe"}, ["failOnDataLoss", "true, false"]),
        ({"maxMessagesPerTrigger": "0"}, ["maxMessagesPerTrigger", "1 or more"]),
        ({"maxBytesPerTrigger": "much"}, ["maxBytesPerTrigger", "much"]),
        ({"service__url": "http://host:8080"}, ["service.url", "pulsar://host:6650"]),
        ({"service__url": "pulsar://host:0"}, ["service.url", "host:port"]),
        ({"tlsTrustCertsFilePath": "/no/such.pem"}, ["tlsTrustCertsFilePath", "/no/such.pem"]),
        ({"predefinedSubscription": "a", "subscriptionPrefix": "b"}, ["exclude each other"]),
        ({"authPluginClassName": "org.x.AuthenticationSasl"}, ["authPluginClassName", "sasl"]),
        ({"authPluginClassName": "AuthenticationBasic", "authParams": "user"}, ["authParams", "userId"]),
        ({"topic": "a/b/c/d"}, ["topic", "a/b/c/d"]),
    ],
)
def test_a_wrong_option_is_named_with_what_it_may_be(given: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 -- the message is what is tested
        settings(**given)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_missing_url_and_missing_topics_are_told() -> None:
    with pytest.raises(ValueError, match=r"service\.url is missing"):
        parse_read_options({"topic": "t"})
    with pytest.raises(ValueError, match="topicsPattern; there is none"):
        parse_read_options({"service.url": URL})


@pytest.mark.parametrize(
    ("pattern", "wrong"),
    [
        ("a.*/b/c", "the tenant plain"),
        ("a/b", "want tenant/namespace/expression"),
        ("public/default/x(", "regular expression"),
        ("public/a(b/c)", "regular expression"),
        ("public/a.*/b", r"give admin\.url"),
    ],
)
def test_a_pattern_names_one_tenant_and_has_regular_expressions(pattern: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        parse_read_options({"service.url": URL, "topicsPattern": pattern})


@pytest.mark.parametrize(
    ("url", "admin_url", "wrong"),
    [
        (URL, "host:8080", "want the address of one broker"),
        (URL, "http://user:secret@host:8080", "want the address of one broker"),
        ("pulsar+ssl://b:6651", "http://host:8080", "not sent without TLS; use https"),
    ],
)
def test_an_admin_url_is_checked_where_it_is_needed(url: str, admin_url: str, wrong: str) -> None:
    given = {"service.url": url, "token": "t", "admin.url": admin_url}
    assert parse_read_options({**given, "topicsPattern": "public/default/a.*"}).pattern is not None
    with pytest.raises(ValueError, match=wrong):
        parse_read_options({**given, "topicsPattern": "public/a.*/b"})


def test_places_are_words_times_and_ids_by_topic() -> None:
    assert settings(startingOffsets="Latest").starting == "latest"
    assert settings(startingTime="1700000000000").starting == 1_700_000_000_000
    assert settings(endingOffsets='{"t": [1, 2, -1], "a/b/c": "earliest"}').ending == {
        "persistent://public/default/t": MessageId(1, 2),
        "persistent://a/b/c": "earliest",
    }


def test_credentials_are_read_in_our_words_and_in_those_of_the_java_client(tmp_path: Path) -> None:
    held = tmp_path / "token"
    held.write_text("abc\n")
    java = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
    for given in (
        {"token": "abc"},
        {"token": f"file://{held}"},
        {"pulsar.client.authPluginClassName": java, "pulsar.client.authParams": "token:abc"},
    ):
        shown = parse_endpoint({"service.url": URL, **given}).credentials
        assert (shown.method, shown.data()) == ("token", b"abc")
    basic = parse_endpoint({"service.url": URL, "userName": "u", "password": "p"}).credentials
    assert (basic.method, basic.data()) == ("basic", b"u:p")


def test_secrets_are_not_shown_by_repr() -> None:
    shown = repr(settings(token="hidden-thing"))
    assert "hidden-thing" not in shown


def test_every_option_has_a_name_of_its_own() -> None:
    names = [option.name.lower() for option in (*CONNECTION_OPTIONS, *READ_OPTIONS)]
    assert len(set(names)) == len(names)


def test_times_are_ms_or_iso_and_may_be_given_for_each_partition() -> None:
    assert settings(startingTime="1700000000000").starting == 1_700_000_000_000
    assert settings(startingTime="2023-11-14T22:13:20Z").starting == 1_700_000_000_000
    assert settings(startingTime="2023-11-15 00:13:20+02:00").starting == 1_700_000_000_000
    assert settings(endingTime='{"t-partition-1": "2023-11-14T22:13:20", "t": "latest"}').ending == {
        "persistent://public/default/t-partition-1": 1_700_000_000_000,
        "persistent://public/default/t": "latest",
    }


def test_names_of_kafkas_source_are_understood() -> None:
    found = settings(
        maxOffsetsPerTrigger="10", minOffsetsPerTrigger="5", maxTriggerDelay="2m", maxRecordsPerPartition="3"
    )
    assert (found.messages_max, found.messages_min, found.delay_max_s, found.task_messages_max) == (10, 5, 120.0, 3)

# SPDX-License-Identifier: Apache-2.0
"""`penstock bench` against a real broker: what it counts is what was stored and read."""

from __future__ import annotations

import json
import threading
import uuid
from typing import TYPE_CHECKING, Any, TypeAlias

import pulsar
import pytest

from penstock.cli.bench_load import Histogram, Times
from penstock.cli.exits import Exit
from penstock.cli.main import main
from penstock.core.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.testing.process import BrokerProcess

Bench: TypeAlias = "Callable[..., dict[str, Any]]"


@pytest.fixture
def bench(broker: BrokerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Run a load for a moment; its figures."""
    monkeypatch.setenv("PENSTOCK_URL", broker.url)

    def run(*words: str, seconds: str = "0.3") -> dict[str, Any]:
        status = main(["bench", *words, "--seconds", seconds, "-o", "json"])
        printed = capsys.readouterr()
        assert status == Exit.OK, printed.err
        found: dict[str, Any] = json.loads(printed.out)
        return found

    return run


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    return f"bench-{uuid.uuid4().hex[:8]}"


def test_times_are_counted_within_three_percent() -> None:
    histogram = Histogram()
    histogram.add(2 * NS_PER_MS, 99)
    histogram.add(50 * NS_PER_MS)
    assert histogram.milliseconds((0.5, 0.99, 1.0)) == pytest.approx([2, 2, 50], rel=0.03)
    assert sum(row["count"] for row in histogram.rows()) == 100


def test_nothing_counted_has_no_percentiles() -> None:
    assert Histogram().milliseconds((0.5,)) == []


def test_entries_that_were_due_together_may_come_apart_and_those_of_the_warm_up_are_left_out() -> None:
    times = Times()
    times.due(10, 0)
    times.due(20, 5 * NS_PER_MS)
    times.came(4, NS_PER_MS, counts=False)
    times.came(20, 10 * NS_PER_MS, counts=True)
    assert [row["count"] for row in times.taken.rows()] == [10, 6]


def test_what_was_published_is_read_to_its_end(bench: Bench, topic: str, client: pulsar.Client) -> None:
    client.subscribe(topic, "keeps").close()
    published = bench("publish", topic, "--size", "100")
    assert published["entries"] > 0
    shares = published["receiptMs"]
    assert 0 < shares["p50"] <= shares["p90"] <= shares["p99"] <= shares["p99.9"] <= shares["max"]
    read = bench("consume", topic, seconds="20")
    # What was sent in the warm-up, and after the end, was not counted.
    assert read["entries"] >= published["entries"]
    assert read["seconds"] < 20


def test_a_rate_is_kept_and_batches_count_as_messages(bench: Bench, topic: str) -> None:
    figures = bench("end-to-end", topic, "--rate", "500", "--batch", "5", "--size", "10")
    assert 0 < figures["entries"] <= 0.3 * 100 + 100  # 100 entries per second, and what a busy machine owed
    assert figures["messagesPerSecond"] == pytest.approx(5 * figures["entriesPerSecond"], rel=0.01)
    assert figures["endToEndMs"]["max"] >= figures["endToEndMs"]["p50"] > 0


def test_producers_take_the_partitions_in_turn(bench: Bench, topic: str, broker: BrokerProcess) -> None:
    assert main(["topics", "create-partitioned", topic, "2", "--admin-url", broker.admin_url]) == Exit.OK
    assert bench("publish", topic, "--producers", "3")["entries"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("publish", "t", "--size", "much"), "--size: 'much' is not"),
        (("publish", "t", "--window", "0"), "--window 0: want at least 1"),
        (("end-to-end", "t", "--producers", "2"), "--producers is for publish"),
    ],
)
def test_a_wrong_call_says_what_is_wanted(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == Exit.USAGE
    assert said in capsys.readouterr().err


def test_partitions_are_named_where_one_topic_is_wanted(
    bench: Bench, topic: str, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    del bench  # It has set the address.
    assert main(["topics", "create-partitioned", topic, "2", "--admin-url", broker.admin_url]) == Exit.OK
    assert main(["bench", "end-to-end", topic]) == Exit.USAGE
    assert f"{topic}-partition-0" in capsys.readouterr().err


def test_a_message_of_somebody_else_ends_it(
    bench: Bench, topic: str, client: pulsar.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """The load sends what it compares with; another's messages would be counted as its own."""
    del bench
    with_others = client.create_producer(topic, batching_enabled=False)
    over = threading.Event()

    def disturb() -> None:
        while not over.is_set():
            with_others.send(b"x" * 500)

    other = threading.Thread(target=disturb)
    other.start()
    try:
        status = main(["bench", "end-to-end", topic, "--rate", "0", "--seconds", "20"])
    finally:
        over.set()
        other.join()
    assert status == Exit.FAILED
    assert "does somebody else use this topic?" in capsys.readouterr().err

# SPDX-License-Identifier: Apache-2.0
"""`penstock top`: metrics summed up in rows, as rates, busiest first; of penstock and of others with Pulsar's names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pulsar

from penstock.cli.exits import Exit
from penstock.cli.main import build_parser, main
from penstock.cli.top import Look, read, rows

if TYPE_CHECKING:
    import pytest

    from penstock.testing.process import BrokerProcess

A = 'cluster="c",namespace="shop/orders",topic="persistent://shop/orders/a"'
B = 'cluster="c",namespace="shop/orders",topic="persistent://shop/orders/b"'
PENSTOCK = """\
penstock_healthy 1
penstock_degraded 0
process_resident_memory_bytes 104857600
penstock_memory_used_bytes{owner="dispatch"} 9
penstock_memory_budget_bytes{owner="dispatch"} 10
penstock_memory_used_bytes{owner="tail-cache"} 10
penstock_memory_budget_bytes{owner="tail-cache"} 10
penstock_holds{reason="rate"} 3
penstock_holds{reason="quota"} 0
"""


def look(at_s: float, by: str, *texts: str) -> Look:
    found = Look(at_s)
    for number, text in enumerate(texts):
        read(text, f"broker-{number}:8080", by, found)
    return found


def shown(by: str, *looks: Look, **options: str) -> list[dict[str, Any]]:
    words = ["top", "--by", by, "-o", "json", *(word for name, text in options.items() for word in (f"--{name}", text))]
    return rows(looks[0], looks[-1], build_parser(("top",)).parse_args(words))


def metrics(a: int, b: int, nbytes: int = 0) -> str:
    """Two topics, one of which has two subscriptions."""
    return f"""\
# TYPE pulsar_in_messages_total counter
pulsar_in_messages_total{{{A}}} {a}
pulsar_in_messages_total{{{B}}} {b}
pulsar_in_bytes_total{{{A}}} {nbytes}
pulsar_broker_in_messages_total{{cluster="c"}} 99999
pulsar_msg_backlog{{{A}}} 7
pulsar_subscription_back_log{{{A},subscription="s"}} 5
pulsar_subscription_back_log{{{A},subscription="t"}} 7
pulsar_subscription_consumers_count{{{A},subscription="s"}} 2
"""


def test_counters_are_rates_and_the_busiest_is_first() -> None:
    first, second = look(10.0, "topics", metrics(100, 50)), look(12.0, "topics", metrics(140, 250, 4_096))
    b, a = shown("topics", first, second)
    assert (b["name"], b["msgRateIn"]) == ("persistent://shop/orders/b", 100.0)
    assert (a["name"], a["msgRateIn"], a["msgThroughputIn"]) == ("persistent://shop/orders/a", 20.0, 2_048.0)
    assert (a["msgBacklog"], a["consumers"], b["msgBacklog"]) == (7, 2, 0)
    assert [row["name"] for row in shown("topics", first, second, sort="backlog")] == [a["name"], b["name"]]
    assert shown("topics", first, second, rows="1") == [b]


def test_rows_are_summed_up_over_topics_and_brokers() -> None:
    first = look(0.0, "namespaces", metrics(0, 0), metrics(0, 0))
    second = look(1.0, "namespaces", metrics(10, 5), metrics(1, 0))
    assert [(row["name"], row["msgRateIn"], row["consumers"]) for row in shown("namespaces", first, second)] == [
        ("shop/orders", 16.0, 4)
    ]
    (tenant,) = shown("tenants", look(0.0, "tenants", metrics(0, 0)), look(1.0, "tenants", metrics(2, 1)))
    assert (tenant["name"], tenant["msgRateIn"]) == ("shop", 3.0)


def test_subscriptions_have_their_own_backlogs() -> None:
    found = look(1.0, "subscriptions", metrics(0, 0))
    assert [(row["name"], row["msgBacklog"], row["consumers"]) for row in shown("subscriptions", found)] == [
        ("persistent://shop/orders/a t", 7, 0),
        ("persistent://shop/orders/a s", 5, 2),
    ]


def test_a_counter_that_was_reset_counts_from_zero_and_a_new_topic_has_no_rate_yet() -> None:
    before, now = look(0.0, "topics", metrics(1_000, 0)), look(1.0, "topics", metrics(30, 0))
    assert shown("topics", before, now)[0]["msgRateIn"] == 30.0
    assert {row["msgRateIn"] for row in shown("topics", Look(0.0), now)} == {0.0}


def test_a_broker_says_how_it_is_and_what_waits_if_it_is_penstock() -> None:
    found = look(0.0, "topics", PENSTOCK, metrics(1, 1))
    assert found.brokers == {
        "broker-0:8080": "healthy, 100 MiB resident, dispatch 90% of its memory; waiting: 3 rate",
        "broker-1:8080": "",
    }


def test_one_look_at_a_broker(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    topic = "persistent://public/default/seen-by-top"
    client.subscribe(topic, "nobody").close()
    producer = client.create_producer(topic)
    for _ in range(10):
        producer.send(b"x")
    once = ["top", "--once", "--interval", "0.1", "--admin-url", broker.admin_url]
    assert main([*once, "-o", "json", "--sort", "backlog"]) == Exit.OK
    answer = json.loads(capsys.readouterr().out)
    (row,) = [row for row in answer["topics"] if row["name"] == topic]
    assert (row["msgBacklog"], row["publishers"], row["consumers"]) == (10, 1, 0)
    assert next(iter(answer["brokers"].values())).startswith("healthy, ")
    assert main([*once, "--by", "subscriptions"]) == Exit.OK
    out = capsys.readouterr().out
    assert out.splitlines()[2].split() == ["subscription", "out/s", "KiB", "out/s", "backlog", "unacked", "consumers"]
    assert f"{topic} nobody" in out
    client.close()


def test_nobody_at_the_address_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--admin-url", "http://127.0.0.1:1"]) == Exit.NO_ANSWER
    assert "does not answer" in capsys.readouterr().err

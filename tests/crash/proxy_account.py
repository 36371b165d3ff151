# SPDX-License-Identifier: Apache-2.0
"""What proxies have recorded of topics, beside what the brokers behind them have stored.

A proxy counts a publish when its receipt passes. So of each topic at least every message is counted once, and at most
every entry that is stored: a message whose receipt was lost behind the proxy is sent again, stored twice, and counted
once. Without such messages both are equal to the byte.
Where: the crash loop of the proxies, with `--account`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.spark.accounting.in_process import ArrowAccounting
from penstock.spark.accounting.records_source import PROXY_TOPICS, Source
from penstock.testing.client import RawClient, Type
from penstock.wire import metadata
from penstock.wire.client.frames import entry_in

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SUBSCRIPTION = "account"
PERMITS = 1 << 30
# `published_messages` counts a message in chunks once, `published_chunks` its other chunks.
COUNTERS = ("published_messages", "published_chunks", "published_bytes")


class Published(NamedTuple):
    """Entries, and their size as they are stored."""

    entries: int = 0
    bytes: int = 0

    def plus(self, other: Published) -> Published:
        return Published(self.entries + other.entries, self.bytes + other.bytes)


class Stored(NamedTuple):
    """What a topic has, and how much of that is there again."""

    all: Published = Published()
    again: Published = Published()

    def plus(self, other: Stored) -> Self:
        return self._replace(all=self.all.plus(other.all), again=self.again.plus(other.again))


def stored_in(broker_url: str, topic: str) -> Stored:
    """Read a topic from its broker; entries are equal if they have a producer, a number and a chunk in common."""
    sizes: list[int] = []
    first: dict[tuple[str, int, int], int] = {}
    with RawClient(int(broker_url.rpartition(":")[2])) as client:
        client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=topic, authoritative=False)
        client.subscribe(topic, SUBSCRIPTION, permits=PERMITS)
        ask, answer = Type.GET_LAST_MESSAGE_ID, Type.GET_LAST_MESSAGE_ID_RESPONSE
        last = client.request(ask, answer, consumer_id=0).last_message_id
        while True:
            came = client.message()
            about = metadata.decode(entry_in(came.entry))
            sizes.append(len(came.entry))
            first.setdefault((about.producer_name, about.sequence_id, about.chunk_id), len(came.entry))
            at = came.command.message.message_id
            if (at.ledgerId, at.entryId) >= (last.ledgerId, last.entryId):
                break
    stored = Published(len(sizes), sum(sizes))
    return Stored(stored, Published(len(sizes) - len(first), stored.bytes - sum(first.values())))


def recorded_by_proxies(broker_url: str, tables: Path) -> dict[str, Published]:
    """Make tables of the proxies' records; return what they say of each topic."""
    ArrowAccounting(source=Source(url=broker_url, topics=PROXY_TOPICS), tables=tables).run_once()
    rows = ds.dataset(tables / "topic_usage", partitioning="hive").to_table(columns=["topic", *COUNTERS])
    sums = rows.group_by("topic").aggregate([(name, "sum") for name in COUNTERS])
    columns = [pc.fill_null(sums[f"{name}_sum"], 0).to_pylist() for name in COUNTERS]
    return {
        topic: Published(messages + chunks, nbytes)
        for topic, messages, chunks, nbytes in zip(sums["topic"].to_pylist(), *columns, strict=True)
    }


def check(recorded: dict[str, Published], stored: Iterable[tuple[str, Stored]]) -> tuple[Published, Stored]:
    """Compare each topic; returns what was recorded and stored of all. Raises AssertionError, and names the topic."""
    total, total_stored = Published(), Stored()
    for topic, one in stored:
        of_topic = recorded.get(topic, Published())
        total, total_stored = total.plus(of_topic), total_stored.plus(one)
        least = Published(one.all.entries - one.again.entries, one.all.bytes - one.again.bytes)
        assert least.entries <= of_topic.entries <= one.all.entries, f"{topic}: recorded {of_topic}, stored {one}"
        assert least.bytes <= of_topic.bytes <= one.all.bytes, f"{topic}: recorded {of_topic}, stored {one}"
    return total, total_stored

# SPDX-License-Identifier: Apache-2.0
"""Topics of numbered messages, written and read with the client that Spark's tasks use, and with nothing else.

Why numbers: that nothing is missing, twice or in another order is then one comparison with a `range`.
Where: tests of the client, above all of what it does about security and about brokers that move topics.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.spark.client.endpoint import Endpoint
from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.spark.client.producer import Producer
from penstock.spark.client.reader import ReadOptions, read
from penstock.spark.client.subscription import Subscription
from penstock.spark.entries import Messages, batches
from penstock.wire.client.lookup import parse_service_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.spark.client.cluster import Cluster

TIMEOUT_S = 60.0
_FILLING = b"." * 100


def endpoint_of(url: str, **changes: Any) -> Endpoint:  # noqa: ANN401
    """Where tests connect; waits long enough for a busy machine."""
    return replace(Endpoint(addresses=parse_service_url(url), operation_timeout_s=TIMEOUT_S), **changes)


def send(producer: Producer, numbers: range, *, rows_max: int = 1) -> None:
    """Send so many messages, that many to an entry; does not wait for receipts."""
    messages = Messages(pa.array([b"%d %s" % (number, _FILLING) for number in numbers]), None)
    for batch in batches(messages, rows_max=rows_max, bytes_max=1 << 20):
        producer.send_batch(batch.payload, batch.rows, numbers.start + batch.first_row)


def write(cluster: Cluster, topic: str, numbers: range, **options: Any) -> None:  # noqa: ANN401
    """Open a producer, send, and wait until everything is stored."""
    with Producer(cluster, topic) as producer:
        send(producer, numbers, **options)


def end_of(cluster: Cluster, topic: str) -> MessageId:
    """The id behind the last message."""
    with Subscription.reading(cluster, topic, EARLIEST) as subscription:
        last = subscription.last_id()
    return EARLIEST if last is None else MessageId(last.ledger_id, last.entry_id + 1)


def reading(cluster: Cluster, topic: str, end: MessageId | None = None) -> Iterator[list[int]]:
    """The numbers from the beginning on, as they come."""
    for found in read(cluster, topic, EARLIEST, end or end_of(cluster, topic), ReadOptions()):
        spans = zip(found.value_starts.tolist(), found.value_stops.tolist(), strict=True)
        yield [int(found.data[start:stop].tobytes().partition(b" ")[0]) for start, stop in spans]


def numbers_in(cluster: Cluster, topic: str) -> list[int]:
    """All that a topic holds."""
    return [number for numbers in reading(cluster, topic) for number in numbers]

# SPDX-License-Identifier: Apache-2.0
"""One task's way from rows to topics: each row to its partition; what was stored before is not sent again.

Why numbers: the sequence id of a row is its place among those that this task sends to the same partition. A task that
runs again for the same rows gives them the same numbers under the same name. A topic that deduplicates says up to which
it has them: they are passed over here, and the first new one begins a batch. So it does not matter how batches were cut
the first time.
Where: `writer` hands over `Messages`; entries go out through a `Producer` for each partition, opened at first need.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import pyarrow.compute as pc

from penstock.core.units import KIB, MIB
from penstock.spark.client.producer import Producer, ProducerOptions
from penstock.spark.entries import batches, said_of
from penstock.spark.routing import HASHES, KeyRouter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from penstock.spark.client.cluster import Cluster, TopicSchema
    from penstock.spark.entries import Messages
    from penstock.wire.codec import Schema

# Rows of so many bytes are joined at a time: what a task needs beside Spark's own batch.
JOINED_BYTES_MAX: Final = 32 * MIB
# Rows without a key change the partition after so many, whatever batches are cut from them: a task that runs again with
# other batches must put each row where it was.
TURN_BYTES: Final = 1 * MIB
TURN_ROWS: Final = 1_000
# Each has a connection; the one unused for longest is finished when another is needed.
PRODUCERS_MAX: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How rows become entries; can be pickled."""

    rows_max: int = 1_000
    batch_bytes_max: int = 256 * KIB
    batching: bool = True
    hash_name: str = "JavaStringHash"
    producer: ProducerOptions = field(default_factory=ProducerOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a task is to the topics it writes to."""

    name: str = ""  # of its producers; empty: brokers choose, and nothing is recognised when it runs again
    first_sequence_id: int = 0
    turn: int = 0  # which partition rows without a key begin with


class Outlets:
    """All that one task writes to. Use it in a `with`: a clean end waits for all receipts."""

    def __init__(self, cluster: Cluster, sending: Sending, identity: Identity) -> None:
        self.rows = 0
        self._cluster = cluster
        self._sending = sending
        self._identity = identity
        self._routes: dict[str, _Route] = {}
        self._next_ids: dict[str, int] = {}
        self._producers: OrderedDict[str, Producer] = OrderedDict()

    def send(self, topic: str, messages: Messages, schema: Schema | None = None) -> None:
        """Send rows to a topic, by their keys or in turn. Raises ClientError."""
        route = self._routes.get(topic)
        if route is None:
            partitions = self._cluster.partitions(topic, create=True)
            route = self._routes[topic] = _Route(partitions, HASHES[self._sending.hash_name], self._identity.turn)
        for partition, rows in route.split(messages):
            self._send(partition, rows, schema)
        self.rows += len(messages.value)

    def schema(self, topic: str) -> TopicSchema | None:
        """What a topic's values are, if it says. Raises ClientError."""
        return self._cluster.schema(topic)

    def _send(self, partition: str, messages: Messages, schema: Schema | None) -> None:
        """Send rows to one partition: those that it does not have."""
        producer = self._producer(partition, schema)
        count = len(messages.value)
        first = self._next_ids.setdefault(partition, self._identity.first_sequence_id)
        self._next_ids[partition] = first + count
        stored = min(count, max(0, producer.last_sequence_id + 1 - first)) if self._identity.name else 0
        for part in _parts(messages.slice(stored, count - stored)):
            self._send_part(producer, part, first + stored)
            stored += len(part.value)

    def _send_part(self, producer: Producer, messages: Messages, first: int) -> None:
        sending = self._sending
        bytes_max = min(sending.batch_bytes_max, producer.message_bytes_max // 2)
        for batch in batches(messages, rows_max=sending.rows_max if sending.batching else 1, bytes_max=bytes_max):
            said = said_of(messages, batch.first_row)
            if batch.rows == 1 and (len(batch.payload) > bytes_max or not sending.batching):
                value = messages.value[batch.first_row].as_py() or b""
                producer.send_single(value, said, first + batch.first_row)
            else:
                producer.send_batch(batch.payload, batch.rows, first + batch.first_row, said)

    def _producer(self, partition: str, schema: Schema | None) -> Producer:
        producer = self._producers.get(partition)
        if producer is None:
            if len(self._producers) >= PRODUCERS_MAX:
                self._producers.popitem(last=False)[1].finish()
            producer = self._producers[partition] = Producer(
                self._cluster, partition, name=self._identity.name, schema=schema, options=self._sending.producer
            )
        self._producers.move_to_end(partition)
        return producer

    def finish(self) -> None:
        """Wait until all that was sent is stored."""
        for producer in self._producers.values():
            producer.flush()
        for producer in self._producers.values():
            producer.finish()

    def close(self) -> None:
        """Close all connections; a second time does nothing."""
        for producer in self._producers.values():
            producer.close()
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.finish()
        finally:
            self.close()


class _Route:
    """The partitions of one topic, and whose turn it is."""

    def __init__(self, partitions: list[str], hash_of: Callable[[bytes], int], turn: int) -> None:
        self._partitions = partitions
        self._router = KeyRouter(len(partitions), hash_of)
        self._turn = turn

    def split(self, messages: Messages) -> Iterator[tuple[str, Messages]]:
        """Rows by partition, in their order."""
        if len(self._partitions) == 1:
            yield self._partitions[0], messages
        elif messages.key is None:
            yield from self._in_turn(messages)
        else:
            places = self._router.partitions_of(messages.key)
            for index, partition in enumerate(self._partitions):
                rows = pc.indices_nonzero(pc.fill_null(pc.equal(places, index), False))
                if len(rows):
                    yield partition, messages.take(rows)
            if places.null_count:
                yield from self._in_turn(messages.take(pc.indices_nonzero(places.is_null())))

    def _in_turn(self, messages: Messages) -> Iterator[tuple[str, Messages]]:
        for part in _parts(messages, bytes_max=TURN_BYTES, rows_max=TURN_ROWS):
            yield self._partitions[self._turn % len(self._partitions)], part
            self._turn += 1


def _parts(messages: Messages, *, bytes_max: int = JOINED_BYTES_MAX, rows_max: int = 1 << 30) -> Iterator[Messages]:
    """Consecutive rows of about so many bytes, which is the mean of all rows' times their number."""
    rows = len(messages.value)
    nbytes = max(1, pc.sum(pc.binary_length(messages.value)).as_py() or 0)
    step = max(1, min(rows_max, rows * bytes_max // nbytes))
    for start in range(0, rows, step):
        yield messages.slice(start, min(step, rows - start))

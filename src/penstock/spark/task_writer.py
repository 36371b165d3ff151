# SPDX-License-Identifier: Apache-2.0
"""Writes the rows of one task to topics: each row to its partition, without rows that were stored before.

Why sequence ids: the sequence id of a row is its index among the rows that this task sends to the same partition. A
task that is repeated for the same rows assigns the same ids with the same producer name. A topic with deduplication
returns the last stored id: earlier rows are skipped, and the first new one begins a batch. So it does not matter how
batches were cut the first time.

Where: `writer` passes `Messages`; entries are sent by a `Producer` for each partition, opened when it is first needed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.units import KIB, MIB
from penstock.spark.client.producer import Producer, ProducerOptions
from penstock.spark.entries import batches, said_of
from penstock.spark.routing import HASHES, KeyRouter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from numpy.typing import NDArray

    from penstock.spark.client.cluster import Cluster, TopicSchema
    from penstock.spark.entries import Messages
    from penstock.wire.codec import Schema

# Rows of so many bytes are joined at a time: what a task needs beside Spark's own batch.
JOINED_BYTES_MAX: Final = 32 * MIB
# Rows without a key change the partition after so many, counted over all of a task's: one that runs again must put each
# row where it was, whatever batches Spark hands them over in, and whatever batches are sent.
TURN_BYTES: Final = 1 * MIB
TURN_ROWS: Final = 1_000
# Each has a connection; the one unused for longest is finished when another is needed.
PRODUCERS_MAX: Final = 256
# What the column `__partition` of a read says of topics without partitions.
NO_PARTITION: Final = -1


class NoSuchPartition(ValueError):
    """A row names a partition that its topic does not have."""

    def __init__(self, topic: str, wanted: int, partitions: int) -> None:
        super().__init__(
            f"column __partition holds {wanted}, and {topic} has partitions 0 to {partitions - 1}; leave it null for "
            "the partition that the key decides, or drop the column"
        )


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
    """The producer name of a task, its first sequence id, and the partition of its first row without a key."""

    name: str = ""  # of its producers; empty: brokers choose one, and a repeated task is not recognised
    first_sequence_id: int = 0
    turn: int = 0  # the first partition of rows without a key


class TaskWriter:
    """Everything that one task writes to. Use it in a `with`: a clean exit waits for all receipts."""

    def __init__(self, cluster: Cluster, sending: Sending, identity: Identity) -> None:
        self.rows = 0
        self._cluster = cluster
        self._sending = sending
        self._identity = identity
        self._routes: dict[str, _Route] = {}
        self._next_ids: dict[str, int] = {}
        self._producers: OrderedDict[str, Producer] = OrderedDict()

    def send(self, topic: str, messages: Messages, schema: Schema | None = None) -> None:
        """Send rows to a topic, by partition, by key or round-robin. Raises ClientError, NoSuchPartition."""
        route = self._routes.get(topic)
        if route is None:
            partitions = self._cluster.partitions(topic, create=True)
            hash_of = HASHES[self._sending.hash_name]
            route = self._routes[topic] = _Route(topic, partitions, hash_of, self._identity.turn)
        for partition, rows in route.split(messages):
            self._send(partition, rows, schema)
        self.rows += len(messages.value)

    def schema(self, topic: str) -> TopicSchema | None:
        """Return the schema of a topic, if it has one. Raises ClientError."""
        return self._cluster.schema(topic)

    def _send(self, partition: str, messages: Messages, schema: Schema | None) -> None:
        """Send the rows to one partition that are not stored there."""
        producer = self._producer(partition, schema)
        count = len(messages.value)
        first = self._next_ids.setdefault(partition, self._identity.first_sequence_id)
        self._next_ids[partition] = first + count
        stored = min(count, max(0, producer.last_sequence_id + 1 - first)) if self._identity.name else 0
        for part in _parts(messages.slice(stored, count - stored)):
            self._send_part(producer, part, first + stored)
            stored += len(part.value)

    def _send_part(self, producer: Producer, messages: Messages, first: int) -> None:
        """Send rows in batches; those with a time of delivery by themselves, for it is a time of the whole entry."""
        times = messages.deliver_at_ms
        if times is None or times.null_count == len(times):
            self._send_batches(producer, messages, first)
            return
        late = times.is_valid().to_numpy(zero_copy_only=False)
        for start, stop in pairwise([0, *(np.flatnonzero(np.diff(late)) + 1).tolist(), len(late)]):
            if not late[start]:
                self._send_batches(producer, messages.slice(start, stop - start), first + start)
                continue
            for row in range(start, stop):
                value = messages.value[row].as_py() or b""
                producer.send_single(value, said_of(messages, row), first + row, deliver_at_ms=times[row].as_py())

    def _send_batches(self, producer: Producer, messages: Messages, first: int) -> None:
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
        """Wait until everything that was sent is stored."""
        for producer in self._producers.values():
            producer.flush()
        for producer in self._producers.values():
            producer.finish()

    def close(self) -> None:
        """Close all connections; a second call does nothing."""
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
    """The partitions of one topic, and the next one in round-robin order."""

    def __init__(self, topic: str, partitions: list[str], hash_of: Callable[[bytes], int], turn: int) -> None:
        self._topic = topic
        self._partitions = partitions
        self._router = KeyRouter(len(partitions), hash_of)
        self._turn = turn
        self._rows = self._bytes = 0  # of those without a key, so far

    def split(self, messages: Messages) -> Iterator[tuple[str, Messages]]:
        """Split rows by partition, in their order."""
        partitions = self._partitions
        chosen = None if messages.partition is None else self._chosen(messages.partition)
        if len(partitions) == 1:
            yield partitions[0], messages
        elif chosen is not None:
            places = self._by_key(messages)
            yield from self._parted(messages, pc.if_else(chosen.is_valid(), chosen, places))
        elif messages.key is None:
            places = self._in_turn(pc.binary_length(messages.value))
            edges = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(places)]
            for start, stop in pairwise(edges):
                yield partitions[int(places[start])], messages.slice(start, stop - start)
        else:
            yield from self._parted(messages, self._by_key(messages))

    def _parted(self, messages: Messages, places: pa.Array) -> Iterator[tuple[str, Messages]]:
        for index, partition in enumerate(self._partitions):
            rows = pc.indices_nonzero(pc.equal(places, index))
            if len(rows):
                yield partition, messages.take(rows)

    def _chosen(self, column: pa.Int64Array) -> pa.Int64Array | None:
        """Return the partitions that rows name, None if none does. Raises NoSuchPartition."""
        chosen = pc.if_else(pc.equal(column, NO_PARTITION), None, column)
        if chosen.null_count == len(chosen):
            return None
        least, most = pc.min(chosen).as_py(), pc.max(chosen).as_py()
        if least < 0 or most >= len(self._partitions):
            raise NoSuchPartition(self._topic, least if least < 0 else most, len(self._partitions))
        return chosen

    def _by_key(self, messages: Messages) -> pa.Int64Array:
        """Return the partition of each row: by its key, or in turn for those that have none."""
        sizes = pc.binary_length(messages.value)
        if messages.key is None:
            return pa.array(self._in_turn(sizes))
        by_key = self._router.partitions_of(messages.key).cast(pa.int64())
        if not by_key.null_count:
            return by_key
        keyless = by_key.is_null()
        places = self._in_turn(sizes.filter(keyless))
        return pc.replace_with_mask(by_key, keyless, pa.array(places))

    def _in_turn(self, sizes: pa.Int32Array) -> NDArray[np.int64]:
        """Return the next partitions of rows without a key, by their sizes."""
        nbytes = pc.fill_null(sizes, 0).to_numpy().astype(np.int64)
        before = self._bytes + np.cumsum(nbytes) - nbytes
        turns = self._turn + before // TURN_BYTES + (self._rows + np.arange(len(nbytes))) // TURN_ROWS
        self._rows += len(nbytes)
        self._bytes += int(nbytes.sum())
        places: NDArray[np.int64] = turns % len(self._partitions)
        return places


def _parts(messages: Messages) -> Iterator[Messages]:
    """Consecutive rows that are joined at a time, of about so many bytes: the mean of all rows' times their number."""
    rows = len(messages.value)
    nbytes = max(1, pc.sum(pc.binary_length(messages.value)).as_py() or 0)
    step = max(1, rows * JOINED_BYTES_MAX // nbytes)
    for start in range(0, rows, step):
        yield messages.slice(start, min(step, rows - start))

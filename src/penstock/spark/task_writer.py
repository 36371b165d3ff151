# SPDX-License-Identifier: Apache-2.0
"""Writes the rows of one task to topics: each row to its partition, without rows that were stored before.

Why sequence ids: a row that comes again gets the same id, under the same producer name. A topic with deduplication
returns the last stored id: earlier rows are skipped, and the first new one begins a batch. So it does not matter how
batches were cut the first time. Rows whose source is known have ids that say where they were read (`provenance`), and a
producer for each source and partition. Others have none, or, if the writer was told that its rows come again in the
same order, their index among the rows that this task sends to the same partition.

Rows come source by source. When the next source begins, the producers of the one before are finished, and their
connections are used again: a task has as many connections as partitions, not as sources.

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

from penstock.core.hashing import java_string_hash
from penstock.core.units import KIB, MIB
from penstock.spark.client.producer import Producer, ProducerOptions
from penstock.spark.entries import batches, said_of
from penstock.spark.provenance import ENTRY_SHIFT
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
# The same for rows whose source is known, by its entries.
TURN_ENTRIES: Final = 64
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
    """How rows without a source are written: producer name, first sequence id, and the first partition."""

    name: str = ""  # of their producers; empty: brokers choose one, and a repeated task is not recognised
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
        self._producers: OrderedDict[tuple[str, str], Producer] = OrderedDict()  # by name and partition
        self._name = ""  # of the producers of the current source

    def send(self, topic: str, messages: Messages, schema: Schema | None = None, *, name: str = "") -> None:
        """Send rows to a topic, by partition, by key or round-robin.

        Args:
            topic: a full name.
            messages: with sequence ids, if there is a `name`.
            schema: of the values.
            name: of the producers of one source; empty for rows whose source is not known.

        Raises:
            ClientError, NoSuchPartition
        """
        if name and name != self._name:
            self._finish(self._name)
            self._name = name
        route = self._routes.get(topic)
        if route is None:
            partitions = self._cluster.partitions(topic, create=True)
            hash_of = HASHES[self._sending.hash_name]
            route = self._routes[topic] = _Route(topic, partitions, hash_of, self._identity.turn)
        for partition, rows in route.split(messages, name):
            if name:
                self._send_numbered(name, partition, rows, schema)
            else:
                self._send(partition, rows, schema)
        self.rows += len(messages.value)

    def schema(self, topic: str) -> TopicSchema | None:
        """Return the schema of a topic, if it has one. Raises ClientError."""
        return self._cluster.schema(topic)

    def _send(self, partition: str, messages: Messages, schema: Schema | None) -> None:
        """Send the rows to one partition that are not stored there."""
        producer = self._producer(self._identity.name, partition, schema)
        count = len(messages.value)
        first = self._next_ids.setdefault(partition, self._identity.first_sequence_id)
        self._next_ids[partition] = first + count
        stored = min(count, max(0, producer.last_sequence_id + 1 - first)) if self._identity.name else 0
        for part in _parts(messages.slice(stored, count - stored)):
            self._send_part(producer, part, first + stored)
            stored += len(part.value)

    def _send_numbered(self, name: str, partition: str, messages: Messages, schema: Schema | None) -> None:
        """Send rows that have sequence ids, but for those that are stored there."""
        assert messages.sequence_id is not None
        producer = self._producer(name, partition, schema)
        stored = int(np.searchsorted(messages.sequence_id.to_numpy(), producer.last_sequence_id, side="right"))
        for part in _parts(messages.slice(stored, len(messages.value) - stored)):
            self._send_part(producer, part, 0)

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
                number = _number(messages, row, first)
                producer.send_single(value, said_of(messages, row), number, deliver_at_ms=times[row].as_py())

    def _send_batches(self, producer: Producer, messages: Messages, first: int) -> None:
        sending = self._sending
        bytes_max = min(sending.batch_bytes_max, producer.message_bytes_max // 2)
        for batch in batches(messages, rows_max=sending.rows_max if sending.batching else 1, bytes_max=bytes_max):
            said = said_of(messages, batch.first_row)
            number = _number(messages, batch.first_row, first)
            if batch.rows == 1 and (len(batch.payload) > bytes_max or not sending.batching):
                value = messages.value[batch.first_row].as_py() or b""
                producer.send_single(value, said, number)
            else:
                highest = _number(messages, batch.first_row + batch.rows - 1, first)
                producer.send_batch(batch.payload, batch.rows, number, said, highest=highest)

    def _producer(self, name: str, partition: str, schema: Schema | None) -> Producer:
        key = name, partition
        producer = self._producers.get(key)
        if producer is None:
            if len(self._producers) >= PRODUCERS_MAX:
                self._producers.popitem(last=False)[1].finish()
            producer = self._producers[key] = Producer(
                self._cluster, partition, name=name, schema=schema, options=self._sending.producer
            )
        self._producers.move_to_end(key)
        return producer

    def _finish(self, name: str) -> None:
        """Wait until everything that was sent under this name is stored, and leave the name to others."""
        mine = {key: producer for key, producer in self._producers.items() if key[0] == name != self._identity.name}
        for producer in mine.values():
            producer.flush()
        for key, producer in mine.items():
            producer.finish()
            del self._producers[key]

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

    def split(self, messages: Messages, name: str = "") -> Iterator[tuple[str, Messages]]:
        """Split rows by partition, in their order; `name` is of their producers, if they have sequence ids."""
        partitions = self._partitions
        chosen = None if messages.partition is None else self._chosen(messages.partition)
        if len(partitions) == 1:
            yield partitions[0], messages
        elif chosen is not None:
            places = self._by_key(messages, name)
            yield from self._parted(messages, pc.if_else(chosen.is_valid(), chosen, places))
        elif messages.key is None and name:
            yield from self._parted(messages, pa.array(self._by_number(messages.sequence_id, name)))
        elif messages.key is None:
            places = self._in_turn(pc.binary_length(messages.value))
            edges = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(places)]
            for start, stop in pairwise(edges):
                yield partitions[int(places[start])], messages.slice(start, stop - start)
        else:
            yield from self._parted(messages, self._by_key(messages, name))

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

    def _by_key(self, messages: Messages, name: str) -> pa.Int64Array:
        """Return the partition of each row: by its key, or in turn for those that have none."""
        sizes, numbers = pc.binary_length(messages.value), messages.sequence_id
        if messages.key is None:
            return pa.array(self._by_number(numbers, name) if name else self._in_turn(sizes))
        by_key = self._router.partitions_of(messages.key).cast(pa.int64())
        if not by_key.null_count:
            return by_key
        keyless = by_key.is_null()
        if name:
            assert numbers is not None
            places = self._by_number(numbers.filter(keyless), name)
        else:
            places = self._in_turn(sizes.filter(keyless))
        return pc.replace_with_mask(by_key, keyless, pa.array(places))

    def _by_number(self, numbers: pa.Int64Array, name: str) -> NDArray[np.int64]:
        """Return the partitions of rows without a key by where they were read: wherever they come again, the same."""
        entries = numbers.to_numpy() >> ENTRY_SHIFT
        places: NDArray[np.int64] = (java_string_hash(name.encode()) + entries // TURN_ENTRIES) % len(self._partitions)
        return places

    def _in_turn(self, sizes: pa.Int32Array) -> NDArray[np.int64]:
        """Return the next partitions of rows without a key, by their sizes."""
        nbytes = pc.fill_null(sizes, 0).to_numpy().astype(np.int64)
        before = self._bytes + np.cumsum(nbytes) - nbytes
        turns = self._turn + before // TURN_BYTES + (self._rows + np.arange(len(nbytes))) // TURN_ROWS
        self._rows += len(nbytes)
        self._bytes += int(nbytes.sum())
        places: NDArray[np.int64] = turns % len(self._partitions)
        return places


def _number(messages: Messages, row: int, first: int) -> int:
    """Return the sequence id of a row: its own, or counted from `first` on."""
    if messages.sequence_id is None:
        return first + row
    own: int = messages.sequence_id[row].as_py()
    return own


def _parts(messages: Messages) -> Iterator[Messages]:
    """Consecutive rows that are joined at a time, of about so many bytes: the mean of all rows' times their number."""
    rows = len(messages.value)
    nbytes = max(1, pc.sum(pc.binary_length(messages.value)).as_py() or 0)
    step = max(1, rows * JOINED_BYTES_MAX // nbytes)
    for start in range(0, rows, step):
        yield messages.slice(start, min(step, rows - start))

# SPDX-License-Identifier: Apache-2.0
"""Compare a topic that a query has written with the topics that it has read, row by row.

Why it can: a row that was written exactly once has its producer's name and its sequence id from where it was read
(`provenance`). So no row may be there twice, and every message that has no row is known by its id.
Where: `penstock spark audit`, and tests that kill things. It needs no Spark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.spark.client.reader import ReadOptions, read
from penstock.spark.client.watch import Watch
from penstock.spark.provenance import INDEX_BITS, ROW_BITS, parse_name, source_of
from penstock.spark.text_columns import texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.spark.client.cluster import Cluster
    from penstock.spark.client.messages import Messages

# Missing messages that are named, of each topic.
NAMED_MAX: Final = 10


@dataclass(slots=True, kw_only=True)
class Audit:
    """Findings of an audit.

    Attributes:
        rows: in the sink.
        unnumbered: rows that do not say where they were read: they were written at least once, or by others.
        twice: rows that are there again, by the name of their producer.
        compared: messages in the sources.
        missing: how many messages of each source have no row; only sources with such.
        named: the ids of the first of them.
    """

    rows: int = 0
    unnumbered: int = 0
    twice: dict[str, int] = field(default_factory=dict)
    compared: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    named: dict[str, list[MessageId]] = field(default_factory=dict)


def audit(cluster: Cluster, sink: str, sources: Sequence[str], query: str = "") -> Audit:
    """Read a sink, and the sources that it is compared with, from their earliest messages to their present ends.

    Args:
        cluster: the brokers of all of them.
        sink: a topic.
        sources: topics; each of their messages is looked for in the sink.
        query: only rows that were written under this name count: `spark-` and the id of a query, or the option
            `pulsar.producer.producerName`. Empty: of all.

    Raises:
        ClientError: a topic could not be read.
    """
    found = Audit()
    written: dict[str, list[NDArray[np.int64]]] = {}
    for partition in cluster.partitions(sink):
        for run in _all_of(cluster, partition):
            found.rows += len(run)
            for name, ids in _by_producer(run):
                parsed = parse_name(name)
                if parsed is None or (query and parsed.query != query):
                    found.unnumbered += len(ids)
                else:
                    written.setdefault(name, []).append(ids)
    positions: dict[str, list[NDArray[np.int64]]] = {}
    for name, parts in written.items():
        ids, counts = np.unique(np.concatenate(parts), return_counts=True)
        if again := int((counts - 1).sum()):
            found.twice[name] = again
        if (parsed := parse_name(name)) is not None:
            positions.setdefault(source_of(parsed.topic, parsed.ledger_id, ""), []).append(ids >> ROW_BITS)
    for source in sources:
        for partition in cluster.partitions(source):
            _compare(cluster, partition, positions, found)
    return found


def _compare(cluster: Cluster, topic: str, positions: dict[str, list[NDArray[np.int64]]], found: Audit) -> None:
    """Look for each message of a source among the positions of the rows."""
    for run in _all_of(cluster, topic):
        found.compared += len(run)
        wanted = run.entry_ids << INDEX_BITS | np.maximum(run.batch_indexes, 0)
        for ledger_id in np.unique(run.ledger_ids).tolist():
            mine = wanted[run.ledger_ids == ledger_id]
            there = positions.get(source_of(topic, ledger_id, ""), [])
            missing = mine[~np.isin(mine, np.concatenate(there))] if there else mine
            if not len(missing):
                continue
            found.missing[topic] = found.missing.get(topic, 0) + len(missing)
            named = found.named.setdefault(topic, [])
            for position in missing[: NAMED_MAX - len(named)].tolist():
                entry_id, index = position >> INDEX_BITS, position & (1 << INDEX_BITS) - 1
                named.append(MessageId(ledger_id, entry_id, index))


def _by_producer(run: Messages) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Return the sequence ids of some messages by the names of their producers."""
    coded = texts(run.data, run.producer_starts, run.producer_stops, pa.string()).dictionary_encode()
    codes = pc.fill_null(coded.indices, -1).to_numpy()
    for code in np.unique(codes).tolist():
        yield "" if code < 0 else coded.dictionary[code].as_py(), run.sequence_ids[codes == code]


def _all_of(cluster: Cluster, topic: str) -> Iterator[Messages]:
    watch = Watch(cluster)
    try:
        seen = watch.ask({topic: None})[topic]
    finally:
        watch.close()
    if seen is not None:
        yield from read(cluster, topic, EARLIEST, seen.end, ReadOptions())

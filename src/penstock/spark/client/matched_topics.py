# SPDX-License-Identifier: Apache-2.0
"""Reads topics that matched a pattern, which may be deleted, and created again, while they are read.

Why leniently: somebody who reads all topics of a pattern expects topics to come and go. A query that failed for one of
them would fail again whenever it is started, because its checkpoint has the range. A topic that was *named* is
different: if it is gone, that is a loss, and an error.
Where: tasks of a read with `topicsPattern`. Both kinds of reads tell a deletion in a line of the log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.spark.client.errors import DataLost, Refused
from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.spark.client.reader import read
from penstock.spark.client.watch import Query, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.spark.client.cluster import Cluster
    from penstock.spark.client.messages import Messages
    from penstock.spark.client.reader import ReadOptions

_log: Final = logging.getLogger(__name__)


def read_matched(
    cluster: Cluster, topic: str, start: MessageId, end: MessageId, options: ReadOptions
) -> Iterator[Messages]:
    """`reader.read` that skips what was deleted with its topic, and begins anew in a topic that was created again.

    Raises:
        DataLost: messages of a topic that was not deleted are gone, or the broker does not tell (Apache Pulsar).
        ClientError: as `reader.read`.
    """
    try:
        yield from read(cluster, topic, start, end, options)
    except (Refused, DataLost) as error:
        if isinstance(error, Refused) and not error.is_missing_topic:
            raise
        ledger_id = _ledger_now(cluster, topic, start)
        if ledger_id is not None and ledger_id in (-1, start.ledger_id):
            raise
        what = "deleted" if ledger_id is None else "deleted and created again"
        _log.warning("%s was %s: its messages from %s up to %s are left out", topic, what, start, end)
        if ledger_id is not None and ledger_id == end.ledger_id:
            yield from read(cluster, topic, EARLIEST, end, options)


def _ledger_now(cluster: Cluster, topic: str, start: MessageId) -> int | None:
    """Return the ledger of a topic; -1 if its broker does not tell, None if the topic is not there."""
    watch = Watch(cluster)
    try:
        seen = watch.ask({topic: Query(start, messages_max=0)})[topic]
    finally:
        watch.close()
    if seen is None:
        return None
    return -1 if seen.counted is None else seen.counted.next_id.ledger_id

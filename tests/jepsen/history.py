# SPDX-License-Identifier: Apache-2.0
"""What the clients of a run sent, were told and received, as a file: one JSON array a line, in the order of events.

Why a file: a run of real processes does not repeat to the microsecond, so what is checked must be kept. `checker` reads
it again. Times are seconds since the run began, by one clock.

    ["send", t, topic, producer, first, count, key, chunk]              an entry, the first time that it is sent
    ["stored", t, topic, producer, first, count, chunk, ledger, entry]  its receipt
    ["open", t, subscription, epoch]                                    a consumer asks to subscribe; epochs are unique
    ["recv", t, subscription, epoch, producer, first, count, chunk, ledger, entry, indexes]   null: all of the batch
    ["acked", t, subscription, ledger, entry, kind, indexes]            the answer came; kind: entry, up-to, indexes
    ["fault", t, name, what]
    ["late", t, topic, producer, first, at]                             a delayed message: due at this time
    ["backlog", t, subscription, messages]                              when all is over
    ["compacted", t, topic, {key: [producer, first]}]                   what a reader of the compacted topic got last
    ["counting", t, topic, counters], ["counted", t, topic, counters]   before and after a moment without faults
    ["retained", t, topic, [[ledger, entry, size]…], counters]          what a reader of the topic got
    ["trimmed", t, topic, entries]                                      what is left of one that retains nothing
    ["life", t, topic, life, what, …]     kept, number: stored; read, [[life, number]…]; deleted, status of what asks
                                          for it then; grown, partitions wanted, partitions found
    ["txn", t, name, "begun", [[topic, ledger, entry]…], id]             a transaction, and the jobs that it took
    ["txn", t, name, "commit"], ["txn", t, name, "abort"]               its end is asked for
    ["txn", t, name, "ended", "commit"], ["txn", t, name, "refused", code]   what was answered
    ["seen", t, topic, name]                                            what a reader of a topic saw for the first time
    ["results", t, topic, [[name, entry]…]]                             when all is over
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Event: TypeAlias = list[Any]


class History:
    """A history that is being written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1 << 16)
        self._began = time.monotonic()

    def now(self) -> float:
        return round(time.monotonic() - self._began, 4)

    def add(self, kind: str, *fields: object, at: float | None = None) -> None:
        """Add an event; `at`: when it happened, if not now."""
        self._file.write(json.dumps([kind, self.now() if at is None else at, *fields]) + "\n")

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[Event]:
    """Yield the events of a file."""
    with path.open() as file:
        for line in file:
            yield json.loads(line)

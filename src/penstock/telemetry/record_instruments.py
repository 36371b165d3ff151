# SPDX-License-Identifier: Apache-2.0
"""The metrics of usage records and decision records.

Where: `instruments` adds them to its list. While nothing is recorded, nothing of them is exported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.telemetry.instrument import Instrument, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from penstock.stats.server_snapshot import RecordsSnapshot, ServerSnapshot


def _by(label: str, counters: Callable[[RecordsSnapshot], Mapping[str, int]]) -> Scope[ServerSnapshot, int]:
    def rows(snapshot: ServerSnapshot) -> Iterable[tuple[tuple[str, ...], int]]:
        if snapshot.records is not None:
            for name, count in counters(snapshot.records).items():
                yield (name,), count

    return Scope((label,), rows, optional=True)


_RECORDS: Final[Scope[ServerSnapshot, RecordsSnapshot]] = Scope(
    (), lambda snapshot: [((), snapshot.records)] if snapshot.records is not None else [], optional=True
)

# fmt: off
RECORD_INSTRUMENTS: Final[tuple[Instrument[ServerSnapshot, Any], ...]] = (
    Instrument("penstock_records_written_total", "counter", "", _by("kind", lambda records: records.written),
               lambda count: count, "Usage and decision records written"),
    Instrument("penstock_records_failures_total", "counter", "", _by("kind", lambda records: records.failures),
               lambda count: count, "Attempts to write records that failed; of usage nothing is lost by that"),
    Instrument("penstock_records_dropped_total", "counter", "", _by("reason", lambda records: records.dropped),
               lambda count: count, "Decision records dropped"),
    Instrument("penstock_records_queued_bytes", "gauge", "bytes", _RECORDS, lambda records: records.queued_bytes,
               "Decision records that wait to be written; 1 MiB at most"),
)
# fmt: on

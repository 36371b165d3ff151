# SPDX-License-Identifier: Apache-2.0
"""Renders a snapshot in Prometheus' text format, version 0.0.4.

Why not the client library: it has its own counters and requires `_total` at the end of a counter's name, which Pulsar's
and KIP-72's names do not have. Reading a list from a frozen snapshot is shorter and starts faster. Where: the admin
port calls `render` on its own thread, so ten thousand topics do not delay the event loop.
"""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from penstock.core.durations import BOUNDS_NS
from penstock.telemetry.instrument import NS_PER_UNIT
from penstock.telemetry.instruments import INSTRUMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.broker.stats.snapshot import BrokerSnapshot
    from penstock.core.durations import DurationsSnapshot
    from penstock.governance.wait_times import WaitTimesSnapshot
    from penstock.stats.snapshot import ServerSnapshot
    from penstock.telemetry.instrument import Instrument, Scope

S = TypeVar("S", bound="ServerSnapshot")

ROWS_PER_PIECE: Final = 500

# Labels of the snapshots in use, for all their readers: those that read ten thousand topics slowly may be many.
_LABELS: Final[WeakKeyDictionary[ServerSnapshot, dict[Scope[Any, Any], list[str]]]] = WeakKeyDictionary()

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def render(snapshot: BrokerSnapshot) -> Iterator[str]:
    """Yield the metrics of a broker; see `rendered`."""
    return rendered(snapshot, INSTRUMENTS)


def rendered(snapshot: S, instruments: Iterable[Instrument[S, Any]]) -> Iterator[str]:
    """Yield every instrument's help, type and samples, in pieces of whole lines.

    An instrument with labels and no rows has no samples. In pieces, because joining a hundred thousand lines is a
    single step of the interpreter, during which no other thread runs, also not the event loop.
    """
    labels = _LABELS.setdefault(snapshot, {})
    rows: dict[Scope[Any, Any], list[Any]] = {}
    for instrument in instruments:
        scope, name = instrument.scope, instrument.name
        if scope not in rows:
            labelled = list(scope.rows(snapshot))
            rows[scope] = [row for _, row in labelled]
            labels[scope] = labels.get(scope) or [_labels(scope.labels, values) for values, _ in labelled]
        if scope.optional and not rows[scope]:
            continue
        yield f"# HELP {name} {instrument.help}\n# TYPE {name} {instrument.kind}\n"
        for start in range(0, len(rows[scope]), ROWS_PER_PIECE):
            piece = slice(start, start + ROWS_PER_PIECE)
            yield _lines(instrument, zip(labels[scope][piece], rows[scope][piece], strict=True))


def _lines(instrument: Instrument[Any, Any], rows: Iterable[tuple[str, Any]]) -> str:
    name, read = instrument.name, instrument.read
    if instrument.kind in _OF_TIMES:
        unit_ns, lines = NS_PER_UNIT[instrument.unit], _OF_TIMES[instrument.kind]
        return "".join(line for labels, row in rows for line in lines(name, labels, read(row), unit_ns))
    return "".join([f"{name}{labels} {read(row)}\n" for labels, row in rows])


def _summary(name: str, labels: str, waits: WaitTimesSnapshot, unit_ns: int) -> Iterator[str]:
    before = f"{{{labels[1:-1]}," if labels else "{"
    for quantile, wait_ns in waits.quantiles_ns:
        number = "NaN" if isnan(wait_ns) else wait_ns / unit_ns
        yield f'{name}{before}quantile="{quantile}"}} {number}\n'
    yield f"{name}_sum{labels} {waits.sum_ns / unit_ns}\n{name}_count{labels} {waits.count}\n"


def _histogram(name: str, labels: str, times: DurationsSnapshot, unit_ns: int) -> Iterator[str]:
    before = f"{{{labels[1:-1]}," if labels else "{"
    seen = 0
    for bound_ns, count in zip(BOUNDS_NS, times.counts, strict=False):
        seen += count
        yield f'{name}_bucket{before}le="{bound_ns / unit_ns}"}} {seen}\n'
    yield f'{name}_bucket{before}le="+Inf"}} {times.count}\n'
    yield f"{name}_sum{labels} {times.sum_ns / unit_ns}\n{name}_count{labels} {times.count}\n"


_OF_TIMES: Final[Mapping[str, Callable[[str, str, Any, int], Iterator[str]]]] = {
    "summary": _summary,
    "histogram": _histogram,
}


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True))
    return f"{{{','.join(pairs)}}}"

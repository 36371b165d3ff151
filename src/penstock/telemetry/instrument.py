# SPDX-License-Identifier: Apache-2.0
"""The definition of a metric: one row of the list that every exporter reads.

Where: `instruments` has the list, part of it from other modules; `prometheus` and `otel` render it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeAlias, TypeVar

from penstock.core.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.core.durations import DurationsSnapshot
    from penstock.governance.wait_times import WaitTimesSnapshot

Seen = TypeVar("Seen", contravariant=True)  # noqa: PLC0105 - the class of snapshots
Row = TypeVar("Row")
# A counter only rises, until the process ends. A summary has quantiles, a sum and a count; a histogram has counts of
# what took up to so long. Both are of times.
Kind: TypeAlias = Literal["gauge", "counter", "summary", "histogram"]
Number: TypeAlias = int | float

# How many nanoseconds are one of the unit of a summary or histogram.
NS_PER_UNIT: Final[Mapping[str, int]] = {"milliseconds": NS_PER_MS, "seconds": NS_PER_S}


@dataclass(frozen=True, slots=True)
class Scope(Generic[Seen, Row]):
    """The objects that a metric exists for: label names, and the rows of a snapshot with their label values.

    `optional`: without rows the metric does not exist; otherwise it is exported without samples.
    """

    labels: tuple[str, ...]
    rows: Callable[[Seen], Iterable[tuple[tuple[str, ...], Row]]]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Instrument(Generic[Seen, Row]):
    """One metric.

    `read` gets its value from one row of the scope: a number, for a summary a `WaitTimesSnapshot`, for a histogram a
    `DurationsSnapshot`.
    """

    name: str
    kind: Kind
    unit: str
    scope: Scope[Seen, Row]
    read: Callable[[Row], Number | WaitTimesSnapshot | DurationsSnapshot]
    help: str
    otel: str = ""  # the name of its twin in OpenTelemetry; without one it is not pushed

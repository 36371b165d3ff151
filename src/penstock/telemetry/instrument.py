# SPDX-License-Identifier: Apache-2.0
"""What a metric is: one row of the list that every exporter walks.

Where: `instruments` holds the list, part of it from modules of its own; `prometheus` and `otel` render it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeAlias, TypeVar

from penstock.core.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.broker.stats.snapshot import BrokerSnapshot
    from penstock.governance.wait_times import WaitTimesSnapshot

Row = TypeVar("Row")
# A counter only rises, until the process ends. A summary has quantiles, a sum and a count; it is one of times.
Kind: TypeAlias = Literal["gauge", "counter", "summary"]
Number: TypeAlias = int | float

# How many nanoseconds are one of a summary's unit.
NS_PER_UNIT: Final[Mapping[str, int]] = {"milliseconds": NS_PER_MS, "seconds": NS_PER_S}


@dataclass(frozen=True, slots=True)
class Scope(Generic[Row]):
    """What a metric is a metric of: the names of its labels, and the rows of a snapshot with their labels' values."""

    labels: tuple[str, ...]
    rows: Callable[[BrokerSnapshot], Iterable[tuple[tuple[str, ...], Row]]]


@dataclass(frozen=True, slots=True)
class Instrument(Generic[Row]):
    """One metric. `read` takes one row of the scope; a summary's gives a `WaitTimesSnapshot`."""

    name: str
    kind: Kind
    unit: str
    scope: Scope[Row]
    read: Callable[[Row], Number | WaitTimesSnapshot]
    help: str
    otel: str = ""  # the name of its twin in OpenTelemetry; without one it is not pushed

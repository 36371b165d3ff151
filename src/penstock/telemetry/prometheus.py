# SPDX-License-Identifier: Apache-2.0
"""A snapshot in Prometheus' text format, version 0.0.4.

Why not the client library: it keeps counters of its own and wants `_total` behind every counter's name, which neither
Pulsar's names nor KIP-72's have; reading a list off a frozen snapshot is shorter, and starts faster.
Where: the admin port calls `render` on its own thread, so that ten thousand topics cost the publishing loop nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.telemetry.instruments import INSTRUMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.broker.stats.snapshot import BrokerSnapshot
    from penstock.telemetry.instruments import Scope

ROWS_PER_PIECE: Final = 500

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def render(snapshot: BrokerSnapshot) -> Iterator[str]:
    """Yield every instrument's help, type and samples, in pieces of whole lines.

    One with labels and no rows has no samples. In pieces, because joining a hundred thousand lines is a single step of
    the interpreter, during which no other thread runs, the publishing loop's neither.
    """
    labelled: dict[Scope[Any], list[tuple[str, Any]]] = {}
    for instrument in INSTRUMENTS:
        scope, name, read = instrument.scope, instrument.name, instrument.read
        if scope not in labelled:
            labelled[scope] = [(_labels(scope.labels, values), row) for values, row in scope.rows(snapshot)]
        yield f"# HELP {name} {instrument.help}\n# TYPE {name} {instrument.kind}\n"
        rows = labelled[scope]
        for start in range(0, len(rows), ROWS_PER_PIECE):
            yield "".join([f"{name}{labels} {read(row)}\n" for labels, row in rows[start : start + ROWS_PER_PIECE]])


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True))
    return f"{{{','.join(pairs)}}}"

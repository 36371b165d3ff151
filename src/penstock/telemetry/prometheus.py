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
    from penstock.broker.snapshot import BrokerSnapshot
    from penstock.telemetry.instruments import Scope

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def render(snapshot: BrokerSnapshot) -> str:
    """Return every instrument's help, type and samples. One with labels and no rows has no samples."""
    lines: list[str] = []
    labelled: dict[Scope[Any], list[tuple[str, Any]]] = {}
    for instrument in INSTRUMENTS:
        scope, name, read = instrument.scope, instrument.name, instrument.read
        if scope not in labelled:
            labelled[scope] = [(_labels(scope.labels, values), row) for values, row in scope.rows(snapshot)]
        lines += (f"# HELP {name} {instrument.help}", f"# TYPE {name} {instrument.kind}")
        lines += [f"{name}{labels} {read(row)}" for labels, row in labelled[scope]]
    return "\n".join(lines) + "\n"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True))
    return f"{{{','.join(pairs)}}}"

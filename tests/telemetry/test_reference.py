# SPDX-License-Identifier: Apache-2.0
"""The reference of metrics lists every metric, and no other, and the names keep to the rules it states."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.telemetry.instruments import INSTRUMENTS

if TYPE_CHECKING:
    from penstock.telemetry.instrument import Instrument

REFERENCE = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in REFERENCE.splitlines() if line.startswith("| `")
]


def row_of(instrument: Instrument[Any, Any]) -> list[str]:
    labels = ", ".join(f"`{label}`" for label in instrument.scope.labels)
    return [f"`{instrument.name}`", instrument.kind, instrument.unit, labels, instrument.help]


@pytest.mark.parametrize("instrument", INSTRUMENTS, ids=lambda instrument: instrument.name)
def test_every_metric_has_its_row(instrument: Instrument[Any, Any]) -> None:
    assert row_of(instrument) in ROWS


def test_the_reference_lists_no_metric_that_does_not_exist() -> None:
    assert [row[0] for row in ROWS] == [f"`{instrument.name}`" for instrument in INSTRUMENTS]


@pytest.mark.parametrize("instrument", INSTRUMENTS, ids=lambda instrument: instrument.name)
def test_names_labels_and_help_keep_to_the_formats_rules(instrument: Instrument[Any, Any]) -> None:
    assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", instrument.name)
    allowed = r"[a-zA-Z_]+" if instrument.name.startswith("pulsar_") else r"[a-z_]+"  # some of Pulsar's have capitals
    assert all(re.fullmatch(allowed, label) for label in instrument.scope.labels)
    assert instrument.help.isprintable()
    assert "|" not in instrument.help
    assert "\\" not in instrument.help


@pytest.mark.parametrize(
    "instrument", [i for i in INSTRUMENTS if i.name.startswith("penstock_")], ids=lambda instrument: instrument.name
)
def test_our_own_names_end_in_their_unit_and_counters_in_total(instrument: Instrument[Any, Any]) -> None:
    name = instrument.name
    assert (instrument.kind == "counter") == name.endswith("_total")
    if instrument.unit in {"bytes", "seconds"}:
        assert re.search(rf"_{instrument.unit}(_total)?$", name)


def test_no_name_is_used_twice() -> None:
    names = [instrument.name for instrument in INSTRUMENTS]
    assert len(names) == len(set(names))

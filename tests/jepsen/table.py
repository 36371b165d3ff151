# SPDX-License-Identifier: Apache-2.0
"""The table of faults survived, in docs/internals/jepsen.md, as `make jepsen` writes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.jepsen.checker import Result
from tests.jepsen.cluster import Brokers

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE: Final = "docs/internals/jepsen.md"
_TABLE: Final = re.compile(r"(<!-- table -->\n).*(<!-- end -->)", re.DOTALL)


def sums(results: Sequence[Result]) -> Result:
    """All results together."""
    total = Result()
    for result in results:
        total.messages += result.messages
        total.entries += result.entries
        total.received += result.received
        total.again += result.again
        for name, count in result.faults.items():
            total.faults[name] += count
    return total


def rows(results: Sequence[Result]) -> str:
    """The table."""
    total = sums(results)
    told = f"{len(results)} seeds, {total.messages:,} acknowledged messages in {total.entries:,} entries, 0 violations."
    lines = [
        f"{told} {total.received:,} entries were received, {total.again:,} of them not for the first time.",
        "",
        "| fault | what happens | times |",
        "|---|---|---|",
    ]
    for name in sorted(total.faults):
        about = (getattr(Brokers, name).__doc__ or "").strip()
        lines.append(f"| {name.replace('_', ' ')} | {about} | {total.faults[name]} |")
    return "\n".join(lines) + "\n"


def write(results: Sequence[Result]) -> None:
    """Replace the table of the page."""
    path = Path(__file__).resolve().parents[2] / PAGE
    path.write_text(_TABLE.sub(lambda found: found[1] + rows(results) + found[2], path.read_text()))

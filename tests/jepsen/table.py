# SPDX-License-Identifier: Apache-2.0
"""The table of faults survived, in docs/internals/jepsen.md. `make jepsen` adds to it, and so does this:

python -m tests.jepsen.table HISTORY…
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.jepsen.checker import Result, check
from tests.jepsen.cluster import Brokers
from tests.jepsen.history import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAGE: Final = "docs/internals/jepsen.md"
_TABLE: Final = re.compile(r"(<!-- table -->\n)(.*)<!-- end -->", re.DOTALL)
_ROW: Final = re.compile(r"^\| ([a-z ]+) \| .* \| (\d+) \|$", re.MULTILINE)


def sums(results: Iterable[Result]) -> Result:
    """All results together."""
    total = Result()
    for result in results:
        total.messages += result.messages
        total.entries += result.entries
        total.received += result.received
        total.again += result.again
        total.transactions += result.transactions
        for name, count in result.faults.items():
            total.faults[name] += count
    return total


def rows(seeds: int, total: Result) -> str:
    """The table of so many seeds."""
    told = f"{seeds} seeds, {total.messages:,} acknowledged messages in {total.entries:,} entries, 0 violations."
    received = f"{total.received:,} entries were received, {total.again:,} of them not for the first time."
    lines = [
        f"{told} {received} {total.transactions:,} transactions were committed.",
        "",
        "| fault | what happens | times |",
        "|---|---|---|",
    ]
    for name in sorted(total.faults):
        about = (getattr(Brokers, name).__doc__ or "").strip()
        lines.append(f"| {name.replace('_', ' ')} | {about} | {total.faults[name]} |")
    return "\n".join(lines) + "\n"


def read_rows(text: str) -> tuple[int, Result]:
    """Read a table; returns its seeds and their results together."""
    first, _, rest = text.partition("\n")
    seeds, messages, entries, _violations, received, again, transactions = (
        int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", first)
    )
    faults = {name.replace(" ", "_"): int(times) for name, times in _ROW.findall(rest)}
    return seeds, Result(messages, entries, received, again, defaultdict(int, faults), transactions)


def add(results: Sequence[Result]) -> None:
    """Add results to the table of the page."""
    path = Path(__file__).resolve().parents[2] / PAGE
    text = path.read_text()
    found = _TABLE.search(text)
    assert found is not None, f"{PAGE} has no table"
    seeds, before = read_rows(found[2])
    after = rows(seeds + len(results), sums([before, *results]))
    path.write_text(text[: found.start(2)] + after + text[found.end(2) :])


if __name__ == "__main__":
    checked = [check(read(Path(name))) for name in sys.argv[1:]]
    wrong = [name for name, result in zip(sys.argv[1:], checked, strict=True) if result.violations]
    if wrong:
        sys.exit(f"not added, because these are wrong: {', '.join(wrong)}")
    add(checked)

# SPDX-License-Identifier: Apache-2.0
"""Print how adaptive throttling answers in each scenario, and write table and plots into the documentation.

Run: python -m tests.simulation.throttle_table [--write]
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli.plots import Line, chart
from tests.simulation.throttle_world import SCENARIOS, WARM_S

if TYPE_CHECKING:
    from tests.simulation.throttle_world import Run

INTERNALS: Final = Path(__file__).resolve().parents[2] / "docs" / "internals"
PAGE: Final = INTERNALS / "adaptive-throttling.md"
PLOTS: Final = INTERNALS / "adaptive-throttling"
HEADS: Final = ("scenario", "settles in", "overshoot", "activations", "flaps per hour", "lowest rate")


def row(run: Run) -> tuple[str, ...]:
    """One row of the table."""
    settled_s = run.settled_s()
    return (
        run.name,
        "swings" if settled_s is None else f"{settled_s:.0f} s",
        "-" if run.overshoot is None else f"{run.overshoot:.0%}",
        str(run.activations),
        f"{run.flaps_per_hour:.0f}",
        f"{run.lowest_part:.0%} of natural",
    )


def table(runs: list[Run]) -> str:
    rows = [HEADS, tuple("---" for _ in HEADS), *map(row, runs)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def plot(run: Run) -> str:
    """Wanted, passed and memory, which has a scale of its own: in thousandths of the limit."""
    return chart(
        f"{run.name}: messages per second, and thousandths of the memory limit",
        [
            Line("passed", [(point.at_s, point.passed) for point in run.points]),
            Line("memory", [(float(at_s), 1_000 * memory) for at_s, memory in enumerate(run.memory)]),
            Line("limit", [(point.at_s, point.rate) for point in run.points if point.rate is not None]),
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write into {PAGE.name}, and the plots beside it")
    write = parser.parse_args().write
    runs = [scenario() for scenario in SCENARIOS]
    print(table(runs))
    print(f"events happen after {WARM_S} s")
    if write:
        PLOTS.mkdir(exist_ok=True)
        images = []
        for scenario, run in zip(SCENARIOS, runs, strict=True):
            (PLOTS / f"{scenario.__name__}.svg").write_text(plot(run) + "\n", encoding="utf-8")
            images.append(f"![{run.name}](adaptive-throttling/{scenario.__name__}.svg)")
        text = PAGE.read_text(encoding="utf-8")
        part = f"<!-- simulated -->\n\n{table(runs)}\n\n" + "\n\n".join(images) + "\n\n<!-- end -->"
        PAGE.write_text(
            re.sub(r"<!-- simulated -->.*<!-- end -->", lambda _: part, text, flags=re.DOTALL), encoding="utf-8"
        )


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Print how the strategies of sharing a quota do in each scenario, and write the table into the documentation.

Run: python -m tests.simulation.quota_table [--write] [--random 1000] [--only NAME]
"""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.governance.allocation import Strategy
from tests.simulation.quota_figures import Figures, figures
from tests.simulation.quota_scenarios import IRREGULAR, NAMED, random_scenario
from tests.simulation.quota_world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.simulation.quota_world import Scenario

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "internals" / "shared-quotas.md"
STRATEGIES: Final = (Strategy.MAX_MIN, Strategy.PULSAR, Strategy.RESIDUAL_EVEN, Strategy.RESIDUAL_PROPORTIONAL)
COMPARED: Final = STRATEGIES[:2]  # in random scenarios
HEADS: Final = (
    "scenario", "strategy", "cycles to 10 %", "cycles to 5 %", "peak overshoot", "Jain", "utilisation", "lost work",
)  # fmt: skip
IRREGULAR_HEADS: Final = (
    "scenario", "peak overshoot", "Jain", "utilisation", "reports of a broker and cycle", "their bytes",
)  # fmt: skip
COLUMNS: Final[dict[str, Callable[[Figures], float]]] = {
    "peak overshoot, %": lambda one: max(0.0, one.overshoot * 100),
    "cycles on end over 110 %": lambda one: one.over_10_cycles,
    "Jain": lambda one: one.jain,
    "utilisation, %": lambda one: one.utilisation * 100,
    "lost work, s of the quota": lambda one: one.lost_s,
}
LESS_IS_WORSE: Final = {"Jain", "utilisation, %"}


def measure(scenario: Scenario, strategy: Strategy) -> Figures:
    seconds = World(scenario, strategy, random.Random(1)).run()
    return figures(seconds, scenario.all_events_s)


def row(scenario: Scenario, strategy: Strategy) -> tuple[str, ...]:
    """One row of the table of named scenarios."""
    one = measure(scenario, strategy)
    return (
        scenario.name,
        strategy.value,
        _cycles(one.cycles_to_10),
        _cycles(one.cycles_to_5),
        f"{max(0.0, one.overshoot):.1%}",
        f"{one.jain:.3f}",
        f"{one.utilisation:.1%}",
        f"{one.lost_s:.2f} s",
    )


def named_table(only: str) -> str:
    chosen = [scenario for scenario in NAMED if only in scenario.name]
    return _table(HEADS, [row(scenario, strategy) for scenario in chosen for strategy in STRATEGIES])


def irregular_row(scenario: Scenario) -> tuple[str, ...]:
    """One row of the table of irregular arrivals, with what the exchange costs."""
    world = World(scenario, Strategy.MAX_MIN, random.Random(1))
    one = figures(world.run(), scenario.all_events_s)
    sent = scenario.brokers * scenario.seconds / scenario.interval_s
    return (
        scenario.name,
        f"{max(0.0, one.overshoot):.1%}",
        f"{one.jain:.3f}",
        f"{one.utilisation:.1%}",
        f"{world.reports / sent:.1f}",
        f"{world.report_bytes / sent:,.0f}",
    )


def irregular_table(only: str, processes: int) -> str:
    chosen = [scenario for scenario in IRREGULAR if only in scenario.name]
    with ProcessPoolExecutor(processes) as pool:
        return _table(IRREGULAR_HEADS, pool.map(irregular_row, chosen))


def measure_seed(seed: int) -> tuple[bool, list[Figures]]:
    """Whether the random scenario has faults, and the figures of the compared strategies."""
    scenario = random_scenario(seed)
    return scenario.faulty, [measure(scenario, strategy) for strategy in COMPARED]


def random_table(seeds: Sequence[int], processes: int) -> str:
    """Distributions over random scenarios, without and with faults; two cycles after each event are exempt."""
    with ProcessPoolExecutor(processes) as pool:
        measured = list(pool.map(measure_seed, seeds))
    rows = []
    for faulty in (False, True):
        for number, strategy in enumerate(COMPARED):
            found = [by_strategy[number] for has_faults, by_strategy in measured if has_faults is faulty]
            for name, column in COLUMNS.items():
                values = sorted(map(column, found), reverse=name in LESS_IS_WORSE)
                rows.append(
                    (
                        f"{len(found)} {'with' if faulty else 'without'} faults",
                        strategy.value,
                        name,
                        *(
                            f"{value:.3f}"
                            for value in (statistics.median(values), values[len(values) * 95 // 100], values[-1])
                        ),
                    )
                )
    return _table(("scenarios", "strategy", "figure", "median", "95 of 100 are better", "worst"), rows)


def written(text: str, name: str, table: str) -> str:
    """Return the page with one of its tables replaced."""
    part = re.compile(rf"(<!-- simulated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    return part.sub(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", text)


def _cycles(cycles: float | None) -> str:
    return "never" if cycles is None else f"{cycles:.1f}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="random scenarios; odd seeds below 2 N")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that run random scenarios")
    parser.add_argument("--only", default="", help="named scenarios whose name contains this")
    options = parser.parse_args()
    tables = {"named": named_table(options.only)}
    print(tables["named"])
    tables["irregular"] = irregular_table(options.only, options.processes)
    print(tables["irregular"])
    if options.random:
        tables["random"] = random_table(range(1, 2 * options.random, 2), options.processes)
        print(tables["random"])
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        for name, table in tables.items():
            text = written(text, name, table)
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

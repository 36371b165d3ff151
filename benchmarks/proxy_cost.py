# SPDX-License-Identifier: Apache-2.0
"""What a proxy costs: every load once direct and once through `penstock proxy`, in turns, on the same broker.

Why pairs: on a small machine generator, proxy and broker share the cores, so what passes through is also slower because
the proxy takes processor time from the broker. So each load is taken both ways, one right after the other (A B, then
B A), the ratio is the median of the pairs' ratios, and the processor time of each process is shown.
Where: by hand. Exits 1 if a load failed or a goal was missed.

    python -m benchmarks.proxy_cost [--peer pulsar] [--loads 'publish-*'] [--rounds 5] [--seconds 3]

With --peer, the broker behind the proxy is Apache Pulsar.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.brokers import BROKERS, add_peer_option
from benchmarks.loads import COST, LARGE_BATCH, P50, P99, PLANS, PROXY_COST, RATE, VOLUME, WARM_UP, WARM_UP_S
from benchmarks.process import PeerError, usage
from benchmarks.report import PENSTOCK, short
from benchmarks.run import BUSY_LOAD_MAX
from benchmarks.subjects import LoadFailed, Subject
from penstock.testing.process import BrokerDidNotStart, ProxyProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DIRECT, PROXIED = "direct", "through the proxy"
LOADS: Final = (
    "publish-1k-w1000", "publish-1k-50-producers", "publish-1k-50-connections", "publish-128k",
    "tail-1k", "tail-128k", "catch-up-1k", "catch-up-128k", "latency-1k",
)  # fmt: skip
# Loads of 128 KiB batches must reach this share of what they reach directly.
VOLUME_RATIO_MIN: Final = 0.8
# And a receipt may come so much later, at 1,000 entries a second.
P50_MORE_MS_MAX: Final = 0.3
_GENERATOR_COST: Final = "generator µs/entry"


@dataclass(frozen=True, slots=True)
class Pair:
    """One load, taken both ways in the same minute."""

    load: str
    direct: Mapping[str, float]
    proxied: Mapping[str, float]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="proxy_cost", description="Measure what a proxy costs.")
    add_peer_option(parser)
    parser.add_argument("--loads", default=",".join(LOADS), metavar="GLOBS", help="only loads that match")
    parser.add_argument("--seconds", type=float, default=3.0, help="the measured part of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="where the broker keeps its data (default: a temporary folder)")
    options = parser.parse_args(argv)
    busy = os.getloadavg()[0]
    if busy > BUSY_LOAD_MAX:
        print(f"proxy_cost: the machine is busy (load average {busy:.1f}); only ratios mean something", file=sys.stderr)
    try:
        pairs = list(measured(options))
    except (PeerError, BrokerDidNotStart, LoadFailed) as error:
        print(f"proxy_cost: {error}", file=sys.stderr)
        return 1
    by_load: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_load.setdefault(pair.load, []).append(pair)
    print(table(by_load))
    missed = [text for load, taken in by_load.items() if (text := verdict(load, taken)).startswith("missed")]
    return 1 if missed else 0


def measured(options: argparse.Namespace) -> Iterator[Pair]:
    """Start a broker and a proxy, and take each load both ways. Raises LoadFailed."""
    plans = [plan for plan in PLANS if any(fnmatch.fnmatchcase(plan.name, one) for one in options.loads.split(","))]
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="proxy-cost-", dir=options.scratch)))
        name = options.peer or PENSTOCK
        broker = Subject(name, BROKERS[name], scratch / name)
        stack.callback(broker.stop)
        broker.start()
        assert broker.address is not None
        proxy = stack.enter_context(ProxyProcess(broker.address.url, log_path=scratch / "proxy.log"))
        through = {"port": proxy.port, "through": f"127.0.0.1:{broker.address.port}", "proxy_pid": proxy.pid}
        for plan in WARM_UP:
            broker.drive(plan, seconds=WARM_UP_S if options.peer else 1.0, seed=0, note="warm", through=through)
        for row in range(options.rounds):
            for plan in plans:
                taken = {}
                for way in (DIRECT, PROXIED) if row % 2 == 0 else (PROXIED, DIRECT):
                    taken[way] = broker.drive(
                        plan,
                        seconds=options.seconds,
                        seed=row,
                        note=f"{way.partition(' ')[0]}-{row}",
                        through=through if way is PROXIED else {},
                    )
                    shown = ", ".join(f"{value:,.4g} {figure}" for figure, value in taken[way].items())
                    print(f"{plan.name:26} {way:18} {shown}", flush=True)
                yield Pair(plan.name, taken[DIRECT], taken[PROXIED])
        print(f"proxy: {usage(proxy.pid).rss_peak_mib:.0f} MiB at most")


def figure_of(load: str) -> str:
    """Return the figure by which the two ways of a load are compared."""
    if load.startswith("latency"):
        return P50
    plan = next(plan for plan in PLANS if plan.name == load)
    return VOLUME if plan.shape == LARGE_BATCH else RATE


def verdict(load: str, pairs: Sequence[Pair]) -> str:
    """Say whether the goal of a load is reached; "" if it has none."""
    figure = figure_of(load)
    if figure == P50:
        reached = median_of(pair.proxied[P50] - pair.direct[P50] for pair in pairs) <= P50_MORE_MS_MAX
    elif figure == VOLUME:
        reached = median_of(pair.proxied[figure] / pair.direct[figure] for pair in pairs) >= VOLUME_RATIO_MIN
    else:
        return ""
    return "reached" if reached else "missed"


def table(by_load: Mapping[str, Sequence[Pair]]) -> str:
    """Write medians of all loads as a Markdown table, with the processor time of each process."""
    head = ["load", "figure", DIRECT, PROXIED, "compared", "generator", "proxy", "broker (direct)", "goal"]
    rows = [head, ["---"] * len(head)]
    for load, pairs in by_load.items():
        figures = (P50, P99) if figure_of(load) == P50 else (figure_of(load),)
        rows += [_row(load, figure, pairs) for figure in figures]
    return (
        "\n".join("| " + " | ".join(row) + " |" for row in rows)
        + "\nµs of processor time an entry; ratios and differences are medians of pairs (least to most)"
    )


def _row(load: str, figure: str, pairs: Sequence[Pair]) -> list[str]:
    direct, proxied = (
        [one[figure] for one in way] for way in zip(*((p.direct, p.proxied) for p in pairs), strict=True)
    )
    compared = [
        through / straight if figure in {RATE, VOLUME} else through - straight
        for straight, through in zip(direct, proxied, strict=True)
    ]
    unit = "×" if figure in {RATE, VOLUME} else " ms"
    return [
        load,
        figure,
        short(median_of(direct)),
        short(median_of(proxied)),
        f"{median_of(compared):.2f}{unit} ({min(compared):.2f}–{max(compared):.2f})",
        f"{median_of(_generator_us(pair.proxied) for pair in pairs):.1f}",
        f"{median_of(pair.proxied[PROXY_COST] for pair in pairs):.1f}",
        f"{median_of(pair.proxied[COST] for pair in pairs):.1f} ({median_of(pair.direct[COST] for pair in pairs):.1f})",
        verdict(load, pairs) if figure != P99 else "",
    ]


def _generator_us(figures: Mapping[str, float]) -> float:
    return figures["generator core"] * 1e6 / figures[RATE]


def median_of(values: Iterator[float] | Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


if __name__ == "__main__":
    sys.exit(main())

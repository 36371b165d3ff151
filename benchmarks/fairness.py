# SPDX-License-Identifier: Apache-2.0
"""What clients of the largest frames cost honest producers of small messages, with the default pool.

Why: request memory is bounded by waiting, and who waits behind whom decides whether small producers notice a flood.
Where: by hand; prints a table of what was measured against its bound, and exits 1 if one was violated.

What must hold at memoryLimitMB=512, for producers of 200 messages a second in all, half of them in the attackers'
tenant and half in another:

- at least 90 % of the messages that had their receipts within a second without an attack have them so beside
  200 connections that publish frames of 5 MiB without pause, and 99 % of them within 500 ms;
- the same beside 30 connections that send nine tenths of such a frame and then 70 KB a second.

    python -m benchmarks.fairness --seconds 5
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.brokers import penstock
from benchmarks.flood import Clients, Row, report
from benchmarks.process import ask, metrics, usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.process import Address

RATIO_MIN = 0.9
P99_MS_MAX = 500.0
HONEST_CONNECTIONS = 10
SAME, OTHER = "persistent://public/default/honest", "persistent://other/default/honest"
ATTACKED = "persistent://public/default/attack"
ATTACKS = {"endless": 200, "trickle": 30}
# From the attack's start until it is measured: the pool is full by then.
ONSET_S = 2.0


def measure(address: Address, options: argparse.Namespace) -> Iterator[Row]:
    """Honest producers alone, then beside each attack, alone again before the next."""
    rate = ["--per-s", str(options.per_s), "--seconds", str(options.seconds), "--topics", SAME, OTHER]
    with Clients("steady", address.port, HONEST_CONNECTIONS, *rate) as honest:
        honest.ask("run")  # to warm up
        for kind in options.attacks:
            alone = honest.ask("run")["groups"]
            before = evicted(address)
            with Clients(kind, address.port, ATTACKS[kind], "--topics", ATTACKED) as attackers:
                attackers.ask("go")
                time.sleep(ONSET_S)
                beside = honest.ask("run")["groups"]
                after = evicted(address)
                frames = attackers.ask("stop")["frames"]
            rss_mib = usage(address.pid).rss_mib
            yield Row(
                f"{ATTACKS[kind]} connections, {kind}",
                f"{frames} frames sent, {after - before:.0f} evicted, RSS {rss_mib:.0f} MiB",
            )
            for tenant, was, now in zip(("same tenant", "other tenant"), alone, beside, strict=True):
                ratio = now["ratio"] / was["ratio"] if was["ratio"] else 0.0
                measured = f"{ratio:.0%} in time, p50 {now['p50_ms']:,.0f}, p99 {now['p99_ms']:,.0f} ms"
                measured += f" (alone {was['p50_ms']:,.1f}, {was['p99_ms']:,.0f})"
                kept = ratio >= RATIO_MIN and now["p99_ms"] <= P99_MS_MAX
                yield Row(f"  honest, {tenant}", measured, f">= {RATIO_MIN:.0%}, {P99_MS_MAX:.0f} ms", kept=kept)


def evicted(address: Address) -> float:
    """Connections that the broker has closed for holding request memory too long."""
    return metrics(address.admin_port)["penstock_request_memory_evicted_total"]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory-mb", type=int, default=512, help="memoryLimitMB of the broker")
    parser.add_argument("--per-s", type=float, default=200.0, help="honest messages, over all connections")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    options = parser.parse_args(argv)
    with penstock(settings={"memoryLimitMB": str(options.memory_mb)}) as address:
        ask(address.admin_port, "PUT", "tenants/other", {"allowedClusters": ["standalone"]})
        ask(address.admin_port, "PUT", "namespaces/other/default", {})
        return 0 if report(measure(address, options)) else 1


if __name__ == "__main__":
    sys.exit(main())

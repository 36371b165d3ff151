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
import json
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.flood import Clients, Row, Subject
from benchmarks.penstock_peer import changed_environment
from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RATIO_MIN = 0.9
P99_MS_MAX = 500.0
HONEST_CONNECTIONS = 10
SAME, OTHER = "persistent://public/default/honest", "persistent://other/default/honest"
ATTACKED = "persistent://public/default/attack"
ATTACKS = {"flood": 200, "trickle": 30}
# From the attack's start until it is measured: the pool is full by then.
ONSET_S = 2.0


class FairnessClients(Clients):
    """One process of `fairness_clients`."""

    module = "benchmarks.fairness_clients"


@contextmanager
def subject(memory_mb: int) -> Iterator[Subject]:
    """Start a broker with this memory limit and a second tenant; remove it all at the end."""
    with tempfile.TemporaryDirectory(prefix="penstock-fairness-") as scratch:
        broker = BrokerProcess(Path(scratch) / "data")
        with changed_environment({"PENSTOCK_MEMORY_LIMIT_MB": str(memory_mb)}):
            broker.start()
        with broker:
            put(f"{broker.admin_url}/admin/v2/tenants/other", {"allowedClusters": ["standalone"]})
            put(f"{broker.admin_url}/admin/v2/namespaces/other/default", {})
            yield Subject(broker, broker.port, None, None)


def put(url: str, body: dict[str, Any]) -> None:
    """Make something by the admin port."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


def measure(target: Subject, options: argparse.Namespace) -> Iterator[Row]:
    """Honest producers alone, then beside each attack, alone again before the next."""
    steady = ["--per-s", str(options.per_s), "--seconds", str(options.seconds), "--topics", SAME, OTHER]
    with FairnessClients("honest", target.port, HONEST_CONNECTIONS, *steady, ca=None) as honest:
        honest.ask("run")  # to warm up
        for kind in options.attacks:
            alone = honest.ask("run")["groups"]
            before = target.figures()
            with FairnessClients(kind, target.port, ATTACKS[kind], "--topics", ATTACKED, ca=None) as attackers:
                attackers.tell("go")
                time.sleep(ONSET_S)
                beside = honest.ask("run")["groups"]
                after = target.figures()
                attack = attackers.ask("stop")
            evicted = after["penstock_request_memory_evicted_total"] - before["penstock_request_memory_evicted_total"]
            yield Row(
                f"{ATTACKS[kind]} connections that {kind}",
                f"{attack['frames']} frames sent, {evicted:.0f} evicted, RSS {target.rss_bytes()[0] / 2**20:.0f} MiB",
            )
            for tenant, was, now in zip(("same tenant", "other tenant"), alone, beside, strict=True):
                ratio = now["ratio"] / was["ratio"] if was["ratio"] else 0.0
                measured = f"{ratio:.0%} in time, p50 {now['p50_ms']:,.0f}, p99 {now['p99_ms']:,.0f} ms"
                measured += f" (alone {was['p50_ms']:,.1f}, {was['p99_ms']:,.0f})"
                kept = ratio >= RATIO_MIN and now["p99_ms"] <= P99_MS_MAX
                yield Row(f"  honest, {tenant}", measured, f">= {RATIO_MIN:.0%}, {P99_MS_MAX:.0f} ms", kept=kept)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory-mb", type=int, default=512, help="memoryLimitMB of the broker")
    parser.add_argument("--per-s", type=float, default=200.0, help="honest messages, over all connections")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    options = parser.parse_args(argv)
    kept = True
    with subject(options.memory_mb) as target:
        for row in measure(target, options):
            verdict = "" if not row.bound else "ok" if row.kept else "VIOLATED"
            print(f"  {row.what:<34} {row.measured:<72} {row.bound:<16} {verdict}", flush=True)
            kept = kept and row.kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

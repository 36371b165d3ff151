# SPDX-License-Identifier: Apache-2.0
"""What looking at many topics costs: the first page of the web console, later ones, and turns of the broker's loop.

    python -m benchmarks.console [--topics 100000] [--idle 0] [--consoles 10]

Topics are loaded, each with a producer and one message; `--idle` more are only stored. Then one console asks for the
first page, searches, sorts, and at last several ask as often as their pages do, for half a minute. Each page is what a
browser asks for: fifty rows.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import httpx

from benchmarks.brokers import penstock
from benchmarks.footprint import open_topics
from benchmarks.process import allow_many_sockets, usage
from benchmarks.report import print_table
from penstock.testing.client import RawClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.process import Address

# Partitions of a topic that is only stored.
PARTITIONS: Final = 1_000
# As often as a page of topics asks (console/pages/topics.js).
EVERY_S: Final = 3.0
LOOKING_S: Final = 30.0
FIRST: Final = "sort=in"
PAGES: Final = {
    "same page": FIRST,
    "second page": "sort=in&offset=50",
    "by name": "sort=name",
    "by backlog": "sort=backlog",
    "search": "search=footprint+99",
}


def ask(http: httpx.Client, query: str) -> float:
    """Ask for a page; returns the seconds until it was there."""
    began_s = time.monotonic()
    http.get(f"/admin/v3/topics?{query}&limit=50").raise_for_status()
    return time.monotonic() - began_s


def long_turns(http: httpx.Client) -> int:
    """Return how many turns of the broker's loop took longer than 5 ms so far. Metrics of so many topics take long."""
    turns: int = http.get("/admin/v3/overview").raise_for_status().json()["brokers"][0]["longTurns"]
    return turns


def look(url: str, until_s: float, times_s: list[float]) -> None:
    """Ask for the first page again and again, as one console does."""
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as http:
        while time.monotonic() < until_s:
            took_s = ask(http, FIRST)
            times_s.append(took_s)
            time.sleep(max(EVERY_S, 4 * took_s))


def measure(address: Address, topics: int, idle: int, consoles: int) -> dict[str, float]:
    """Load a broker and look at it; returns the cells of its column, in milliseconds."""
    url = f"http://127.0.0.1:{address.admin_port}"
    with ExitStack() as stack:
        client = RawClient(address.port)
        stack.callback(client.close)
        open_topics(client, range(topics))
        http = stack.enter_context(httpx.Client(base_url=url, trust_env=False, timeout=60))
        for number in range(idle // PARTITIONS):
            path = f"/admin/v2/persistent/public/default/idle-{number}/partitions"
            http.put(path, json=PARTITIONS).raise_for_status()
        http.get("/admin/v2/clusters").raise_for_status()  # The routes are imported for the first request.
        before_mib = usage(address.pid).rss_mib
        cpu_s = usage(address.pid).cpu_s
        cells = {"first page": 1e3 * ask(http, FIRST)}
        cells["its processor time"] = 1e3 * (usage(address.pid).cpu_s - cpu_s)
        cells |= {name: 1e3 * ask(http, query) for name, query in PAGES.items()}
        cells["MiB more"] = usage(address.pid).rss_mib - before_mib
        turns, cpu_s, times_s = long_turns(http), usage(address.pid).cpu_s, list[float]()
        until_s = time.monotonic() + LOOKING_S
        threads = [threading.Thread(target=look, args=(url, until_s, times_s)) for _ in range(consoles)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cells[f"{consoles} consoles, median"] = 1e3 * sorted(times_s)[len(times_s) // 2]
        cells[f"{consoles} consoles, most"] = 1e3 * max(times_s)
        cells["% of a processor"] = 100 * (usage(address.pid).cpu_s - cpu_s) / LOOKING_S
        cells["turns longer than 5 ms"] = long_turns(http) - turns
    return cells


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description="What looking at many topics costs.")
    parser.add_argument("--topics", type=int, default=100_000, help="with a producer and a message each")
    parser.add_argument("--idle", type=int, default=0, help="that are only stored")
    parser.add_argument("--consoles", type=int, default=10)
    options = parser.parse_args(arguments)
    allow_many_sockets()
    settings = {"exposeTopicLevelMetricsInPrometheus": "false", "memoryLimitMB": "4096", "sessionsMB": "512"}
    with penstock(settings=settings) as address:
        cells = measure(address, options.topics, options.idle, options.consoles)
    print(f"{options.topics:,} topics with a producer and a message each, and {options.idle:,} that are only stored")
    print_table("ms", {"penstock": cells})
    return 0


if __name__ == "__main__":
    sys.exit(main())

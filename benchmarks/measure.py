# SPDX-License-Identifier: Apache-2.0
"""What a load is, and what came of it: shared by the raw generator and the official client.

Why: two tools that take one command line and print one result can be compared, and `run` need not tell them apart.
Where: `generator` and `pyclient` read a `Load`, take a `Reading` before and after the measured part, print `Figures`.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.loads import COST, PROXY_COST, RATE, VOLUME
from benchmarks.process import cpu_of_all_s, usage
from penstock.cli.bench_frames import Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Figures: TypeAlias = dict[str, float]

NS_PER_S = 1_000_000_000
# What comes before the measured part, as a share of it: queues fill, compilers compile, caches warm.
WARM_UP_RATIO = 0.25
# After the measured part every receipt still out must come, or the load has failed.
DRAIN_TIMEOUT_S = 30.0
LATENCY_PER_S = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to drive against which broker."""

    port: int
    topic: str
    shape: Shape
    seconds: float = 3.0
    producers: int = 1  # on each connection, each with a topic of its own
    connections: int = 1
    window: int = 1_000  # entries sent and not yet acknowledged, on each connection
    subscriptions: int = 0
    entries: int = 0  # for a backlog: how many
    seed: int = 1
    broker_pid: int | None = None
    through: str = ""  # the broker's URL, if `port` is that of a proxy
    proxy_pid: int | None = None
    tls_ca: Path | None = None
    admin_port: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)  # of the tool that drives it

    def topics(self, connection: int) -> list[str]:
        """Name the topics of one connection's producers; the first connection's first is `topic` itself."""
        first = connection * self.producers
        return [self.topic if not row else f"{self.topic}-{row}" for row in range(first, first + self.producers)]


@dataclass(frozen=True, slots=True)
class Reading:
    """Clocks and a count at one moment."""

    at_s: float
    generator_cpu_s: float
    broker_cpu_s: float | None
    entries: float
    proxy_cpu_s: float | None = None

    @classmethod
    def take(cls, load: Load, entries: float) -> Reading:
        """Read them all now."""
        broker = None if load.broker_pid is None else cpu_of_all_s(load.broker_pid)
        proxy = None if load.proxy_pid is None else usage(load.proxy_pid).cpu_s
        return cls(time.monotonic(), time.process_time(), broker, entries, proxy)

    def until(self, end: Reading, load: Load, latency_ms: Figures | None = None, *, counted: int = 1) -> Figures:
        """What happened between this reading and a later one, by the names in the tables.

        Args:
            end: the later reading.
            load: what was driven.
            latency_ms: percentiles, if latencies were taken.
            counted: how many of what was counted make an entry: for a client that counts messages, those of a batch.
        """
        elapsed, entries = end.at_s - self.at_s, (end.entries - self.entries) / counted
        broker_s = 0.0
        if self.broker_cpu_s is not None and end.broker_cpu_s is not None:
            broker_s = end.broker_cpu_s - self.broker_cpu_s
        proxied: Figures = {}
        if self.proxy_cpu_s is not None and end.proxy_cpu_s is not None:
            proxy_s = end.proxy_cpu_s - self.proxy_cpu_s
            proxied = {PROXY_COST: proxy_s * 1e6 / entries if entries else 0.0, "proxy core": proxy_s / elapsed}
        return {
            RATE: entries / elapsed,
            "messages/s": entries * load.shape.messages / elapsed,
            VOLUME: entries * load.shape.entry_bytes / elapsed / 1e6,
            COST: broker_s * 1e6 / entries if entries else 0.0,
            "broker core": broker_s / elapsed,
            "generator core": (end.generator_cpu_s - self.generator_cpu_s) / elapsed,
            **proxied,
            **{f"{name} ms": value for name, value in (latency_ms or {}).items()},
        }


def percentiles(ordered: Sequence[float]) -> dict[str, float]:
    """Return the usual percentiles of ordered values."""
    last = len(ordered) - 1
    return {name: ordered[round(last * share)] for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


def wait_for_first(has_come: Callable[[], bool], turn: Callable[[], None]) -> None:
    """Take turns until something has come: in a short load on a busy machine that may be after its end.

    Raises:
        TimeoutError: nothing came.
    """
    deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
    while not has_come():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no message came within {DRAIN_TIMEOUT_S:.0f} s")
        turn()


def parse_load() -> tuple[str, Load]:
    """The command line: a mode, and a load as JSON: `publish '{"port": 6650, "topic": "t", "message_bytes": 1024}'`."""
    mode, given = sys.argv[1:]
    fields = json.loads(given)
    fields["tls_ca"] = Path(fields["tls_ca"]) if fields.get("tls_ca") else None
    return mode, Load(shape=Shape(fields.pop("message_bytes"), fields.pop("messages", 1)), **fields)

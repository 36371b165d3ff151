# SPDX-License-Identifier: Apache-2.0
"""What several brokers on one machine give: beside one broker, and Apache Pulsar, in the same run.

    python -m benchmarks.several_brokers [--brokers 2] [--peer pulsar] [--seconds 4]

For each of them: seconds until ready, and until a message on a topic of each broker was acknowledged; resident memory
while idle, of all processes; entries per second that all topics take together, one generator and one topic for each
broker, and that are read together from the start. Generators need cores, too: with N brokers and fewer than 2 N cores,
the figures say what this machine does, not what brokers can.

Then one of several brokers is killed (SIGKILL) while clients publish to it. The latency of publishes to another broker
is taken for as long without a kill and with it, in turns: the ratio of the 99th percentiles should be 2 at most, and so
should the seconds until a topic of the killed broker takes messages again. Takes three to five minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from benchmarks.brokers import BROKERS, add_peer_option, penstock, several
from benchmarks.loads import P50, P99, RATE
from benchmarks.process import ASK_TIMEOUT_S, Address, ask, usage
from benchmarks.quotas import children
from benchmarks.report import print_table
from benchmarks.subjects import GENERATOR_TIMEOUT_S, REPOSITORY, Subject
from penstock.testing.client import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    Launch: TypeAlias = Callable[[Path], AbstractContextManager[Address]]

TOPIC: Final = "persistent://public/default/"
SETTLED_S: Final = 5.0
BACKLOG_PER_S: Final = 30_000
WINDOW: Final = 20_000
ROUNDS: Final = 3
# One load without a kill and one with it; the broker is killed when a part of it has passed.
LATENCY_S: Final = 8.0
KILL_AFTER: Final = 0.4
BACK_TIMEOUT_S: Final = 30.0


def generator(mode: str, load: Mapping[str, object]) -> subprocess.Popen[str]:
    """Start a generator."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.generator", mode, json.dumps(load)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )


def result(process: subprocess.Popen[str]) -> dict[str, float]:
    """Wait for what a generator prints. Raises RuntimeError if it failed."""
    out, error = process.communicate(timeout=GENERATOR_TIMEOUT_S)
    if process.returncode:
        raise RuntimeError(error.strip().rpartition("\n")[2])
    figures: dict[str, float] = json.loads(out)
    return figures


def together(mode: str, loads: Iterable[Mapping[str, object]]) -> list[dict[str, float]]:
    """Run a generator for each load, all at the same time."""
    return [result(process) for process in [generator(mode, load) for load in loads]]


class Measured:
    """One subject while it runs, and where its topics are."""

    def __init__(self, subject: Subject, brokers: int, seconds: float) -> None:
        assert subject.address is not None
        self.address = subject.address
        self.brokers = brokers
        self.seconds = seconds

    def pids(self) -> dict[int, int]:
        return children(self.address.pid) if self.brokers > 1 else {0: self.address.pid}

    def memory_mib(self) -> float:
        """Resident memory of all processes."""
        return sum(usage(pid).rss_mib for pid in {self.address.pid, *self.pids().values()})

    def topics(self, prefix: str, count: int) -> list[tuple[int, str]]:
        """Ports and names of new topics, which all brokers have the same number of."""
        found: dict[int, list[str]] = {}
        for number in range(100 * count):
            name = f"{prefix}-{number}"
            port = self.port_of(name)
            found.setdefault(port, []).append(f"{TOPIC}{name}")
            if len(found) == self.brokers and all(len(names) * self.brokers >= count for names in found.values()):
                break
        return [(port, name) for port, names in found.items() for name in names[: count // self.brokers]]

    def port_of(self, name: str) -> int:
        """Create a topic; returns the port of its broker."""
        if self.brokers == 1:
            return self.address.port
        ask(self.address.admin_port, "PUT", f"persistent/public/default/{name}")
        url = f"{self.address.admin_url}/lookup/v2/topic/persistent/public/default/{name}"
        with urllib.request.urlopen(url, timeout=ASK_TIMEOUT_S) as answer:
            return int(json.loads(answer.read())["brokerUrl"].rpartition(":")[2])

    def load(self, port: int, topic: str, **others: object) -> dict[str, object]:
        return {
            "port": port,
            "topic": topic,
            "message_bytes": 1024,
            "seconds": self.seconds,
            "window": WINDOW,
            **others,
        }


def rates(one: Measured, topics: int, prefix: str) -> dict[str, float]:
    """Entries per second of all topics together: published, and read from the start."""
    places = one.topics(f"{prefix}-publish", topics)
    published = together("publish", [one.load(*place) for place in places])
    places = one.topics(f"{prefix}-read", topics)
    entries = round(BACKLOG_PER_S * one.seconds)
    together("backlog", [one.load(*place, entries=entries) for place in places])
    os.sync()
    caught_up = together("catch-up", [one.load(*place, entries=entries) for place in places])
    return {
        "publish, entries/s": sum(each[RATE] for each in published),
        "catch-up, entries/s": sum(each[RATE] for each in caught_up),
    }


def seconds_until_back(port: int, topic: str, killed_s: float) -> float:
    """Until a producer can be opened again and a message is acknowledged; at most BACK_TIMEOUT_S."""
    while time.monotonic() - killed_s < BACK_TIMEOUT_S:
        try:
            with RawClient(port) as client:
                client.produce(topic)
                client.publish([b"x"])
                return time.monotonic() - killed_s
        except (OSError, EOFError, RuntimeError):
            time.sleep(0.02)
    return BACK_TIMEOUT_S


def kill(one: Measured) -> dict[str, float]:
    """Latency of publishes to one broker without and with a kill of another one under load, in turns."""
    places = sorted(one.topics("killed", one.brokers))
    (port, topic), (victims_port, victims_topic) = places[0], places[-1]
    figures: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    back = []
    for with_kill in (False, True) * ROUNDS:
        busy = generator("publish", one.load(victims_port, victims_topic, seconds=LATENCY_S, window=100))
        others = generator("latency", one.load(port, topic, seconds=LATENCY_S))
        time.sleep(LATENCY_S * KILL_AFTER)
        if with_kill:
            os.kill(one.pids()[victims_port - one.address.port], signal.SIGKILL)
            back.append(seconds_until_back(victims_port, victims_topic, time.monotonic()))
        figures[with_kill].append(result(others))
        busy.communicate(timeout=GENERATOR_TIMEOUT_S)  # It fails if its broker was killed.
        time.sleep(SETTLED_S)
    (p50, p99), (p50_killed, p99_killed) = (
        [statistics.median(each[name] for each in rounds) for name in (P50, P99)] for rounds in figures.values()
    )
    return {
        "p50 of another broker, ms": p50,
        "p50 while one is killed, ms": p50_killed,
        "p99 of another broker, ms": p99,
        "p99 while one is killed, ms": p99_killed,
        "p99, times": p99_killed / p99,
        "topic back after, s": statistics.median(back),
        "topic back after, s, at most": max(back),
    }


def measure(name: str, launch: Launch, brokers: int, options: argparse.Namespace) -> dict[str, float]:
    """All figures of one subject."""
    with tempfile.TemporaryDirectory(prefix="several-brokers-") as scratch:
        subject = Subject(name, launch, Path(scratch) / "data")
        try:
            found = subject.start()
            one = Measured(subject, brokers, options.seconds)
            time.sleep(SETTLED_S)
            found["idle, MiB"] = one.memory_mib()
            rounds = [rates(one, options.brokers, f"round-{number}") for number in range(options.rounds)]
            found |= {figure: statistics.median(each[figure] for each in rounds) for figure in rounds[0]}
            if brokers > 1:
                found |= kill(one)
        finally:
            subject.stop()
    return found


def main() -> int:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description="Several brokers beside one, and beside a peer.")
    add_peer_option(parser)
    parser.add_argument("--brokers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="the measured part of each load")
    parser.add_argument("--rounds", type=int, default=2, help="of publish and catch-up; the medians count")
    options = parser.parse_args()
    print(f"{options.brokers} topics of 1 KiB messages, {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}")
    columns = {"one broker": measure("penstock", penstock, 1, options)}
    if options.peer:
        columns[options.peer] = measure(options.peer, BROKERS[options.peer], 1, options)
    found = measure("penstock", partial(several, brokers=options.brokers), options.brokers, options)
    alone = {figure: found[figure] for figure in columns["one broker"]}
    print_table("figure", {**columns, f"{options.brokers} brokers": alone})
    killed = {figure: value for figure, value in found.items() if figure not in alone}
    print_table("a broker is killed", {f"{options.brokers} brokers": killed})
    return 0


if __name__ == "__main__":
    sys.exit(main())

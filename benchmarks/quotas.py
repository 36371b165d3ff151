# SPDX-License-Identifier: Apache-2.0
"""How well several brokers keep the quota of one resource group together: messages per second that they accept.

    python -m benchmarks.quotas [--brokers 4] [--quota 1000] [--seconds 60] [--small 50]

One group limits four namespaces of two tenants, with topics on all brokers. Producers of the official client send
unbatched messages as fast as they may. After a third of the time one broker is killed (SIGKILL), after two thirds the
quota is changed. What brokers accept is read from their own counters; a window of 5 seconds counts if it begins two
cycles after the start, the kill and the change. Exits 1 if the rate of a window differs by more than 5 %.

With `--small N`, one producer sends as fast as it may, and N topics beside it need half of the quota together: each
sends messages by chance, whether or not earlier ones were accepted. It is printed which part of what they sent was
accepted, and how long receipts took.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pulsar

from benchmarks.process import ask
from benchmarks.report import print_table
from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP: Final = "group"
NAMESPACES: Final = ("gold/a", "gold/b", "silver/a", "silver/b")
# Each producer has so many messages in flight: together far more than the quota lets pass in a round trip.
IN_FLIGHT: Final = 100
PAYLOAD: Final = bytes(100)
WINDOW_S: Final = 5.0
SAMPLE_S: Final = 0.5
TOLERANCE: Final = 0.05
# The default of resourceUsagePublishIntervalInSecs.
CYCLE_S: Final = 1.0
CYCLES_EXEMPT: Final = 2
TIMEOUT_S: Final = 5.0

_USED: Final = re.compile(
    r'^pulsar_resource_group_messages_used\{[^}]*MonitoringClass="Publish"[^}]*\} (\d+)', re.MULTILINE
)


@dataclass
class Counters:
    """Messages that each broker has accepted, through restarts."""

    admin_ports: Sequence[int]
    total: int = 0
    samples: list[tuple[float, int]] = field(default_factory=list)  # time, total
    _last: dict[int, int] = field(default_factory=dict)

    def read(self) -> None:
        """Take a sample. A broker that is gone adds nothing, one that was started again begins at 0."""
        began_s = time.monotonic()
        for port in self.admin_ports:
            used = accepted(port)
            if used is not None:
                last = self._last.get(port, 0)
                self.total += used - last if used >= last else used
                self._last[port] = used
        self.samples.append(((began_s + time.monotonic()) / 2, self.total))


def accepted(admin_port: int) -> int | None:
    """The broker's counter; None if it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/metrics", timeout=TIMEOUT_S) as answer:
            found = _USED.search(answer.read().decode())
    except OSError:
        return None
    return int(found[1]) if found else 0


def windows(
    samples: Sequence[tuple[float, int]], events_s: Sequence[float], exempt_s: float
) -> list[tuple[float, float]]:
    """Begin and rate of each window of WINDOW_S that is not exempt."""
    found = []
    ends = iter(samples)
    end = next(ends, None)
    for begin_s, count in samples:
        while end is not None and end[0] < begin_s + WINDOW_S:
            end = next(ends, None)
        if end is None:
            break
        if all(not (begin_s < event_s + exempt_s and end[0] > event_s) for event_s in events_s):
            found.append((begin_s, (end[1] - count) / (end[0] - begin_s)))
    return found


def produce(client: pulsar.Client, topic: str, ended: threading.Event) -> None:
    """Send without batches, as fast as the broker takes it, until told to end."""
    producer = client.create_producer(
        topic, batching_enabled=False, block_if_queue_full=True, max_pending_messages=IN_FLIGHT, send_timeout_millis=0
    )
    while not ended.is_set():
        producer.send_async(PAYLOAD, lambda _result, _id: None)


@dataclass
class Small:
    """A producer of a topic that needs little: what it sent, and how long receipts took."""

    client: pulsar.Client
    topic: str
    rate: float  # messages per second
    sent: int = 0
    waits_s: list[float] = field(default_factory=list)

    def produce(self, ended: threading.Event) -> None:
        chance = random.Random(self.topic)
        producer = self.client.create_producer(self.topic, batching_enabled=False, send_timeout_millis=0)
        at_s = time.monotonic()
        while not ended.is_set():
            at_s += chance.expovariate(self.rate)
            ended.wait(max(0.0, at_s - time.monotonic()))
            self.sent += 1
            producer.send_async(PAYLOAD, partial(self._received, time.monotonic()))

    def _received(self, sent_s: float, result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result == pulsar.Result.Ok:
            self.waits_s.append(time.monotonic() - sent_s)


def print_small(small: Sequence[Small]) -> None:
    parts = [len(one.waits_s) / max(1, one.sent) for one in small]
    waits_s = sorted(wait_s for one in small for wait_s in one.waits_s)
    jain = sum(parts) ** 2 / len(parts) / sum(part * part for part in parts)
    print(
        f"{len(small)} small topics: {sum(parts) / len(parts):.1%} of what each sent was accepted, "
        f"the least {min(parts):.1%}, "
        f"Jain {jain:.4f}; receipts after {statistics.median(waits_s) * 1e3:.0f} ms (median), "
        f"{waits_s[len(waits_s) * 99 // 100] * 1e3:.0f} ms (99 %)"
    )


def set_up(port: int, quota: int) -> list[str]:
    """Create the group, the tenants, the namespaces; returns the topics."""
    put_quota(port, quota)
    (cluster,) = ask(port, "GET", "clusters")
    for tenant in sorted({name.split("/")[0] for name in NAMESPACES}):
        ask(port, "PUT", f"tenants/{tenant}", {"adminRoles": [], "allowedClusters": [cluster]})
    for name in NAMESPACES:
        ask(port, "PUT", f"namespaces/{name}")
        ask(port, "POST", f"namespaces/{name}/resourcegroup/{GROUP}")
    return [f"persistent://{name}/t{number}" for number in range(2) for name in NAMESPACES]


def put_quota(port: int, quota: int) -> None:
    """Create or change the group."""
    ask(port, "PUT", f"resourcegroups/{GROUP}", {"publishRateInMsgs": quota})


def children(pid: int) -> dict[int, int]:
    """The broker processes of a supervisor, by number."""
    found = {}
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        for argument in Path(f"/proc/{child}/cmdline").read_text().split("\0"):
            if argument.startswith("broker-"):
                found[int(argument.removeprefix("broker-"))] = child
    return found


def admin_ports(port: int) -> list[int]:
    """Those of all brokers."""
    (cluster,) = ask(port, "GET", "clusters")
    return sorted(int(address.rpartition(":")[2]) for address in ask(port, "GET", f"brokers/{cluster}"))


def run(options: argparse.Namespace) -> tuple[dict[str, list[tuple[float, float]]], dict[str, int]]:
    """Run the load; returns windows and the quota by phase."""
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quotas-"))) / "data"
        broker = stack.enter_context(BrokerProcess(data, ["--brokers", str(options.brokers)]))
        topics = set_up(broker.admin_port, options.quota)
        counters = Counters(admin_ports(broker.admin_port))
        counters.read()  # A broker's first answer takes a second or more: it loads what answers.
        counters.samples.clear()
        ended = threading.Event()
        # At its end the client complains of each message that it had in flight.
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(data.with_name("client.log")))
        client = pulsar.Client(broker.url, logger=logger, io_threads=1)
        stack.callback(client.close)
        hogs = topics[:1] if options.small else topics
        threads = [threading.Thread(target=produce, args=(client, topic, ended), daemon=True) for topic in hogs]
        namespaces = itertools.cycle(NAMESPACES)
        small = [
            Small(client, f"persistent://{next(namespaces)}/small-{number}", options.quota / 2 / options.small)
            for number in range(options.small)
        ]
        threads += [threading.Thread(target=one.produce, args=(ended,), daemon=True) for one in small]
        for thread in threads:
            thread.start()
        stack.callback(ended.set)
        changed = options.quota * 3 // 5
        events = {"start": time.monotonic()}
        third_s = options.seconds / 3
        phases = {"steady": options.quota, "after a kill": options.quota, "changed quota": changed}
        while time.monotonic() < events["start"] + options.seconds:
            counters.read()
            since_s = time.monotonic() - events["start"]
            if since_s >= third_s and "kill" not in events:
                events["kill"] = time.monotonic()
                os.kill(children(broker.pid)[options.brokers - 1], signal.SIGKILL)
            if since_s >= 2 * third_s and "change" not in events:
                events["change"] = time.monotonic()
                put_quota(broker.admin_port, changed)
            time.sleep(SAMPLE_S)
        if small:
            print_small(small)
        found = windows(counters.samples, list(events.values()), CYCLES_EXEMPT * CYCLE_S)
        begins = [*events.values(), float("inf")]
        by_phase = {
            phase: [(at - events["start"], rate) for at, rate in found if begins[number] <= at < begins[number + 1]]
            for number, phase in enumerate(phases)
        }
        if options.verbose:
            for number, (at, total) in enumerate(counters.samples[1:]):
                before = counters.samples[number]
                print(f"{at - events['start']:6.2f} s  {(total - before[1]) / (at - before[0]):8.1f}/s")
    return by_phase, phases


def main() -> int:
    """Measure, print one table, and return the exit status."""
    parser = argparse.ArgumentParser(description="How well several brokers keep one quota together.")
    parser.add_argument("--brokers", type=int, default=4)
    parser.add_argument("--quota", type=int, default=1_000, help="messages per second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--small", type=int, default=0, help="topics that need little, beside one that needs all")
    parser.add_argument("--verbose", action="store_true", help="print each sample")
    options = parser.parse_args()
    by_phase, quotas = run(options)
    print(
        f"{options.brokers} brokers, one group, {len(NAMESPACES)} namespaces of 2 tenants, messages accepted per second"
    )
    broken = [
        f"{phase}: {rate:.1f}/s in the 5 s from {at:.1f} s on, quota {quotas[phase]}"
        for phase, found in by_phase.items()
        for at, rate in found
        if abs(rate / quotas[phase] - 1) > TOLERANCE
    ]
    columns = {
        phase: {
            "quota": float(quotas[phase]),
            "windows": float(len(found)),
            "least": min((rate for _, rate in found), default=0.0),
            "mean": sum(rate for _, rate in found) / max(1, len(found)),
            "most": max((rate for _, rate in found), default=0.0),
        }
        for phase, found in by_phase.items()
    }
    print_table("shared quota", columns)
    for text in broken:
        print(text, file=sys.stderr)
    whole = not broken and all(by_phase.values())
    print(f"within {TOLERANCE:.0%} of the quota in every window: {'yes' if whole else 'NO'}")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())

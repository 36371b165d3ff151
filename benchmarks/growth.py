# SPDX-License-Identifier: Apache-2.0
"""What one more costs as it grows: topics, connections, subscriptions of a topic, stored bytes, brokers of a machine.

    python -m benchmarks.growth [--most topics=100000,connections=10000,subscriptions=1000,gigabytes=16,brokers=32]

Each series grows by factors (of ten, or of two), and after each step stands what the step took for each one that was
added (processor time of the broker, resident memory), and what the others notice: the time until a lone message has its
receipt. A line is straight if the first two stay as they are while the count grows a thousandfold.

Where: by hand; `tools.write_figures` puts what it leaves into docs/reference/benchmarks.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.brokers import penstock, several
from benchmarks.footprint import answers, open_topics
from benchmarks.process import allow_many_sockets, cpu_of_all_s, forget_pages, rss_of_all_mib
from benchmarks.report import short
from penstock.testing.client import RawClient, Refused, Type, entry, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.process import Address

    Grow = Callable[[int, int], None]  # from so many to so many

MOST: Final = {"topics": 100_000, "connections": 10_000, "subscriptions": 1_000, "gigabytes": 16, "brokers": 32}
RESULTS: Final = Path(__file__).resolve().parent / "results" / "growth.json"
LONE_MESSAGES: Final = 200
TOPIC: Final = "persistent://public/default/growth"
LONE: Final = "persistent://public/default/lone"
# Answers of this many requests are outstanding at a time.
WINDOW: Final = 100
LARGE: Final = entry(b"x" * (128 << 10))
US_PER_S: Final = 1_000_000
KIB_PER_MIB: Final = 1_024
# A broker answers first what it has to do once; what comes after it is steady.
SETTLED_S: Final = 0.5
# After so long a broker has done what follows its start, and its use while idle is taken over so long.
STARTED_S: Final = 5
IDLE_S: Final = 10
# Clients that only wait here answer no pings; and a hundred thousand producers want more memory than by default.
QUIET: Final = {"keepAliveIntervalSeconds": "3600", "sessionsMB": "1024"}


def steps(most: int, factor: int = 10) -> list[int]:
    """Return 1, then by this factor, up to `most`, which is the last one."""
    found = [1]
    while found[-1] * factor < most:
        found.append(found[-1] * factor)
    return [*found, most] if most > 1 else found


class Lone:
    """A producer that publishes one message at a time, as the neighbour of all that grows."""

    def __init__(self, port: int) -> None:
        self.client = RawClient(port)
        self._sent = 0
        for number in itertools.count():
            try:
                self.client.produce(f"{LONE}-{number}", producer_id=0)
            except Refused:  # Another broker serves this topic.
                continue
            break

    def receipt_ms(self) -> float:
        """Return the median time until a message has its receipt."""
        taken = []
        for _ in range(LONE_MESSAGES):
            began_s = time.perf_counter()
            self.client.publish([b"x"], first=self._sent)
            taken.append(time.perf_counter() - began_s)
            self._sent += 1
        return statistics.median(taken) * 1_000


def grown(series: str, address: Address, counts: Sequence[int], grow: Grow) -> Iterator[dict[str, Any]]:
    """Let something grow step by step, and yield what each step took."""
    lone = Lone(address.port)
    with lone.client:
        lone.receipt_ms()
        before = 0
        for count in counts:
            cpu_s, mib, began_s = cpu_of_all_s(address.pid), rss_of_all_mib(address.pid), time.monotonic()
            grow(before, count)
            passed_s = time.monotonic() - began_s
            time.sleep(SETTLED_S)
            added = count - before
            yield {
                "series": series,
                "count": count,
                "us": (cpu_of_all_s(address.pid) - cpu_s) / added * US_PER_S,
                "KiB": (rss_of_all_mib(address.pid) - mib) / added * KIB_PER_MIB,
                "MiB": rss_of_all_mib(address.pid),
                "seconds": passed_s,
                "receipt ms": lone.receipt_ms(),
            }
            before = count


def topics(most: int) -> Iterator[dict[str, Any]]:
    """Topics with a producer and a message each."""
    with penstock(settings=QUIET) as address, RawClient(address.port) as client:
        yield from grown(
            "topics", address, steps(most), lambda before, count: open_topics(client, range(before, count))
        )


def connections(most: int) -> Iterator[dict[str, Any]]:
    """Connections with a producer and a consumer each, over a hundred topics."""
    with penstock(settings=QUIET) as address, ExitStack() as stack:

        def grow(before: int, count: int) -> None:
            for number in range(before, count):
                client = stack.enter_context(RawClient(address.port))
                client.produce(f"{TOPIC}-{number % 100}", producer_id=0)
                client.subscribe(f"{TOPIC}-{number % 100}", subscription="shared", subType=1)

        yield from grown("connections", address, steps(most), grow)


def subscriptions(most: int) -> Iterator[dict[str, Any]]:
    """Subscriptions of one topic, each with a consumer that gets each message. The time is that of one delivery."""
    with penstock(settings=QUIET) as address, RawClient(address.port) as producer, RawClient(address.port) as client:
        producer.produce(TOPIC, producer_id=0)
        sent = 0

        def grow(before: int, count: int) -> None:
            for number in range(before, count):
                client.subscribe(
                    TOPIC, subscription=f"s{number}", consumer_id=number, permits=10_000, initialPosition=0
                )

        for row in grown("subscriptions", address, steps(most), grow):
            count, messages = row["count"], max(1, 2_000 // row["count"])
            cpu_s = cpu_of_all_s(address.pid)
            for _ in range(messages):
                producer.publish([b"x"], first=sent)
                sent += 1
                for _ in range(count):
                    client.message()
            yield {**row, "us a delivery": (cpu_of_all_s(address.pid) - cpu_s) / (messages * count) * US_PER_S}


def gigabytes(most: int) -> Iterator[dict[str, Any]]:
    """A log of so many gigabytes: the start with it, and the first message of a reader from its beginning."""
    with tempfile.TemporaryDirectory(prefix="penstock-growth-") as scratch:
        data, written = Path(scratch) / "data", 0
        for count in steps(most, 2):
            with penstock(data) as address, RawClient(address.port) as client:
                client.produce(TOPIC, producer_id=0)
                client.subscribe(TOPIC, subscription="keeps", consumer_id=9)
                for _ in range(written, (count << 30) // len(LARGE), WINDOW):
                    client.write(b"".join(send(0, written + row, LARGE) for row in range(WINDOW)))
                    answers(client, Type.SEND_RECEIPT, Type.SEND_ERROR, WINDOW)
                    written += WINDOW
            forget_pages(data)
            with penstock(data) as address:
                ready_s, cpu_s = time.monotonic() - address.started_s, cpu_of_all_s(address.pid)
                began_s = time.perf_counter()
                with RawClient(address.port) as client:
                    client.subscribe(TOPIC, subscription="reads", permits=1)
                    client.message()
                yield {
                    "series": "gigabytes",
                    "count": count,
                    "seconds": ready_s,
                    "start core s": cpu_s,
                    "first message ms": (time.perf_counter() - began_s) * 1_000,
                    "MiB": rss_of_all_mib(address.pid),
                }


def brokers(most: int) -> Iterator[dict[str, Any]]:
    """Brokers of one machine: their start, their memory together, and what they use while nobody is there."""
    for count in steps(most, 2):
        with (
            tempfile.TemporaryDirectory(prefix="penstock-growth-") as scratch,
            several(Path(scratch) / "data", brokers=count) as address,
        ):
            ready_s = time.monotonic() - address.started_s
            time.sleep(STARTED_S)
            cpu_s, began_s = cpu_of_all_s(address.pid), time.monotonic()
            time.sleep(IDLE_S)
            idle = (cpu_of_all_s(address.pid) - cpu_s) / (time.monotonic() - began_s)
            lone = Lone(address.port)
            with lone.client:
                receipt_ms = lone.receipt_ms()
            yield {
                "series": "brokers",
                "count": count,
                "seconds": ready_s,
                "idle core %": 100 * idle,
                "MiB": rss_of_all_mib(address.pid),
                "receipt ms": receipt_ms,
            }


SERIES: Final[Mapping[str, Callable[[int], Iterator[dict[str, Any]]]]] = {
    "topics": topics,
    "connections": connections,
    "subscriptions": subscriptions,
    "gigabytes": gigabytes,
    "brokers": brokers,
}


def asked(text: str) -> dict[str, int]:
    """Read `topics=1000,brokers=4`: only these series, up to these counts."""
    found = {}
    for part in text.split(","):
        name, _, most = part.partition("=")
        if name not in SERIES or not (most or "1").isdecimal():
            raise argparse.ArgumentTypeError(f"{part!r}: want NAME=COUNT, with a name of {', '.join(SERIES)}")
        found[name] = int(most or MOST[name])
    return found


def main() -> int:
    """Measure, print each step, and leave the rows beside the other results."""
    parser = argparse.ArgumentParser(description="What one more costs, as it grows.")
    parser.add_argument("--most", type=asked, default=MOST, help="series and how far they grow, as NAME=COUNT,…")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    allow_many_sockets()
    rows = []
    for name, most in options.most.items():
        for row in SERIES[name](most):
            rows.append(row)
            figures = ", ".join(f"{short(value)} {unit}" for unit, value in row.items() if isinstance(value, float))
            print(f"{row['count']:>9,} {row['series']}: {figures}", flush=True)
    options.results.parent.mkdir(exist_ok=True)
    options.results.write_text(json.dumps({"at": datetime.now(UTC).isoformat(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

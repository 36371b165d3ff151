# SPDX-License-Identifier: Apache-2.0
"""What a minute of usage records costs: how long it holds the event loop, and how many bytes it writes.

    python -m benchmarks.usage_records [--topics 10000] [--rounds 5]

All topics have changed in each round but the last, in which none has. A watcher takes every turn of the loop: the
longest CPU time of the loop between two of its turns is how long the broker was not available.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.names import TopicName
from penstock.core.system_topics import USAGE_TOPIC
from tests.net.harness import running

if TYPE_CHECKING:
    from penstock.broker.topics.topic import Topic
    from tests.net.harness import Harness

ON: dict[str, Any] = {"usage_records_enabled": True, "usage_records_interval_in_seconds": 3_600}
TOPICS_AT_ONCE = 500


async def make(harness: Harness, topics: int) -> list[Topic]:
    """Topics with names as long as real ones."""
    made: list[Topic] = []
    for start in range(0, topics, TOPICS_AT_ONCE):
        names = [
            TopicName.parse(f"persistent://public/default/orders-of-the-shop-in-a-town-{number:06d}")
            for number in range(start, min(topics, start + TOPICS_AT_ONCE))
        ]
        made += await asyncio.gather(*(harness.broker.topics.create(name, {}) for name in names))
    return made


async def longest_turn_ns(work: asyncio.Task[None]) -> tuple[int, int]:
    """The longest time between two turns while something runs, and how many there were."""
    longest, turns, before = 0, 0, time.thread_time_ns()
    while not work.done():
        await asyncio.sleep(0)
        now = time.thread_time_ns()
        longest, turns, before = max(longest, now - before), turns + 1, now
    work.result()
    return longest, turns


async def measure(topics: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        async with running(Path(scratch), **ON) as harness:
            usage, loaded = harness.broker.recorder.usage, await make(harness, topics)
            assert usage is not None
            if usage._running is not None:  # noqa: SLF001
                await asyncio.wait((usage._running,))  # noqa: SLF001
            records = harness.broker.topics.get(f"{USAGE_TOPIC}-partition-0")
            assert records is not None
            gc.collect()
            gc.freeze()
            gc.disable()  # The broker collects rarely; what a collection takes is not what records take.
            longest, cpu = [], []
            for number in range(rounds + 1):
                if number < rounds:
                    for topic in loaded:
                        topic.messages_out_before += 1
                        topic.bytes_out_before += 1_000
                before_bytes, before_ns = records.bytes_in, time.process_time_ns()
                turn_ns, turns = await longest_turn_ns(usage._begin(record=True))  # noqa: SLF001
                took_ms = (time.process_time_ns() - before_ns) / 1e6
                print(
                    f"{topics if number < rounds else 0:7,} topics changed: {took_ms:7.1f} ms of CPU in {turns} turns, "
                    f"the longest {turn_ns / 1e6:.1f} ms; {records.bytes_in - before_bytes:,} bytes recorded"
                )
                longest.append(turn_ns / 1e6)
                cpu.append(took_ms)
            print(
                f"median of rounds with changes: {statistics.median(cpu[:-1]):.0f} ms of CPU (the watcher's included), "
                f"longest turn {statistics.median(longest[:-1]):.1f} ms"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.topics, arguments.rounds))


if __name__ == "__main__":
    main()

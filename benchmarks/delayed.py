# SPDX-License-Identifier: Apache-2.0
"""What a delayed message costs in the index: bytes of resident memory, and microseconds of one core.

Why by resident memory and by process: the index accounts for its bytes itself, and that is checked here against what
the system says of a fresh process. Subscriptions take memory of their own, which is measured apart and taken off.
Budgets: 4 bytes a message in the order of time, 25 when a million is due at random within an hour; the same for 1, 10
and 1,000 subscriptions; microseconds that do not grow from ten thousand messages to ten million.

Run: python -m benchmarks.delayed
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import random
import subprocess
import sys
from pathlib import Path
from time import process_time_ns  # of this process: on a machine that does other things, too, the figures stay
from typing import TYPE_CHECKING

from benchmarks.report import print_table
from penstock.core.units import GIB
from penstock.governance.delayed import DelayedMemory, DelayedOptions, TopicDelayedDeliveryTrackerManager
from penstock.storage.cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
RUN = 200  # messages in one publish run
TAKEN = 1_000  # messages asked for at once
IN_ORDER, AT_RANDOM = "in order", "at random"


def resident_bytes() -> int:
    """Of this process, now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4_096


def runs(order: str, messages: int) -> Iterator[tuple[range, list[int]]]:
    """Ids and deliver times, a run at a time: due within an hour, one evenly after the other or at random."""
    chance = random.Random(7)
    for first in range(0, messages, RUN):
        ids = range(first, min(first + RUN, messages))
        if order == IN_ORDER:
            yield ids, [NOW_MS + HOUR_MS + entry_id * HOUR_MS // messages for entry_id in ids]
        else:
            yield ids, [NOW_MS + HOUR_MS + chance.randrange(HOUR_MS) for _ in ids]


def measure(order: str, messages: int, subscriptions: int) -> dict[str, float]:
    """The figures of one case; to be called once in a process."""
    memory = DelayedMemory(64 * GIB)
    manager = TopicDelayedDeliveryTrackerManager("topic", 0, DelayedOptions(), memory, lambda _: None)
    manager.add_run([0], [NOW_MS + 9 * HOUR_MS], NOW_MS)  # what is imported for the first is not its memory
    # What imports have freed goes back to the system: taken again it would be no growth.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    empty_bytes = resident_bytes()
    views = [manager.create_or_get_view(f"subscription-{index}", Cursor()) for index in range(subscriptions)]
    for view in views:
        view.held(0, 1)
    before_bytes = resident_bytes()
    add_ns = 0
    for ids, times_ms in runs(order, messages):
        began_ns = process_time_ns()
        manager.add_run(ids, times_ms, NOW_MS)
        add_ns += process_time_ns() - began_ns
    after_bytes = resident_bytes()
    accounted = manager.topic_buffer_memory_bytes()
    began_ns = process_time_ns()
    stored = manager.snapshot(messages)
    encode_ns = process_time_ns() - began_ns
    from penstock.governance.delayed_snapshot import decode

    began_ns = process_time_ns()
    decode(stored)
    decode_ns = process_time_ns() - began_ns
    return {
        "bytes each": (after_bytes - before_bytes) / messages,  # by the growth of the process
        "accounted each": accounted / messages,  # by the index's own account
        "bytes per subscription": (before_bytes - empty_bytes) / subscriptions,
        "add µs": add_ns / messages / 1_000,
        "due µs": _due_ns(manager, messages) / messages / 1_000,  # for one subscription that takes everything
        "snapshot bytes each": len(stored) / messages,
        "encode µs": encode_ns / messages / 1_000,
        "decode µs": decode_ns / messages / 1_000,
    }


def _due_ns(manager: TopicDelayedDeliveryTrackerManager, messages: int) -> int:
    """Let half an hour after half an hour pass, and take what is due each time."""
    view = manager.create_or_get_view("subscription-0", Cursor())
    spent_ns = taken = 0
    for now_ms in (NOW_MS + HOUR_MS + step * HOUR_MS // 60 for step in range(62)):
        began_ns = process_time_ns()
        while got := view.get_scheduled_messages(now_ms, TAKEN, messages):
            taken += len(got)
        spent_ns += process_time_ns() - began_ns
    assert taken >= messages - 1, f"{taken} of {messages} came due"
    return spent_ns


def main() -> None:
    """Measure each case in a process of its own and print a table for each order."""
    parser = argparse.ArgumentParser(description="What a delayed message costs.")
    parser.add_argument("--case", nargs=3, metavar=("ORDER", "MESSAGES", "SUBSCRIPTIONS"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.case is not None:
        order, messages, subscriptions = chosen.case
        print(json.dumps(measure(order, int(messages), int(subscriptions))))
        return
    cases = [(10_000, 1), (100_000, 1), (1_000_000, 1), (10_000_000, 1), (1_000_000, 10), (1_000_000, 1_000)]
    for order in (IN_ORDER, AT_RANDOM):
        columns = {f"{messages:,} × {count:,}": _in_process(order, messages, count) for messages, count in cases}
        print_table(f"{order}, messages × subscriptions", columns)


def _in_process(order: str, messages: int, subscriptions: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.delayed", "--case", order, str(messages), str(subscriptions)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


if __name__ == "__main__":
    main()

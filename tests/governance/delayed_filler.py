# SPDX-License-Identifier: Apache-2.0
"""A process that fills delayed indexes beyond their memory and prints what they say and what the system says.

Why a process of its own: bitmaps take their memory outside of what Python can trace, so only the growth of a fresh
process tells how much it is.
Where: tests/governance/test_delayed_memory.py runs it.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
from pathlib import Path

from penstock.governance.delayed import DelayedMemory, DelayedOptions, TopicDelayedDeliveryTrackerManager
from penstock.storage.cursor import Cursor

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
MONTH_MS = 30 * 24 * HOUR_MS
SMALL_BYTES = 65_536


def resident_bytes() -> int:
    """Anonymous memory of this process, now: the pages of libraries that it maps are not the index's."""
    gc.collect()
    resident_pages, shared_pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1:3]
    return (int(resident_pages) - int(shared_pages)) * os.sysconf("SC_PAGE_SIZE")


def deliver_at_ms(order: str, row: int, messages: int, chance: random.Random) -> int:
    """When a message is due."""
    if order == "in order":
        return NOW_MS + HOUR_MS + 1_000 * row
    if order == "reversed":
        return NOW_MS + HOUR_MS + 1_000 * (messages - row)
    return NOW_MS + HOUR_MS + chance.randrange(MONTH_MS if order == "scattered" else HOUR_MS)


def fill(order: str, run: int, messages: int, topics: int, size_bytes: int) -> dict[str, int]:
    """Publish `messages` in runs of `run`, to one topic after the other; return what the index says and the growth."""
    memory, chance = DelayedMemory(size_bytes), random.Random(7)
    managers = [
        TopicDelayedDeliveryTrackerManager(f"topic-{index}", 0, DelayedOptions(), memory, lambda _: None)
        for index in range(topics)
    ]
    for manager in managers:
        manager.create_or_get_view("subscription", Cursor()).held(0, 1)
        manager.add_run([0], [NOW_MS + HOUR_MS], NOW_MS)
    before_bytes, most = resident_bytes(), 0
    for start in range(0, messages, run):
        manager = managers[start // run % topics]
        first = 1 + start // (run * topics) * run
        times_ms = [deliver_at_ms(order, start + row, messages, chance) for row in range(run)]
        manager.add_run(range(first, first + run), times_ms, NOW_MS)
        most = max(most, memory.used_bytes)
    return {"most": most, "used": memory.used_bytes, "grown": resident_bytes() - before_bytes}


def main(order: str, run: int, messages: int, topics: int, size_bytes: int) -> None:
    """Fill a small index first: what Python allocates once for the code itself is not the index's either."""
    fill(order, run, 4 * run, 1, SMALL_BYTES)
    print(json.dumps(fill(order, run, messages, topics, size_bytes)))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

# SPDX-License-Identifier: Apache-2.0
"""How fast the entry log appends, syncs, reads and recovers.

    python benchmarks/storage.py [--directory DIR] [--seconds 4]

Appends runs as a broker would (each one what a read brought) from one thread, with a bounded number underway, and reads
everything back through `EntryLog.read`. Budgets on one core: journal ≤ 0.5 µs and reader ≤ 2 µs per entry of 1 KiB.
"""

from __future__ import annotations

import argparse
import queue
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.core.checksum import seal
from penstock.core.units import KIB, MIB
from penstock.net.clock import SystemClock
from penstock.storage.entry_log import AppendRun, EntryLog
from penstock.storage.files import OsFiles
from penstock.storage.limits import LogLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.errors import PenstockError

LIMITS = LogLimits()
HEADER = b"\x00" * 32  # stands for the command before each entry in a run


class Bench:
    """One log and a loop that is only a queue."""

    def __init__(self, directory: Path) -> None:
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.log = EntryLog.open(directory, OsFiles(), LIMITS, self.calls.put, clock=SystemClock())
        self.underway = 0
        self.next_entry: dict[int, int] = {}

    def done(self, _run: AppendRun, error: PenstockError | None) -> None:
        """Count a settled run."""
        assert error is None, error
        self.underway -= 1

    def append(self, ledger_ids: list[int], count: int, data: bytes, offsets: list[int], length: int) -> None:
        """Append one run of `count` entries for each ledger."""
        groups = []
        for ledger_id in ledger_ids:
            first = self.next_entry.get(ledger_id, 0)
            groups.append((ledger_id, first, count))
            self.next_entry[ledger_id] = first + count
        lengths = [length] * len(offsets)
        self.underway += 1
        self.log.append(
            AppendRun(groups=groups, offsets=offsets, lengths=lengths, message_counts=None, data=data, done=self.done)
        )

    def turn(self) -> None:
        """Let one call in."""
        self.calls.get()()


def append_load(
    bench: Bench, *, ledgers: int, per_ledger: int, entry_bytes: int, runs_underway: int, seconds: float
) -> dict[str, float]:
    """Append runs for a while and report rates."""
    entry = seal(b"\x5a" * (entry_bytes - 6))
    rows = ledgers * per_ledger
    data = (HEADER + entry) * rows
    offsets = [row * (len(HEADER) + len(entry)) + len(HEADER) for row in range(rows)]
    ledger_ids = list(range(1, ledgers + 1))
    before = bench.log.stats()
    latencies = []
    began, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        while bench.underway < runs_underway:
            bench.append(ledger_ids, per_ledger, data, offsets, len(entry))
        at = time.perf_counter()
        bench.turn()
        latencies.append(time.perf_counter() - at)
    while bench.underway:
        bench.turn()
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    stats = bench.log.stats()
    entries = stats.entries_appended - before.entries_appended
    commits = stats.commits - before.commits
    return {
        "entries_per_s": entries / took,
        "mb_per_s": entries * entry_bytes / took / 1e6,
        "cpu_us_per_entry": cpu / entries * 1e6,
        "entries_per_commit": entries / commits,
        "sync_ms_mean": (stats.sync_ns_total - before.sync_ns_total) / commits / 1e6,
        "turn_ms_p50": sorted(latencies)[len(latencies) // 2] * 1e3,
    }


def read_load(bench: Bench, ledger_id: int, *, bytes_max: int, seconds: float) -> dict[str, float]:
    """Read a ledger from its beginning, again and again, and report rates."""
    entries = size = 0
    entry_id, end = 0, bench.next_entry[ledger_id]
    began, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        result = bench.log.read(ledger_id, entry_id, bytes_max=bytes_max, entries_max=1_000_000)
        assert not result.damaged
        for batch in result.batches:
            entries += len(batch.lengths)
            size += sum(batch.lengths)
        entry_id = result.next_entry_id if result.next_entry_id < end else 0
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"entries_per_s": entries / took, "mb_per_s": size / took / 1e6, "cpu_us_per_entry": cpu / entries * 1e6}


def single_latency(bench: Bench, count: int) -> dict[str, float]:
    """Append one entry at a time and report how long each takes from append to done."""
    entry = seal(b"\x5a" * (KIB - 6))
    took = []
    for _ in range(count):
        at = time.perf_counter()
        bench.append([1], 1, entry, [0], len(entry))
        bench.turn()
        took.append(time.perf_counter() - at)
    took.sort()
    return {"p50_ms": took[count // 2] * 1e3, "p99_ms": took[count * 99 // 100] * 1e3}


def report(name: str, figures: dict[str, float]) -> None:
    """Print one line."""
    print(f"{name:34}", "  ".join(f"{key} {value:,.2f}" for key, value in figures.items()))


def load(name: str, directory: Path, seconds: float, **shape: int) -> None:
    """Append one shape of load to an empty log, then read it back."""
    bench = Bench(directory / name.replace(" ", "-"))
    try:
        report(f"append {name}", append_load(bench, seconds=seconds, **shape))
        report(f"read   {name}", read_load(bench, 1, bytes_max=1 * MIB, seconds=seconds / 2))
        if shape["ledgers"] == 1:
            report("one at a time, 1 KiB", single_latency(bench, 500))
    finally:
        bench.log.close()
        shutil.rmtree(directory / name.replace(" ", "-"))


def main() -> None:
    """Run all loads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, help="where to put the log (default: a temporary directory)")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each load lasts")
    options = parser.parse_args()
    sys.setswitchinterval(0.0005)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="penstock-bench-") as name:
        directory = Path(name)
        seconds = options.seconds
        load("1 KiB x 250", directory, seconds, ledgers=1, per_ledger=250, entry_bytes=KIB, runs_underway=16)
        load("1 KiB x 1", directory, seconds, ledgers=1, per_ledger=1, entry_bytes=KIB, runs_underway=1000)
        load("1 KiB, 50 ledgers x 5", directory, seconds, ledgers=50, per_ledger=5, entry_bytes=KIB, runs_underway=16)
        load("128 KiB x 2", directory, seconds, ledgers=1, per_ledger=2, entry_bytes=128 * KIB, runs_underway=64)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Limits of the entry log: all sizes, counts and waiting times, in one frozen value.

Where: `settings` creates it, `EntryLog.open` takes it, the parts of the log read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.core.errors import ConfigurationError
from penstock.core.units import KIB, MIB

# Offsets and lengths inside a segment are 32 bits wide on disk.
SEGMENT_BYTES_MAX: Final = 2**32 - MIB
SEGMENT_BYTES_MIN: Final = 64 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """Sizes, counts and speeds. Raises ConfigurationError for values that cannot work together."""

    # A segment is written to its end, then sealed. Space is reclaimed by whole segments.
    segment_bytes: int = 64 * MIB
    # The largest run: a frame of 5 MiB and 10 KiB, and the other frames of the same read.
    run_bytes_max: int = 8 * MIB
    # One group commit takes queued runs up to this size: a larger one would only delay the receipts.
    commit_bytes_max: int = 8 * MIB
    # True: receipts do not wait for the disk. Then a crash of the machine loses acknowledged entries.
    relaxed: bool = False
    # Dead segments that are kept to be overwritten: syncing them is several times cheaper than syncing new ones.
    spares_max: int = 4
    # Written segments that stay in the system's page cache, so that consumers that are not far behind read from memory.
    # Older ones are dropped from it, so that a log that is only written does not displace everything else on the
    # machine, and the next segment reuses pages (docs/adr/0007).
    page_cache_bytes: int = 512 * MIB
    # The most segments open for reading; beyond it, the least recently used one is closed.
    open_files_max: int = 64
    # The largest read of the disk for consecutive blocks: two of those that one read of a socket fills.
    read_bytes: int = 1_088 * KIB
    # Decoded index rows of sealed segments, so that the next read of a consumer need not ask SQLite again.
    index_cache_bytes: int = 8 * MIB
    # A sealed segment with a smaller live part is emptied: its live entries are appended again.
    move_below_ratio: float = 0.25
    # The highest speed of doing so, so that publishers do not notice it.
    move_bytes_per_s: int = 32 * MIB
    # A commit that takes longer is reported as a stall, and publishers are muted.
    stall_ns: int = 1_000_000_000
    # True: segments whose files are missing at the start are given up for good, and their entries count as damage.
    # False: these entries are skipped until the file is back.
    skip_missing: bool = False
    # The most damaged entries that are listed; further ones are only counted.
    damage_listed_max: int = 10_000

    def __post_init__(self) -> None:
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise ConfigurationError(
                f"segment_bytes is {self.segment_bytes}, want {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"
            )
        # A run of the smallest entries has a table about as large as its data, and each block holds it twice.
        if self.run_bytes_max * 2 > self.segment_bytes:
            raise ConfigurationError(
                f"run_bytes_max is {self.run_bytes_max}, but a segment of {self.segment_bytes} bytes must hold two "
                f"such runs; raise segment_bytes or lower maxMessageSize"
            )
        if not 0.0 <= self.move_below_ratio < 1.0:
            raise ConfigurationError(f"move_below_ratio is {self.move_below_ratio}, want 0 <= ratio < 1")
        for name in ("run_bytes_max", "commit_bytes_max", "open_files_max", "read_bytes", "move_bytes_per_s"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} is {getattr(self, name)}, want more than 0")

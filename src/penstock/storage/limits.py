# SPDX-License-Identifier: Apache-2.0
"""Limits of the entry log: every size, count and wait it works with, in one frozen value.

Where: `settings` fills it in, `EntryLog.open` takes it, the parts of the log read it.
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
    """How large, how many and how fast. Raises ConfigurationError for values that cannot work together."""

    # A segment is written to its end, then sealed. Space comes back by whole segments.
    segment_bytes: int = 64 * MIB
    # The largest run the callers append: a frame of 5 MiB and 10 KiB with room for its neighbours of the same read.
    run_bytes_max: int = 8 * MIB
    # One group commit takes queued runs up to this size: beyond it, a longer sync only delays the receipts.
    commit_bytes_max: int = 8 * MIB
    # True: receipts do not wait for the disk. A crash of the machine then loses acknowledged entries.
    relaxed: bool = False
    # Dead segments kept to be written over: several times cheaper to sync than new ones.
    spares_max: int = 4
    # Written segments the system is asked to keep in its page cache: consumers that are not far behind read from
    # memory. What is older is let go, so that a log that is only written does not crowd out everything else on the
    # machine, and the pages of the next segment are ones that were used before (docs/adr/0007).
    page_cache_bytes: int = 512 * MIB
    # Segments open for reading at a time; the least recently used one is closed.
    open_files_max: int = 64
    # One read of the disk for a stretch of entries that lie together.
    read_bytes: int = 1 * MIB
    # Index rows of sealed segments kept decoded, so that a consumer reading on need not ask SQLite again.
    index_cache_bytes: int = 8 * MIB
    # A sealed segment that is used less than this is emptied: what lives in it is appended again.
    move_below_ratio: float = 0.25
    # ... at this pace at most, so that publishers do not feel it.
    move_bytes_per_s: int = 32 * MIB
    # A commit that takes longer is reported as a stall: publishers had better be muted.
    stall_ns: int = 1_000_000_000
    # True: segments whose files are missing at the start are given up for good, and what they held counts as damage.
    # Otherwise it is passed over and waits for its file.
    skip_missing: bool = False
    # Damaged entries remembered by name; further ones are only counted.
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

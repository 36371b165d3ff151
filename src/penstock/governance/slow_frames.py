# SPDX-License-Identifier: Apache-2.0
"""Which unfinished frames grow too slowly while other readers wait for their memory.

The required speed depends on the waiting readers: 64 KiB per second for each second in which memory for less than one
frame became free. Time in which a connection is muted does not count against it, unless its client does not receive its
responses. Commands that wait for that count like an unfinished frame.
Where: `RequestMemory` notes the progress of each frame, and evicts slow ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.governance.fair_queue import Reader

# While no reader has waited for memory for more than a second, an unfinished frame makes progress if it grows by this
# much per second. Half a megabit per second is slower than any link that batches are published over, and a second is
# long enough for a lost packet to be sent again.
PROGRESS_BYTES: Final = 64 * KIB
PROGRESS_NS: Final = NS_PER_S


def mark(reader: Reader, now_ns: int, *, anew: bool) -> None:
    """Note the progress of an unfinished frame, after a second or more; `anew`: another frame has begun."""
    if anew:
        reader.mark_ns, reader.mark_held_bytes, reader.pace_bytes_per_s = now_ns, reader.held_bytes, None
    elif now_ns - reader.mark_ns >= PROGRESS_NS:
        reader.pace_bytes_per_s = _pace(reader, now_ns)
        reader.mark_ns, reader.mark_held_bytes = now_ns, reader.held_bytes


def slow_owners(readers: Iterable[Reader], excess_bytes: int, starved_ns: int, now_ns: int) -> list[int]:
    """Return owners of slow frames, largest first, until their frames hold `excess_bytes`.

    `starved_ns` is the time in which memory for less than one frame has become free.
    """
    pace_min = PROGRESS_BYTES * max(PROGRESS_NS, starved_ns) // PROGRESS_NS
    slow = [reader for reader in readers if reader.held_bytes and _recent_pace(reader, now_ns) < pace_min]
    slow.sort(key=lambda reader: reader.held_bytes, reverse=True)
    owners: list[int] = []
    for reader in slow:
        if excess_bytes <= 0:
            break
        excess_bytes -= reader.held_bytes
        owners.append(reader.owner)
    return owners


def _recent_pace(reader: Reader, now_ns: int) -> int | float:
    """Return by how many bytes per second its unfinished frame grew while it was read, over the last second or two."""
    until_ns = now_ns if reader.stopped_ns is None else reader.stopped_ns
    if until_ns - reader.mark_ns > PROGRESS_NS:
        return _pace(reader, until_ns)
    return float("inf") if reader.pace_bytes_per_s is None else reader.pace_bytes_per_s


def _pace(reader: Reader, until_ns: int) -> int:
    return (reader.held_bytes - reader.mark_held_bytes) * NS_PER_S // (until_ns - reader.mark_ns)

# SPDX-License-Identifier: Apache-2.0
"""UnreadableSegment: segments that the disk cannot read at the moment.

Why: a read that failed says nothing about what is stored, so it is tried again; meanwhile people must hear of it: once
when it begins and once when it ends, not at each try.
Where: the reader notes what failed and what went well, `EntryLog.try_again` looks whether it still does, the broker's
health and the metrics show it.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.storage.index import Span

log = logging.getLogger(__name__)


class UnreadableSegment(NamedTuple):
    """A place that could not be read when it was tried last."""

    segment_id: int
    offset: int
    bytes: int
    reason: str

    def describe(self) -> str:
        """Return a sentence for people."""
        return f"segment {self.segment_id:x} cannot be read: {self.reason}"


class UnreadableSegments:
    """All segments that could not be read when they were tried last. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: dict[int, UnreadableSegment] = {}
        self.failures = 0  # reads that failed, since the start

    def failed(self, segment_id: int, span: Span, error: OSError) -> None:
        """A read failed. Whatever is wrong is told once, until the segment can be read again."""
        reason = error.strerror or str(error)
        with self._lock:
            self.failures += 1
            known = self._now.get(segment_id)
            self._now[segment_id] = UnreadableSegment(segment_id, span.block_offset, span.block_bytes, reason)
        if known is None or known.reason != reason:
            log.error("segment %x cannot be read, trying again: %s", segment_id, reason)

    def well(self, segment_id: int, spans: Iterable[Span]) -> None:
        """These blocks of a segment were read. Others of it may be readable all the while: only the bad one counts."""
        trouble = self._now.get(segment_id)
        if trouble is not None and any(span.block_offset == trouble.offset for span in spans):
            self.over(trouble)

    def over(self, trouble: UnreadableSegment) -> None:
        """What could not be read was read, or is wanted no more."""
        with self._lock:
            if self._now.get(trouble.segment_id) != trouble:
                return
            del self._now[trouble.segment_id]
        log.warning("segment %x can be read again", trouble.segment_id)

    def now(self) -> list[UnreadableSegment]:
        """Return what cannot be read, by segment."""
        with self._lock:
            return [trouble for _, trouble in sorted(self._now.items())]

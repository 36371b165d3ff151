# SPDX-License-Identifier: Apache-2.0
"""Segments that the disk currently cannot read.

Why: a failed read says nothing about the stored data, so it is retried. Meanwhile operators must know: one log line
when it begins and one when it ends, not one for each retry. Where: the reader reports failed and successful reads,
`EntryLog.try_again` retries failed ones, the broker's health and the metrics show them.
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
    """A place whose last read failed."""

    segment_id: int
    offset: int
    bytes: int
    reason: str

    def describe(self) -> str:
        """Return a sentence for people."""
        return f"segment {self.segment_id:x} cannot be read: {self.reason}"


class UnreadableSegments:
    """All segments whose last read failed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: dict[int, UnreadableSegment] = {}
        self.failures = 0  # reads that failed, since the start

    def failed(self, segment_id: int, span: Span, error: OSError) -> None:
        """Note a failed read. The same reason is logged once, until the segment can be read again."""
        reason = error.strerror or str(error)
        with self._lock:
            self.failures += 1
            known = self._now.get(segment_id)
            self._now[segment_id] = UnreadableSegment(segment_id, span.block_offset, span.block_bytes, reason)
        if known is None or known.reason != reason:
            log.error("segment %x cannot be read, trying again: %s", segment_id, reason)

    def well(self, segment_id: int, spans: Iterable[Span]) -> None:
        """Note that these blocks of a segment were read. Only a read of the failed block counts as recovery."""
        trouble = self._now.get(segment_id)
        if trouble is not None and any(span.block_offset == trouble.offset for span in spans):
            self.over(trouble)

    def over(self, trouble: UnreadableSegment) -> None:
        """Forget a failure: the place was read, or is no longer needed."""
        with self._lock:
            if self._now.get(trouble.segment_id) != trouble:
                return
            del self._now[trouble.segment_id]
        log.warning("segment %x can be read again", trouble.segment_id)

    def now(self) -> list[UnreadableSegment]:
        """Return current failures, by segment."""
        with self._lock:
            return [trouble for _, trouble in sorted(self._now.items())]

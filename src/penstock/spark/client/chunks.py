# SPDX-License-Identifier: Apache-2.0
"""Messages that were too large for one entry, put together again.

A message that was sent in pieces counts as where its last piece is: so what a range of a topic holds depends on that
range only, and not on what was published after it. Pieces before the range are fetched when they turn out to be needed.
Where: `messages.decode` hands over every piece, in the order of the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.core.units import MIB
from penstock.spark.client.fields import last_of, spans_of, walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.spark.client.deliveries import Deliveries
    from penstock.spark.client.fields import Bytes, Ints
    from penstock.spark.client.message_id import MessageId

    # (uuid, pieces wanted, where the piece that came is) -> the pieces before it, or None if they are not there
    Fetch = Callable[[bytes, int, MessageId], list[bytes] | None]

_UUID: Final = 26
_CHUNK_ID: Final = 29

# What unfinished messages of one topic may hold together; a producer that died leaves some for ever.
HELD_BYTES_MAX: Final = 256 * MIB


class Chunks:
    """The unfinished messages of one topic."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._unfinished: dict[bytes, list[bytes]] = {}
        self._held_bytes = 0

    def add(self, uuid: bytes, index: int, count: int, piece: bytes, message_id: MessageId) -> bytes | None:
        """Take a piece; returns the whole payload with the last one, None before, or when the beginning is gone.

        Args:
            uuid: which message, as its producer says.
            index: of this piece.
            count: of all of them.
            piece: its bytes, compressed as the whole was.
            message_id: where it is.
        """
        if index == 0:  # Also when the producer starts again after it lost its connection.
            self._drop(uuid)
            self._unfinished[uuid] = []
        pieces = self._unfinished.get(uuid)
        if pieces is None:
            if index != count - 1 or (earlier := self._fetch(uuid, index, message_id)) is None:
                return None  # If it ends in this range, its last piece makes us fetch the others.
            return b"".join((*earlier, piece))
        if index != len(pieces):
            return None  # A piece that was sent twice.
        if index == count - 1:
            self._drop(uuid)
            return b"".join((*pieces, piece))
        pieces.append(piece)
        self._held_bytes += len(piece)
        while self._held_bytes > HELD_BYTES_MAX:
            self._drop(next(iter(self._unfinished)))
        return None

    def _drop(self, uuid: bytes) -> None:
        self._held_bytes -= sum(map(len, self._unfinished.pop(uuid, ())))


def entries_of(entries: Deliveries, uuid: bytes) -> Deliveries:
    """Return the entries that are pieces of one message."""
    starts, stops = spans_of(walk(*_metadata(entries), {_UUID}).get(_UUID), len(entries))
    mine = np.zeros(len(entries), np.bool_)
    for row in np.flatnonzero(stops - starts == len(uuid)).tolist():
        mine[row] = entries.data[starts[row] : stops[row]].tobytes() == uuid
    return entries.chosen(mine)


def pieces_in(entries: Deliveries) -> dict[int, bytes]:
    """The pieces that entries of one message hold, by their index."""
    indexes = last_of(walk(*_metadata(entries), {_CHUNK_ID}).get(_CHUNK_ID), len(entries))
    spans = zip(indexes.tolist(), entries.payload_starts.tolist(), entries.payload_stops.tolist(), strict=True)
    return {index: entries.data[start:stop].tobytes() for index, start, stop in spans}


def _metadata(entries: Deliveries) -> tuple[Bytes, Ints, Ints]:
    return entries.data, entries.metadata_starts, entries.payload_starts

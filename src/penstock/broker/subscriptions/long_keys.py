# SPDX-License-Identifier: Apache-2.0
"""Hashes long keys of Key_Shared subscriptions in slices, for one subscription at a time.

Why: a key may be as long as a message, and hashing 5 MB takes half a second. Only the hash is kept.
Where: Key_Shared dispatchers use it for long keys; the broker has one for all subscriptions.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.core.hashing import hash_in_slices, sticky_hash
from penstock.core.units import KIB

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Sequence

# Keys up to this length are hashed directly, in at most 20 µs.
LONG_KEY_BYTES: Final = 256
# Bytes hashed in one turn of the loop: about half a millisecond.
SLICE_BYTES: Final = 8 * KIB
# Total bytes of keys hashed at a time; a single key may be longer.
KEYS_BYTES_MAX: Final = 256 * KIB
KEYS_MAX: Final = 1_000
# The next subscription reads its keys again before it starts; after this time the one behind it may start, too.
ASKED_S: Final = 0.05


class LongKeys:
    """Hashes the keys of one subscription at a time; the others wait, without their keys."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._job: Generator[None, None, list[int]] | None = None
        self._done: Callable[[list[int]], None] | None = None
        self._waiting: deque[Callable[[], None]] = deque()

    def start(self, keys: Sequence[bytes], done: Callable[[list[int]], None], again: Callable[[], None]) -> None:
        """Hash these keys and call `done` with the hashes; if busy, call `again` when the caller may try again."""
        if self._job is not None:
            self._waiting.append(again)
            return
        self._job, self._done = _hashes(keys), done
        self._loop.call_soon(self._step)

    def _step(self) -> None:
        assert self._job is not None
        assert self._done is not None
        try:
            next(self._job)
        except StopIteration as end:
            done, self._job, self._done = self._done, None, None
            done(end.value)
            self._serve()
        else:
            self._loop.call_soon(self._step)

    def _serve(self) -> None:
        """Let the next waiting subscription start; if it does not, the one after it."""
        if self._job is None and self._waiting:
            self._waiting.popleft()()
            self._loop.call_later(ASKED_S, self._serve)


def _hashes(keys: Sequence[bytes]) -> Generator[None, None, list[int]]:
    hashes, since = [], 0
    for key in keys:
        if len(key) > SLICE_BYTES:
            hashes.append((yield from hash_in_slices(key, SLICE_BYTES)))
        else:
            hashes.append(sticky_hash(key))
            since += len(key)
            if since >= SLICE_BYTES:
                since = 0
                yield
    return hashes

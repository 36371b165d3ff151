# SPDX-License-Identifier: Apache-2.0
"""Requests of the proxy's own on a client's connection to its broker: whether the broker has answered all of them.

Why: a broker answers CLOSE_PRODUCER after the receipts of all that the producer has sent. So a proxy that stops knows
by the answer that no receipt is missing, and need not count them all the time.
Where: `relay`, when it is drained. Frames are looked into from then on only. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB
from penstock.wire import codec
from penstock.wire.client.frames import decode_frame, frame_bytes
from penstock.wire.codec import BaseCommand

if TYPE_CHECKING:
    from collections.abc import Iterator

# Answers are shorter; what is longer is not looked into. An ERROR may say some words.
ANSWER_BYTES_MAX: Final = 4 * KIB
# The producer of a request that only shows that the broker has handled all requests before it. Clients count from 0.
NO_PRODUCER: Final = 2**64 - 1
# Request ids are counted down from here, those of clients up from 0.
_FIRST_REQUEST: Final = 2**64 - 2
_HEAD_BYTES: Final = 8
_ANSWERS: Final = frozenset({BaseCommand.SUCCESS, BaseCommand.ERROR})


class AwaitedAnswers:
    """Takes the answers to the proxy's own requests out of what a broker sends."""

    def __init__(self, unfinished_bytes: int, unfinished_size: bytes) -> None:
        """Begin in the middle of a frame, of which so many bytes are missing, or a part of its size was passed on."""
        self._left_bytes = unfinished_bytes
        self._kept = unfinished_size  # the beginning of a frame that has not come whole
        self._kept_passed = len(unfinished_size)  # of it, what was passed on before
        self._awaited: set[int] = set()
        self._next = _FIRST_REQUEST

    @property
    def all_came(self) -> bool:
        """Whether all requests are answered."""
        return not self._awaited

    def close_producer(self, producer_id: int) -> bytes:
        """Return the frame of a request that is answered when all SENDs of this producer are."""
        self._next -= 1
        self._awaited.add(self._next)
        return codec.close_producer(producer_id, self._next)

    def without(self, data: bytes) -> bytes:
        """Return what is to be passed on: the next bytes of the broker without answers to these requests.

        Raises:
            ProtocolError: a frame that cannot be read.
        """
        if self._left_bytes >= len(data):
            self._left_bytes -= len(data)
            return data
        stream = self._kept + data
        return b"".join(self._parts(stream))

    def _parts(self, stream: bytes) -> Iterator[bytes]:
        pos, self._left_bytes = self._left_bytes, 0
        begin, self._kept_passed = self._kept_passed, 0  # where what is passed on begins
        self._kept = b""
        while len(stream) - pos >= _HEAD_BYTES:
            stop = pos + frame_bytes(stream, pos)
            if stop - pos <= ANSWER_BYTES_MAX:
                if stop > len(stream):
                    break
                if self._is_answer(stream, pos, stop):
                    yield stream[begin:pos]
                    begin = stop
            pos = stop
        if pos > len(stream):
            self._left_bytes = pos - len(stream)
            yield stream[begin:]
            return
        self._kept = stream[pos:]
        self._kept_passed = max(begin - pos, 0)
        yield stream[begin:pos]

    def _is_answer(self, stream: bytes, begin: int, stop: int) -> bool:
        """Whether a frame answers one of these requests, which is awaited no longer."""
        if stop - begin < _HEAD_BYTES:
            return False
        frame = decode_frame(stream, begin, stop)
        if frame.kind not in _ANSWERS or frame.body.request_id not in self._awaited:
            return False
        self._awaited.discard(frame.body.request_id)
        return True

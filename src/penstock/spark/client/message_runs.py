# SPDX-License-Identifier: Apache-2.0
"""Runs of MESSAGE frames, found in a connection's receive buffer without decoding one of them.

Why: entries are copied once, from there into Arrow columns; an object per frame would cost more than everything else
together.
Where: the reader takes a run, and asks the connection for what stands between runs.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.wire.client.frames import MESSAGE_START

if TYPE_CHECKING:
    from penstock.spark.client.fields import Ints
    from penstock.wire.client.frames import Inbound

_SIZE_BYTES: Final = 4
_NO_FRAMES: Final = np.zeros(0, np.int64)
_read_u32: Final = struct.Struct(">I").unpack_from
# No MESSAGE is shorter; where its size and its type are.
_HEAD_BYTES: Final = 12
_HEAD_PLACES: Final = [0, 1, 2, 3, 8, 9]
# Fewer frames of one size in a row are not worth looking for; so many are taken one by one before it is tried again.
_ALIKE_FRAMES_MIN: Final = 8
_ONE_BY_ONE_FRAMES: Final = 64


def take_messages(inbound: Inbound, frames_max: int) -> tuple[Ints, int]:
    """Take the MESSAGE frames that are next and whole: where each begins, and where the last ends.

    Stops before a frame of another kind, which is then the connection's next event. The places are in `inbound.data`
    until the next read.

    Raises:
        ProtocolError: a frame announces a size that cannot be.
    """
    at, found, count = inbound.begin, [], 0
    while count < frames_max:
        alike = _alike(inbound, at, frames_max - count)
        if alike < _ALIKE_FRAMES_MIN:
            starts, stop = _one_by_one(inbound, at, min(_ONE_BY_ONE_FRAMES, frames_max - count))
        else:
            frame_bytes = _SIZE_BYTES + _read_u32(inbound.data, at)[0]
            stop = at + alike * frame_bytes
            starts = np.arange(at, stop, frame_bytes)
        if not len(starts):
            break
        found.append(starts)
        at, count = stop, count + len(starts)
    inbound.begin = at
    return (np.concatenate(found) if found else _NO_FRAMES), at


def _alike(inbound: Inbound, at: int, frames_max: int) -> int:
    """How many MESSAGE frames of the size of the first follow one another: mostly nearly all of them do."""
    data, end = inbound.data, inbound.end
    if end - at < _HEAD_BYTES:
        return 0
    frame_bytes = _SIZE_BYTES + _read_u32(data, at)[0]
    count = min((end - at) // frame_bytes, frames_max)
    if count < _ALIKE_FRAMES_MIN or frame_bytes < _HEAD_BYTES:
        return 0
    grid = np.frombuffer(data, np.uint8, count * frame_bytes, at).reshape(count, frame_bytes)
    wanted = np.frombuffer(data[at : at + _SIZE_BYTES] + MESSAGE_START, np.uint8)
    same = (grid[:, _HEAD_PLACES] == wanted).all(axis=1)
    return count if same.all() else int(same.argmin())


def _one_by_one(inbound: Inbound, at: int, frames_max: int) -> tuple[Ints, int]:
    data, end = inbound.data, inbound.end
    starts: list[int] = []
    # Budget: 0.5 µs per frame on one core; the size is checked once it turns out not to fit.
    while end - at >= _HEAD_BYTES and len(starts) < frames_max and data.startswith(MESSAGE_START, at + 8):
        stop = at + _SIZE_BYTES + _read_u32(data, at)[0]
        if stop > end:
            inbound.frame_size(at)
            break
        starts.append(at)
        at = stop
    return np.array(starts, np.int64), at

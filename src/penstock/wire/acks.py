# SPDX-License-Identifier: Apache-2.0
"""Hand-written decoding of ACK and FLOW, the commands that consumers send most.

Why by hand: a client acknowledges a thousand entries in one command, or in a thousand commands. Protobuf creates an
object for each, of which two numbers are needed. By hand, ids that differ only in their low part are decoded in one
pass. Where: `FrameReader` tries this before protobuf; None means that protobuf must decode the command.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from penstock.wire.events import AckRun, Flow
from penstock.wire.varints import LOW_MASK, low_code, low_columns, low_part, read_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

# Longer commands are checked against their bounds and decoded by protobuf. Shorter ones hold fewer ids than the bounds
# allow.
ACK_BYTES_BY_HAND: Final = 256 * 1024
# The first bytes of the commands, as every known client writes them: field 1 (type).
ACK_START: Final = b"\x08\x0a"
FLOW_START: Final = b"\x08\x0b"
# The most stretches of similar ids in one ACK. A stretch of a single id costs 2.5 µs here and 1 µs in protobuf.
STRETCHES_MAX: Final = 500
# So many similar ids are decoded together: few first, because most of the work would be wasted on a short stretch.
TOGETHER_FIRST: Final = 32
TOGETHER_MAX: Final = 256
# So many are tried as ascending by ones. If only one of them is not, the work was wasted, once for each stretch.
ASCENDING_MAX: Final = 1_024
# The most ids in one ACK, 0.25 µs each. More are left to the bounds check, which refuses them.
IDS_MAX: Final = 200_000


def decode_ack(command: bytes) -> AckRun | None:
    """Return the event of an ACK with plain message ids and at most a request id; None for any other ACK."""
    try:
        body_bytes, at = read_varint(command, 3)
        if command[:2] != ACK_START or command[2] != 0x52 or at + body_bytes != len(command) or command[at] != 0x08:
            return None
        consumer_id, at = read_varint(command, at + 1)
        if command[at] != 0x10 or command[at + 1] > 1:
            return None
        run = AckRun(consumer_id, command[at + 1] == 1, [], [])
        at += 2
        for _ in range(STRETCHES_MAX):
            if at >= len(command) or command[at] != 0x1A:
                break
            at = _take_ids(run, command, at)
            if len(run.entry_ids) > IDS_MAX:
                return None
        if at < len(command) and command[at] == 0x40:
            run.request_id, at = read_varint(command, at + 1)
    except (IndexError, OverflowError):
        return None
    return run if at == len(command) else None


def take_alike(run: AckRun, frame: memoryview, following: memoryview) -> int:
    """Append to `run`, which `frame` made, the frames at the start of `following` that differ only in the entry id.

    Returns the bytes taken; 0 unless `frame` acknowledges exactly one entry and asks for no response.
    """
    if len(run.entry_ids) != 1 or run.request_id is not None:
        return 0
    first = bytes(frame)
    _, consumer = read_varint(first, 11)
    _, after_consumer = read_varint(first, consumer + 1)
    _, entry = read_varint(first, after_consumer + 5)
    entry_ids = _numbers_alike(first, entry + 1, following)
    run.entry_ids += entry_ids
    run.ledger_ids += run.ledger_ids * len(entry_ids)
    run.consecutive = not entry_ids or isinstance(entry_ids, range)
    return len(entry_ids) * len(first)


def _take_ids(run: AckRun, command: bytes, start: int) -> int:
    """Append the message id at `start` and similar ones that follow; return where they end.

    Raises:
        IndexError: the message id is not a plain one.
        OverflowError: as `read_varint`.
    """
    stop = start + 2 + command[start + 1]
    ledger_id, at = read_varint(command, start + 3)
    entry_id, after = read_varint(command, at + 1)
    if command[start + 1] > 127 or command[start + 2] != 0x08 or command[at] != 0x10 or stop > len(command):
        raise IndexError
    if after != stop:
        _skip_partition_and_batch_index(command, after, stop)
    run.consecutive = not run.entry_ids or (run.consecutive and run.entry_ids[-1] + 1 == entry_id)
    run.ledger_ids.append(ledger_id)
    run.entry_ids.append(entry_id)
    if command[stop : stop + 2] == command[start : start + 2]:
        following = memoryview(command)[stop : stop + IDS_MAX * (stop - start)]
        entry_ids = _numbers_alike(command[start:stop], at + 1 - start, following)
        run.consecutive = run.consecutive and (not entry_ids or isinstance(entry_ids, range))
        run.entry_ids += entry_ids
        run.ledger_ids += [ledger_id] * len(entry_ids)
        stop += len(entry_ids) * (stop - start)
    return stop


def _numbers_alike(first: bytes, number_at: int, following: memoryview) -> Sequence[int]:
    """Return the numbers of the first pieces of `following` that equal `first` except for the low part.

    A range only if they come one after another behind the number of `first`.
    """
    before = first[:number_at]
    if following[:number_at] != before:
        return []
    number, number_end = read_varint(first, number_at)
    low_format = low_code(number_end - number_at)
    low_bytes, lows = struct.calcsize(low_format), low_part(number_end - number_at)
    rest_at, width = number_at + low_bytes, len(first)
    rest = first[rest_at:]
    if following[rest_at:width] != rest:
        return []
    high = number & ~LOW_MASK
    numbers: list[int] = []
    whole = len(following) // width * width
    ascending = following[: min(whole, ASCENDING_MAX * width)]
    if ascending and _ascend(first, number_at, number_end - number_at, number & LOW_MASK, ascending):
        return range(number + 1, number + 1 + len(ascending) // width)
    start, stop = 0, min(TOGETHER_FIRST * width, whole)
    # Budget: 0.1 µs per id on one core (benchmarks/micro.py).
    while start < stop:
        pieces = bytes(following[start:stop])
        count = len(pieces) // width
        alike, packed = bytearray(pieces), bytearray(low_bytes * count)
        for place in range(low_bytes):
            at = number_at + place
            packed[place::low_bytes] = pieces[at::width]
            alike[at::width] = first[at : at + 1] * count
        found = struct.unpack(f">{count}{low_format}", packed)
        try:
            together = [high + lows[low] for low in found] if alike == first * count else None
        except TypeError:  # a number of another length
            together = None
        if together is None:
            return numbers + _numbers_before_another(pieces, found, first, number_at, rest, lows, high)
        numbers += together
        start, stop = stop, min(stop + TOGETHER_MAX * width, whole)
    return numbers


def _ascend(first: bytes, number_at: int, number_bytes: int, low: int, following: memoryview) -> bool:
    """Return whether each piece of `following` equals `first` except that the low part is one more than before it.

    This is the usual case, and takes a fifth of the time of others.
    """
    width, low = len(first), low + 1
    count = len(following) // width
    lows = [column[low : low + count] for column in low_columns(number_bytes)]
    last_at = len(following) - width + number_at
    # Most other cases are known by the last number.
    if len(lows[0]) < count or following[last_at : last_at + len(lows)] != bytes([column[-1] for column in lows]):
        return False
    pieces = bytearray(first * count)
    for place, column in enumerate(lows, number_at):
        pieces[place::width] = column
    return pieces == bytes(following)


def _numbers_before_another(
    pieces: bytes, found: Sequence[int], first: bytes, number_at: int, rest: bytes, lows: list[Any], high: int
) -> list[int]:
    """Return the numbers of these pieces up to one that is not alike."""
    numbers, width, before = [], len(first), first[:number_at]
    for row, low in enumerate(found):
        piece = pieces[row * width : (row + 1) * width]
        if lows[low] is None or not piece.startswith(before) or not piece.endswith(rest):
            break
        numbers.append(high + lows[low])
    return numbers


def _skip_partition_and_batch_index(command: bytes, at: int, stop: int) -> None:
    """Skip these fields, which are not needed: ledger and entry id are a position.

    Raises:
        IndexError: there are other fields.
    """
    while at < stop and command[at] in {0x18, 0x20}:
        at += 1
        while command[at] > 127:  # Up to ten bytes: many clients write -1.
            at += 1
        at += 1
    if at != stop:
        raise IndexError


def decode_flow(command: bytes) -> Flow | None:
    """Return the event of a FLOW; None if it is written in an unusual way."""
    try:
        consumer_id, at = read_varint(command, 5)
        permits, stop = read_varint(command, at + 1)
    except (IndexError, OverflowError):
        return None
    body_bytes = len(command) - 4
    as_expected = command[:3] == b"\x08\x0b\x5a" and command[3] == body_bytes < 128 and command[4] == 0x08
    if not as_expected or command[at] != 0x10 or stop != len(command) or permits >> 32:
        return None
    return Flow(consumer_id, permits)

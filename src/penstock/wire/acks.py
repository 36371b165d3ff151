# SPDX-License-Identifier: Apache-2.0
"""ACK and FLOW by hand: what consumers say all day.

Why by hand: a client acknowledges a thousand entries in one command, or in a thousand; protobuf makes an object of each
and is asked for two numbers. By hand, what differs only in the low part of one entry id is taken in one pass.
Where: `FrameReader`, before it turns to protobuf; None sends a command there.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.wire.events import AckRun, Flow
from penstock.wire.varints import LOW_MASK, low_part, read_varint

# How the commands begin, as every known client writes them: field 1 (type).
# Longer ones go through their bounds to protobuf. What is shorter holds fewer ids than a command may.
ACK_BYTES_BY_HAND: Final = 256 * 1024
ACK_START: Final = b"\x08\x0a"
FLOW_START: Final = b"\x08\x0b"
# Stretches of ids that are alike in one ACK. One of a single id costs 7 µs here and 1 µs in protobuf.
STRETCHES_MAX: Final = 2_000
# Ids in one ACK, 0.25 µs each. What is more goes to protobuf, and before that through the bounds, which refuse it.
IDS_MAX: Final = 200_000


def decode_ack(command: bytes) -> AckRun | None:
    """The event of an ACK with plain message ids and at most a request id; None for anything else."""
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
    """Append to `run`, which `frame` made, what `following` begins with: whole frames that differ in the entry id only.

    Returns the bytes taken; 0 unless `frame` acknowledges exactly one entry and asks for no answer.
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
    return len(entry_ids) * len(first)


def _take_ids(run: AckRun, command: bytes, start: int) -> int:
    """Append the message id at `start` and those that follow in its likeness; returns where they end.

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
    run.ledger_ids.append(ledger_id)
    run.entry_ids.append(entry_id)
    if command[stop : stop + 2] == command[start : start + 2]:
        following = memoryview(command)[stop : stop + IDS_MAX * (stop - start)]
        entry_ids = _numbers_alike(command[start:stop], at + 1 - start, following)
        run.entry_ids += entry_ids
        run.ledger_ids += [ledger_id] * len(entry_ids)
        stop += len(entry_ids) * (stop - start)
    return stop


def _numbers_alike(first: bytes, number_at: int, following: memoryview) -> list[int]:
    """The numbers in the pieces that `following` begins with and that equal `first` but for the number's low part."""
    before = first[:number_at]
    if following[:number_at] != before:
        return []
    number, number_end = read_varint(first, number_at)
    low_code, lows = low_part(number_end - number_at)
    rest = first[number_at + struct.calcsize(low_code) :]
    whole = len(following) // len(first) * len(first)
    high, numbers = number & ~LOW_MASK, []
    # Budget: 0.25 µs per id on one core (benchmarks/micro.py).
    for other_before, low, other_rest in struct.iter_unpack(
        f">{len(before)}s{low_code}{len(rest)}s", following[:whole]
    ):
        if other_before != before or other_rest != rest or low not in lows:
            break
        numbers.append(high + lows[low])
    return numbers


def _skip_partition_and_batch_index(command: bytes, at: int, stop: int) -> None:
    """Pass over the fields that do not matter here: a position is told by ledger and entry.

    Raises:
        IndexError: there are others.
    """
    while at < stop and command[at] in {0x18, 0x20}:
        at += 1
        while command[at] > 127:  # Also of ten bytes: many clients write -1 out.
            at += 1
        at += 1
    if at != stop:
        raise IndexError


def decode_flow(command: bytes) -> Flow | None:
    """The event of a FLOW; None for anything unusual."""
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

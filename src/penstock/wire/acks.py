# SPDX-License-Identifier: Apache-2.0
"""ACK and FLOW by hand: what consumers say all day.

Why by hand: a client that acknowledges a thousand entries at once makes protobuf build a thousand objects, each asked
for two numbers. By hand, ids that differ only in the low part of their entry id are taken in one pass.
Where: `FrameReader`, before it turns to protobuf; None sends a command there.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.wire.events import AckRun, Flow
from penstock.wire.varints import LOW_MASK, low_part, read_varint

# How the commands begin, as every known client writes them: field 1 (type).
ACK_START: Final = b"\x08\x0a"
FLOW_START: Final = b"\x08\x0b"


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
        while at < len(command) and command[at] == 0x1A:
            at = _take_ids(run, command, at)
        if at < len(command) and command[at] == 0x40:
            run.request_id, at = read_varint(command, at + 1)
    except (IndexError, OverflowError):
        return None
    return run if at == len(command) else None


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
    _skip_partition_and_batch_index(command, after, stop)
    entry_ids = [entry_id]
    if command[stop : stop + 2] == command[start : start + 2]:
        code, lows = low_part(after - at - 1)
        before, rest = command[start : at + 1], command[at + 1 + struct.calcsize(code) : stop]
        count = (len(command) - stop) // (stop - start)
        alike = struct.iter_unpack(f">{len(before)}s{code}{len(rest)}s", command[stop : stop + count * (stop - start)])
        high = entry_id & ~LOW_MASK
        # Budget: 0.25 µs per id on one core (benchmarks/wire.py).
        for other_before, low, other_rest in alike:
            if other_before != before or other_rest != rest or low not in lows:
                break
            entry_ids.append(high + lows[low])
    run.entry_ids += entry_ids
    run.ledger_ids += [ledger_id] * len(entry_ids)
    return start + len(entry_ids) * (stop - start)


def _skip_partition_and_batch_index(command: bytes, at: int, stop: int) -> None:
    """Pass over the fields that do not matter here: a position is told by ledger and entry."""
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
    as_expected = (
        command[:2] == FLOW_START and command[2] == 0x5A and command[3] == body_bytes < 128 and command[4] == 0x08
    )
    if not as_expected or command[at] != 0x10 or stop != len(command) or permits >> 32:
        return None
    return Flow(consumer_id, permits)

# SPDX-License-Identifier: Apache-2.0
"""Entries that wait for a socket: they keep the run in which they came only if all of it is charged."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from penstock.core.units import KIB, MIB
from penstock.net.send_queue import Buffer, SendQueue, drop_sent

if TYPE_CHECKING:
    from collections.abc import Sequence

ENTRY = 20 * KIB
HEADER = 40


class Entries:
    """Entries of equal size, whose header is counted with them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.compacted = False

    def compact(self) -> None:
        self.compacted = True

    def put_back(self, taken_bytes: int) -> int:
        self.count = min(self.count, -(-taken_bytes // (HEADER + ENTRY)))
        return self.count * (HEADER + ENTRY)


class Charged:
    """A queue and what its connection is charged, as `Connection` does it."""

    def __init__(self, *, room_bytes: int = 64 * MIB, tls_bytes: int = 0) -> None:
        self.queue = SendQueue(shared_bytes=tls_bytes)
        self.room_bytes = room_bytes
        self.charged_bytes = 0

    def deliver(self, run: Buffer, rows: Sequence[int], *, blocked: bool) -> Entries:
        entries, view = Entries(len(rows)), memoryview(run)
        buffers: list[Buffer] = []
        for row in rows:
            buffers += (bytes([row % 256]) * HEADER, view[row * ENTRY : (row + 1) * ENTRY])
        nbytes = len(rows) * (HEADER + ENTRY)
        room_bytes = self.room_bytes if blocked else None
        self.charged_bytes += nbytes + self.queue.add_entries(buffers, nbytes, entries, room_bytes=room_bytes)
        return entries

    def flush(self, nbytes: int) -> bytes:
        """Let the socket take so many bytes and no more."""
        waiting = b"".join(self.queue.buffers)
        nbytes = min(nbytes, len(waiting))
        drop_sent(self.queue.buffers, nbytes)
        self.charged_bytes -= self.queue.sent(nbytes)
        self.charged_bytes += self.queue.after_flush(self.room_bytes if self.queue.buffers else None)
        return waiting[:nbytes]

    def put_back(self) -> None:
        self.charged_bytes -= self.queue.put_back()

    @property
    def pinned_bytes(self) -> int:
        """What the queue keeps in memory: whole buffers, also those of which a part was sent."""
        whole = {}
        for buffer in self.queue.buffers:
            base = buffer.obj if isinstance(buffer, memoryview) else buffer
            whole[id(base)] = len(memoryview(base))
        return sum(whole.values())


def run_of(count: int) -> bytes:
    return random.Random(count).randbytes(count * ENTRY)


@pytest.mark.parametrize("blocked", [False, True])
def test_entries_keep_the_run_that_they_are_most_of_and_all_of_it_is_charged_until_the_last_is_sent(
    *, blocked: bool
) -> None:
    charged, run = Charged(), run_of(8)
    entries = charged.deliver(run, range(8), blocked=blocked)
    charged.flush(2 * ENTRY)
    assert entries.compacted
    assert all(buffer.obj is run for buffer in charged.queue.buffers if isinstance(buffer, memoryview))
    for _ in range(5):
        assert charged.pinned_bytes >= len(run)
        assert charged.pinned_bytes <= charged.charged_bytes <= len(run) + 8 * HEADER
        charged.flush(ENTRY)
    charged.flush(2 * ENTRY)
    assert (charged.charged_bytes, charged.pinned_bytes) == (0, 0)


@pytest.mark.parametrize(("rows", "room_bytes"), [(range(3), 64 * MIB), (range(7), ENTRY - 1)])
@pytest.mark.parametrize("blocked", [False, True])
def test_a_small_part_of_a_run_and_what_there_is_no_room_for_are_copied(
    rows: Sequence[int], room_bytes: int, *, blocked: bool
) -> None:
    charged, run = Charged(room_bytes=room_bytes), run_of(8)
    charged.deliver(run, rows, blocked=blocked)
    charged.flush(HEADER)
    assert not any(isinstance(buffer, memoryview) for buffer in charged.queue.buffers)
    assert charged.charged_bytes == len(rows) * (HEADER + ENTRY) - HEADER == charged.pinned_bytes


def test_what_remains_when_entries_are_put_back_keeps_no_run() -> None:
    charged, run = Charged(tls_bytes=64 * KIB), run_of(8)
    entries = charged.deliver(run, range(8), blocked=True)
    assert charged.charged_bytes == len(run) + 8 * HEADER + 64 * KIB
    charged.flush(ENTRY + 2 * HEADER + 10)
    charged.put_back()
    assert entries.count == 2
    assert charged.charged_bytes == ENTRY - 10 == charged.pinned_bytes
    assert charged.flush(MIB) == run[ENTRY + 10 : 2 * ENTRY]
    assert charged.charged_bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_queued_sent_and_put_back_is_charged_while_it_is_in_memory(seed: int) -> None:
    draw = random.Random(seed)
    charged, expected = Charged(room_bytes=draw.choice([0, 60 * KIB, 64 * MIB])), b""
    for _ in range(60):
        action = draw.random()
        if action < 0.4:
            count = draw.randint(1, 9)
            run, first = run_of(count), draw.randrange(count)
            rows = range(first, draw.randint(first, count - 1) + 1)
            charged.deliver(run, rows, blocked=bool(charged.queue.buffers))
            for row in rows:
                expected += bytes([row % 256]) * HEADER + run[row * ENTRY : (row + 1) * ENTRY]
            charged.flush(0)
        elif action < 0.9:
            taken = charged.flush(draw.randrange(6 * ENTRY))
            assert expected.startswith(taken)
            expected = expected[len(taken) :]
        else:
            charged.put_back()
            expected = expected[: charged.queue.unsent_bytes]
            assert len(expected) <= ENTRY + HEADER
        assert charged.pinned_bytes <= charged.charged_bytes + 10 * (HEADER + 8 * KIB)
    charged.flush(len(expected))
    assert (charged.charged_bytes, charged.pinned_bytes, charged.queue.unsent_bytes) == (0, 0, 0)

# SPDX-License-Identifier: Apache-2.0
"""Large reads use buffers again, but never one that something still refers to."""

from __future__ import annotations

from penstock.core.spare_buffers import SpareBuffers
from penstock.core.units import KIB, MIB
from penstock.storage.limits import LogLimits
from tests.storage.logs import MemoryLog

LIMITS = LogLimits(segment_bytes=16 * MIB, run_bytes_max=2 * MIB, read_bytes=MIB)
ENTRY = 100 * KIB


def test_a_buffer_is_used_again_when_no_view_of_it_is_left() -> None:
    spares = SpareBuffers(64, spares_max=1)
    first = spares.take()
    first[:] = bytes(range(64))
    part = first[10:20]
    del first
    assert spares.spares == 0
    second = spares.take()
    second[:] = bytes(64)
    assert bytes(part) == bytes(range(10, 20))
    del part
    assert spares.spares == 1
    third = spares.take()
    assert (bytes(third), spares.spares) == (bytes(range(64)), 0)
    third[:] = bytes(64)
    del second, third
    assert spares.spares == 1


def test_entries_of_a_read_stay_as_they_are_while_others_are_read() -> None:
    with MemoryLog(LIMITS) as memory:
        sent = [entry for first in range(0, 160, 4) for entry in memory.append(1, first, 4, size=ENTRY)]
        results, at = [], 0
        while at < len(sent):
            results.append(memory.log.read(1, at, bytes_max=2 * MIB, entries_max=100))
            at = results[-1].next_entry_id
        batches = [batch for one in results for batch in one.batches]
        received = [(entry_id, bytes(entry)) for batch in batches for entry_id, entry in batch.entries()]
        assert received == list(enumerate(sent))
        assert len({id(batch.data.obj) for batch in batches if isinstance(batch.data, memoryview)}) > 1


def test_a_read_takes_no_more_memory_than_it_may() -> None:
    with MemoryLog(LIMITS) as memory:
        for first in range(0, 63, 7):
            memory.append(1, first, 7, size=ENTRY)
        for bytes_max in (300 * KIB, 700 * KIB, MIB, 1500 * KIB, 2 * MIB, 3 * MIB):
            result = memory.log.read(1, 0, bytes_max=bytes_max, entries_max=100)
            whole = {}
            for batch in result.batches:
                base = batch.data.obj if isinstance(batch.data, memoryview) else batch.data
                whole[id(base)] = len(memoryview(base)) if isinstance(batch.data, memoryview) else 0
            assert sum(whole.values()) <= bytes_max
            assert sum(len(entry) for batch in result.batches for _, entry in batch.entries()) >= bytes_max // 3

# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SLF001 - it stands for threads of the log, which are inside of it
"""Reads while the log changes at any moment, by seed: no entry is passed over, and a sound index is left alone.

How: a trace function runs between the lines of a read and does there what other threads could do: append, seal, trim,
drop, move entries, recycle segments, and build the index again. Only where the reader holds a lock, or a file that must
come back first, nothing happens, as with threads. So each seed is one order of events, and repeats.
"""

from __future__ import annotations

import os
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import penstock.storage
from penstock.core.units import KIB
from penstock.storage.index import IndexDamaged
from tests.storage.logs import LIMITS, MemoryLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

SEEDS: Final = int(os.environ.get("PENSTOCK_INDEX_SEEDS", "60"))
STEPS: Final = 60
# A read has some hundred lines: a few things happen in it.
CHANCE: Final = 0.02
TRACED: Final = frozenset(
    str(Path(penstock.storage.__path__[0]) / name)
    for name in ("entry_log.py", "reader.py", "log_index.py", "sealed_index.py", "segment.py", "counting.py")
)


@dataclass
class Ledger:
    """What must be in the log."""

    number: int
    entries: list[bytes] = field(default_factory=list)
    trimmed: int = 0


class Beside:
    """A log, what must be in it, and what others do while it is read."""

    def __init__(self, memory: MemoryLog, chance: random.Random) -> None:
        self.memory = memory
        self.chance = chance
        self.ledgers = {number: Ledger(number) for number in (1, 2, 3)}
        self._next = 4
        self._inside = False
        self._watch()

    def _watch(self) -> None:
        log = self.memory.log
        self._rebuild = log._rebuild
        log._rebuild = self._rebuilds  # type: ignore[method-assign]

    def _rebuilds(self, error: IndexDamaged) -> None:
        raise AssertionError(f"a sound index is built again: {error}")

    def restart(self) -> None:
        """Between two reads: stop or kill the process, and perhaps lose the index."""
        chance = self.chance
        if chance.random() < 0.5:
            self.memory.kill()
        elif chance.random() < 0.5:
            self.memory.reopen()
        else:
            self.memory.delete_index_and_start()
        # As the catalog does at each start.
        for number in self.memory.log.ledgers() - self.ledgers.keys():
            self.memory.log.drop(number)
        for ledger in self.ledgers.values():
            self.memory.log.trim(ledger.number, ledger.trimmed)
        self.memory.log.commit()
        self._watch()

    # -- what others do

    def append(self) -> None:
        ledger = self.chance.choice(list(self.ledgers.values()))
        first, size = len(ledger.entries), self.chance.choice((50, 500, 2 * KIB))
        ledger.entries += self.memory.append(ledger.number, first, self.chance.randrange(1, 12), size)

    def trim(self) -> None:
        ledger = self.chance.choice(list(self.ledgers.values()))
        ledger.trimmed = self.chance.randint(ledger.trimmed, len(ledger.entries))
        self.memory.log.trim(ledger.number, ledger.trimmed)

    def drop(self) -> None:
        number = self.chance.choice(list(self.ledgers))
        del self.ledgers[number]
        self.ledgers[self._next] = Ledger(self._next)
        self._next += 1
        self.memory.log.drop(number)
        self.memory.log.commit()

    def maintain(self) -> None:
        if self.no_file_is_lent():
            self.memory.log.maintain()

    def rebuild(self) -> None:
        if self.no_file_is_lent():
            with self.memory.log._maintenance.busy:
                self._rebuild(IndexDamaged("by the test"))

    def no_file_is_lent(self) -> bool:
        """Whether maintenance would not wait for the reader."""
        return all(one.borrowers == 0 for one in self.memory.log._store._open.values())

    def anything(self) -> None:
        doing: tuple[Callable[[], None], ...] = (self.append, self.trim, self.drop, self.maintain, self.rebuild)
        self.chance.choices(doing, (10, 4, 1, 6, 1))[0]()

    # -- the read

    def read(self) -> None:
        """Read a ledger while other things happen, and compare."""
        ledger = self.chance.choice(list(self.ledgers.values()))
        start = self.chance.randint(0, len(ledger.entries))
        durable = len(ledger.entries)
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            result = self.memory.log.read(
                ledger.number, start, bytes_max=self.chance.choice((KIB, 64 * KIB)), entries_max=1_000
            )
        finally:
            sys.settrace(before)
        if ledger.number not in self.ledgers:
            return
        came = {entry_id: bytes(entry) for batch in result.batches for entry_id, entry in batch.entries()}
        assert result.damaged == []
        wanted = range(max(start, ledger.trimmed), result.next_entry_id)
        assert {entry_id: ledger.entries[entry_id] for entry_id in wanted}.items() <= came.items()
        if ledger.trimmed <= start < durable:
            assert result.next_entry_id > start

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:  # noqa: ANN401
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line" and self.chance.random() < CHANCE and not self._holds_a_lock():
            self.anything()
        return self._trace

    def _holds_a_lock(self) -> bool:
        log = self.memory.log
        plain = (log._index._lock, log._index.sealed._lock, log._maintenance.busy)
        return any(lock.locked() for lock in plain) or log._store._returned._is_owned()  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_read_passes_over_an_entry_or_takes_a_sound_index_for_damaged(seed: int) -> None:
    chance = random.Random(seed)
    with MemoryLog(LIMITS) as memory:
        beside = Beside(memory, chance)
        for _ in range(STEPS):
            beside.anything()
            beside.read()
            if chance.random() < 0.03:
                beside.restart()
        assert memory.log.missing.listed() == []
        assert memory.log.damage() == []

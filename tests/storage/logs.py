# SPDX-License-Identifier: Apache-2.0
"""What the tests of the entry log share: a log on a disk in memory, without threads, and entries to append."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Self

import apsw

from penstock.core.checksum import seal
from penstock.core.clock import ManualClock
from penstock.core.units import KIB
from penstock.storage.entry_log import AppendRun, EntryLog
from penstock.storage.limits import LogLimits
from penstock.testing.files import FaultyFiles
from penstock.testing.vfs import sqlite_on

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from penstock.core.errors import PenstockError

HOME = Path("/data/broker-0")
LIMITS = LogLimits(
    segment_bytes=64 * KIB, run_bytes_max=16 * KIB, commit_bytes_max=32 * KIB, spares_max=2, move_bytes_per_s=2**40
)


def entries(first: int, number: int, size: int = 50) -> list[bytes]:
    """Return sealed entries that can be told apart."""
    return [seal(b"entry %08d " % entry_id + bytes(size)) for entry_id in range(first, first + number)]


def run_of(
    groups: Sequence[tuple[int, int, Sequence[bytes]]],
    done: Callable[[AppendRun, PenstockError | None], None] = lambda _run, _error: None,
    *,
    message_counts: list[int] | None = None,
    between: bytes = b"SEND",
) -> AppendRun:
    """Return a run of (ledger id, first entry id, entries), with other bytes between the entries as in real reads."""
    data, offsets, lengths = bytearray(), [], []
    for _, _, sent in groups:
        for entry in sent:
            data += between
            offsets.append(len(data))
            lengths.append(len(entry))
            data += entry
    return AppendRun(
        groups=[(ledger_id, first, len(sent)) for ledger_id, first, sent in groups],
        offsets=offsets,
        lengths=lengths,
        message_counts=message_counts,
        data=bytes(data),
        done=done,
    )


class MemoryLog:
    """A log on a `FaultyFiles` that is opened, ended and opened again. Everything happens on the calling thread."""

    def __init__(self, limits: LogLimits = LIMITS) -> None:
        self.files = FaultyFiles()
        self.limits = limits
        self.clock = ManualClock()
        self.outcomes: list[PenstockError | None] = []
        self._nonces = count(1)
        self._sqlite: AbstractContextManager[str] = sqlite_on(self.files)
        self._vfs = self._sqlite.__enter__()
        self.log = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.log.close()
        self._sqlite.__exit__(None, None, None)

    def _open(self) -> EntryLog:
        return EntryLog.open(
            HOME,
            self.files,
            self.limits,
            lambda call: call(),
            clock=self.clock,
            nonce=lambda: next(self._nonces),
            index_vfs=self._vfs,
            background=False,
        )

    def append(self, ledger_id: int, first: int, number: int, size: int = 50) -> list[bytes]:
        """Append entries of one ledger and commit; return them."""
        sent = entries(first, number, size)
        self.log.append(run_of([(ledger_id, first, sent)], self.note))
        self.log.commit()
        return sent

    def note(self, _run: AppendRun, error: PenstockError | None) -> None:
        """Remember how a run went."""
        self.outcomes.append(error)

    def read(self, ledger_id: int, entry_id: int = 0) -> list[bytes]:
        """Return all of a ledger's entries from `entry_id` on."""
        result = self.log.read(ledger_id, entry_id, bytes_max=2**30, entries_max=2**30)
        return [bytes(entry) for batch in result.batches for _, entry in batch.entries()]

    def reopen(self) -> None:
        """Close the log well and open it again."""
        self.log.close()
        self.log = self._open()

    def end(self) -> None:
        """Let the process die: nothing it still tries reaches the disk."""
        self.files.lose_power()
        self.log.close()

    def kill(self) -> None:
        """Kill the process and start it again; what it wrote is there, synced or not."""
        self.end()
        self.files.kill()
        self.log = self._open()

    def start(self) -> None:
        """Open the log again after `end` and whatever happened then."""
        self.log = self._open()

    def delete_index(self) -> None:
        """Remove the index; only while the log is ended."""
        for name in self.files.names(HOME / "index"):
            self.files.delete(HOME / "index" / name)

    def delete_index_and_start(self) -> None:
        """Close the log well, lose its index, and open it again."""
        self.log.close()
        self.delete_index()
        self.start()

    def change_index(self, statement: str) -> None:
        """Close the log well, change its index behind its back, and open it again."""
        self.log.close()
        connection = apsw.Connection(str(HOME / "index" / "index.sqlite"), vfs=self._vfs)
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute(statement)
        connection.close()
        self.log = self._open()

    def segment(self, number: int = 0) -> Path:
        """Return the path of a segment, by age."""
        return HOME / "log" / [name for name in self.files.names(HOME / "log") if name.endswith(".seg")][number]

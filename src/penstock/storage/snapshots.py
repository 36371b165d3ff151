# SPDX-License-Identifier: Apache-2.0
"""Snapshots of state that can be rebuilt from the log: one file per ledger, replaced as a whole.

Why: loading a snapshot is faster than reading the log at a start. Why files and not the catalog: a snapshot of a
million delayed messages is megabytes that are only read as a whole, and would delay every other change of the catalog.
A lost snapshot costs time, never a message.

Where: `broker/topics/delayed.py` stores and loads them, in a reader thread, and checks their content.

A file is written under another name, synced and renamed. So there is either the old or the new one, never a part of
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.storage.files import read_exactly, write_all

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.core.checksum import Buffer
    from penstock.storage.files import Files

SUFFIX: Final = ".snapshot"
_DRAFT: Final = ".draft"


class Snapshots:
    """The snapshots of one broker process. All methods block: call them from any thread but the loop."""

    def __init__(self, directory: Path, files: Files) -> None:
        """Keep snapshots in `directory`, which is created with the first one."""
        self._directory = directory
        self._files = files

    def ledgers(self) -> set[int]:
        """Return the ledgers that have a snapshot."""
        if not self._files.exists(self._directory):
            return set()
        names = (name.removesuffix(SUFFIX) for name in self._files.names(self._directory) if name.endswith(SUFFIX))
        return {int(name) for name in names if name.isdecimal()}

    def load(self, ledger_id: int) -> bytes | None:
        """Return the last saved snapshot, or None. Raises OSError."""
        try:
            file = self._files.open(self._path(ledger_id))
        except FileNotFoundError:
            return None
        try:
            return read_exactly(file, file.size(), 0)
        finally:
            file.close()

    def save(self, ledger_id: int, parts: Sequence[Buffer]) -> int:
        """Replace the snapshot durably; return its length in bytes. Raises OSError."""
        self._files.make_directory(self._directory)
        path = self._path(ledger_id)
        draft = path.with_suffix(_DRAFT)
        file = self._files.open(draft, create=True)
        try:
            file.truncate(0)
            size = write_all(file, parts, 0)
            file.sync()
        finally:
            file.close()
        self._files.rename(draft, path)
        self._files.sync_directory(self._directory)
        return size

    def forget(self, ledger_id: int) -> None:
        """Delete the snapshot, if there is one. A crash soon after may undo it. Raises OSError."""
        path = self._path(ledger_id)
        if self._files.exists(path):
            self._files.delete(path)

    def _path(self, ledger_id: int) -> Path:
        return self._directory / f"{ledger_id}{SUFFIX}"

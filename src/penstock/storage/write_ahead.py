# SPDX-License-Identifier: Apache-2.0
"""Prepares SQLite's write-ahead log for recovery by SQLite.

First reason: a process that failed to sync the log leaves pages that are readable from the page cache but are not on
the disk. Recovery would copy them into the main file, and a power cut during that would leave a mixture that cannot be
repaired. So the log is rewritten, byte for byte, and synced.

Second reason: SQLite's recovery reads frames up to the last commit before the first bad checksum, and silently drops
the rest. That is right for a tail that was torn by a crash, and wrong for a flipped bit in the middle: the commits
behind it were answered.

Where: `metadata.open_database`, before and after SQLite's recovery.

How a torn tail differs from damage: a commit is written only after the previous one was synced. So at most one commit,
the one being written, can follow a torn place; if two or more follow, the first of them was complete. (A flipped bit in
the very last commit looks like a torn one; nothing can tell, as with the last record of the entry log.)

Layout (sqlite.org/fileformat2.html, "WAL file format"), integers big-endian: a header of 32 bytes with two salts at 16,
then frames of 24 bytes + one page. A frame starts with the page number, the size of the database after the commit (0:
not a commit), and the header's two salts. When the file is reused both salts change, so frames of an earlier use match
neither; a flipped bit spoils at most one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from penstock.core.units import MIB
from penstock.storage.files import write_all

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.storage.files import Files

PAGE_BYTES: Final = 4096  # SQLite's default, which the catalog never changes.

_SALTS: Final = struct.Struct(">16xII")  # of the header
_FRAME: Final = struct.Struct(">4xIII")  # pages after commit, salts
_HEADER_BYTES: Final = 32
_FRAME_BYTES: Final = 24 + PAGE_BYTES
_REWRITE_BYTES: Final = MIB


def make_durable(path: Path, files: Files) -> None:
    """Rewrite the log at `path`, if there is one, with its own content, and sync it. Raises OSError."""
    if not files.exists(path):
        return
    file = files.open(path)
    try:
        for offset in range(0, file.size(), _REWRITE_BYTES):
            write_all(file, [file.read(_REWRITE_BYTES, offset)], offset)
        file.sync()
    finally:
        file.close()


def commits_written(path: Path, files: Files) -> list[int]:
    """Return the numbers, from 1, of the frames that end a commit of the log's current use."""
    if not files.exists(path):
        return []
    file = files.open(path)
    try:
        header = file.read(_HEADER_BYTES, 0)
        if len(header) < _HEADER_BYTES:
            return []
        salt_1, salt_2 = _SALTS.unpack_from(header)
        commits = []
        for number in range(1, (file.size() - _HEADER_BYTES) // _FRAME_BYTES + 1):
            frame = file.read(_FRAME.size, _HEADER_BYTES + (number - 1) * _FRAME_BYTES)
            pages, frame_salt_1, frame_salt_2 = _FRAME.unpack(frame)
            if pages and (frame_salt_1 == salt_1 or frame_salt_2 == salt_2):
                commits.append(number)
        return commits
    finally:
        file.close()

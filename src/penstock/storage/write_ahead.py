# SPDX-License-Identifier: Apache-2.0
"""Damage in SQLite's write-ahead log that SQLite takes for its end.

Why: when SQLite recovers, it reads frames up to the last commit before the first bad checksum, and drops the rest
without a word. That is right for a tail that was torn by a crash, and wrong for a flipped bit in the middle: what
follows was committed and answered.
Where: `metadata.open_database` asks before it serves anything.

How the two are told apart: a commit is written only after the commit before it was synced. So at most one commit, the
one that was being written, can stand behind a torn place; two or more mean that the first of them had been whole.
(A flipped bit in the very last commit looks like a torn one. Nothing behind it tells, as with the last record of the
entry log.)

Layout (sqlite.org/fileformat2.html, "WAL file format"), integers big-endian: a header of 32 bytes with two salts at
16, then frames of 24 bytes + one page. A frame starts with page number, size of the database after commit (0: not a
commit), the header's two salts. When the file is used anew both salts change, so frames of an earlier use match
neither of them; a flipped bit spoils at most one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.storage.files import Files

PAGE_BYTES: Final = 4096  # SQLite's default, which the catalog never changes.

_SALTS: Final = struct.Struct(">16xII")  # of the header
_FRAME: Final = struct.Struct(">4xIII")  # pages after commit, salts
_HEADER_BYTES: Final = 32
_FRAME_BYTES: Final = 24 + PAGE_BYTES


def commits_written(path: Path, files: Files) -> list[int]:
    """The numbers, from 1, of the frames in the write-ahead log at `path` that end a commit of its present use."""
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

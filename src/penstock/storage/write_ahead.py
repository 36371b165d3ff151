# SPDX-License-Identifier: Apache-2.0
"""What SQLite's write-ahead log needs before SQLite may recover from it.

Why, first: a process that failed to sync the log leaves pages that read well from the page cache and are not on the
disk. Recovery would copy them into the main file, and a power cut in the middle of that would leave a mixture that
nothing can mend. So the log is written once more, byte for byte, and synced: then it is what it looks like.

Why, second: when SQLite recovers, it reads frames up to the last commit before the first bad checksum, and drops the
rest without a word. That is right for a tail that was torn by a crash, and wrong for a flipped bit in the middle:
what follows was committed and answered.
Where: `metadata.open_database`, before and after it lets SQLite recover.

How a torn tail and damage are told apart: a commit is written only after the commit before it was synced. So at most
one commit, the one that was being written, can stand behind a torn place; two or more mean that the first of them had
been whole. (A flipped bit in the very last commit looks like a torn one. Nothing behind it tells, as with the last
record of the entry log.)

Layout (sqlite.org/fileformat2.html, "WAL file format"), integers big-endian: a header of 32 bytes with two salts at
16, then frames of 24 bytes + one page. A frame starts with page number, size of the database after commit (0: not a
commit), the header's two salts. When the file is used anew both salts change, so frames of an earlier use match
neither of them; a flipped bit spoils at most one.
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
    """Write the log at `path`, if there is one, once more as it reads, and sync it. Raises OSError."""
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

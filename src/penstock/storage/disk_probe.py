# SPDX-License-Identifier: Apache-2.0
"""Asks a disk whether it takes data now: a new file is given space, written, synced and deleted.

Why a new file: a sync that failed is never repeated on the same file, and a full disk still overwrites the blocks that
a file already has. Where: the log's maintenance asks while there is no room, the broker after a final failure, before
it starts again (`penstock.broker.healing`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB
from penstock.storage.files import write_all

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.storage.files import Files

_NAME: Final = "probe"
_WRITTEN: Final = bytes(4 * KIB)


def probe_disk(directory: Path, files: Files, *, room_bytes: int) -> None:
    """Return if the disk of `directory` takes, syncs and has room for so many bytes. Raises OSError if not. Blocks."""
    path = directory / _NAME
    file = files.open(path, create=True)
    try:
        file.allocate(room_bytes)
        write_all(file, [_WRITTEN], 0)
        file.sync()
    finally:
        file.close()
        with suppress(OSError):
            files.delete(path)

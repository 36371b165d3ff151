# SPDX-License-Identifier: Apache-2.0
"""The latest message of each key, for any number of keys in a bounded amount of memory.

Why SQLite: a topic may have more keys than fit into memory. A private SQLite database is in its page cache; the rest
goes to a temporary file (in SQLITE_TMPDIR, TMPDIR or /var/tmp). The file is unlinked when it is created, so it
disappears with the process in any case. Nothing here is synced: all of it is derived. Where: compaction fills it in its
first pass over a topic and asks it in the second, on its own thread.

Keys are stored as digests of 16 bytes; two of a billion keys have the same digest with a probability of about 10^-21.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw

from penstock.core.units import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterable

CACHE_BYTES: Final = 8 * MIB
_DIGEST_BYTES: Final = 16


class MessageLocation(NamedTuple):
    """The position of a message."""

    entry_id: int
    member: int = -1  # its batch index; -1 when the entry is no batch
    chunks: str = ""  # the uuid of a chunked message; then the entry is the last chunk


class LatestKeys:
    """The position of the latest message of each key."""

    def __init__(self, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._db = apsw.Connection("")
        self._db.pragma("journal_mode", "off")
        self._db.pragma("synchronous", "off")
        self._db.pragma("locking_mode", "exclusive")
        self._db.pragma("cache_size", -(cache_bytes // KIB))
        self._db.execute(
            "create table latest (key blob primary key, entry_id integer, member integer, chunks text) without rowid"
        )
        self._db.execute("begin")  # and never committed: it is not needed on disk

    def apply(self, changes: Iterable[tuple[str, MessageLocation | None]]) -> None:
        """For each key in order, set the position of its latest message; None removes the key."""
        put, remove = "insert or replace into latest values (?, ?, ?, ?)", "delete from latest where key = ?"
        execute = self._db.execute
        for key, place in changes:
            if place is None:
                execute(remove, (_digest(key),))
            else:
                execute(put, (_digest(key), *place))

    def find(self, key: str) -> MessageLocation | None:
        """Return the position of the key's latest message, or None."""
        for row in self._db.execute("select entry_id, member, chunks from latest where key = ?", (_digest(key),)):
            return MessageLocation(*row)
        return None

    def __len__(self) -> int:
        ((count,),) = self._db.execute("select count(*) from latest")
        return int(count)

    def close(self) -> None:
        """Delete everything, also on disk."""
        self._db.close()


def _digest(key: str) -> bytes:
    return blake2b(key.encode("utf-8", "surrogateescape"), digest_size=_DIGEST_BYTES).digest()

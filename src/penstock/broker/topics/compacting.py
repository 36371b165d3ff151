# SPDX-License-Identifier: Apache-2.0
"""The two passes of a compaction: find the last message of each key, then keep those messages and no others.

Why two: payloads are many times as large as the places of messages. The first pass remembers only places, outside of
memory when there are many (`LatestKeys`); the second reads again and copies what is wanted.
Where: `compaction` runs this on its own thread, with functions that read the topic and write the compacted ledger.

What is kept, as in Pulsar
- Of each key the last message; none if that one is empty or null. Messages without a key are dropped.
- Batches are taken apart. One that loses some messages is written anew, its other messages keeping their indexes; one
  that cannot be read (its compression is unknown here, or it is damaged) is kept as it is.
- What is encrypted is kept or dropped by the key on the entry: nobody here can look inside.
- Of a message in chunks all chunks are kept, if all are there and it is its key's last. (Pulsar keeps the last chunk.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.errors import UnsupportedVersion
from penstock.core.units import KIB
from penstock.storage.latest_keys import Place
from penstock.wire import batches, metadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.checksum import Buffer
    from penstock.storage.latest_keys import LatestKeys
    from penstock.wire.codec import MessageMetadata

# Changes of keys that are made together: some hundred microseconds.
CHANGES_AT_ONCE: Final = 64
# What the second pass keeps is written in portions of about this size.
WRITE_BYTES: Final = 512 * KIB


class Stored(NamedTuple):
    """An entry of the topic."""

    entry_id: int
    entry: Buffer  # sealed
    message_count: int
    members: Sequence[int] = ()  # the indexes that are left of a batch that lost some


class Read(NamedTuple):
    """What is in an entry."""

    said: MessageMetadata | None  # None: it does not read as an entry
    payload: bytes = b""
    members: list[batches.Member] | None = None  # None: it is one message, or it must be taken as it is
    whole: bool = False  # it is a batch that cannot be taken apart


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    entries: int = 0  # kept
    messages_dropped: int = 0


class TwoPasses:
    """One compaction. All functions block.

    Args:
        read: yields the topic's entries in order, from the first one on, up to the last that is to be compacted.
        write: takes entries of the compacted topic, in order.
        keys: empty, and large enough for anything.
        pause: called once or twice per message; waits when it is time to let others go on, and raises to end it all.
    """

    def __init__(
        self,
        *,
        read: Callable[[], Iterator[Stored]],
        write: Callable[[list[Stored]], None],
        keys: LatestKeys,
        pause: Callable[[], None],
    ) -> None:
        self._read = read
        self._write = write
        self._keys = keys
        self._pause = pause

    def run(self) -> Outcome:
        """Do it. Raises whatever `read`, `write` and `pause` raise."""
        self._first_pass()
        return self._second_pass()

    # -- first --------------------------------------------------------------------------------------------------------

    def _first_pass(self) -> None:
        changes: list[tuple[str, Place | None]] = []
        for stored in self._read():
            changes += self._changes(stored)
            if len(changes) >= CHANGES_AT_ONCE:
                self._keys.apply(changes)
                changes = []
        self._keys.apply(changes)

    def _changes(self, stored: Stored) -> Iterator[tuple[str, Place | None]]:
        """What an entry changes: the last message of which keys it holds, and which keys it deletes."""
        found = self._look_into(stored.entry)
        if found.members is None:
            if found.said is not None and not found.whole:
                yield from _change_of_single(stored, found.said)
            return
        for index, member in enumerate(found.members):
            if member.key is not None and not member.compacted_out:
                yield member.key, Place(stored.entry_id, index) if member.message_bytes else None

    # -- second -------------------------------------------------------------------------------------------------------

    def _second_pass(self) -> Outcome:
        outcome = Outcome()
        kept: list[Stored] = []
        kept_bytes = 0
        for stored in self._read():
            wanted = self._wanted(stored, outcome)
            if wanted is None:
                continue
            outcome.entries += 1
            kept.append(wanted)
            kept_bytes += len(wanted.entry)
            if kept_bytes >= WRITE_BYTES:
                self._write(kept)
                kept, kept_bytes = [], 0
        if kept:
            self._write(kept)
        return outcome

    def _wanted(self, stored: Stored, outcome: Outcome) -> Stored | None:
        """What is kept of an entry."""
        found = self._look_into(stored.entry)
        if found.whole:
            return stored
        if found.members is None:
            if found.said is not None and self._is_latest_single(stored, found.said):
                return stored
            outcome.messages_dropped += 1
            return None
        keep = [self._is_latest(stored.entry_id, index, one) for index, one in enumerate(found.members)]
        outcome.messages_dropped += sum(
            not kept and not one.compacted_out for kept, one in zip(keep, found.members, strict=True)
        )
        if not any(keep):
            return None
        if all(keep):
            return stored
        assert found.said is not None
        left = [index for index, kept in enumerate(keep) if kept]
        return stored._replace(entry=batches.without(found.said, found.payload, found.members, keep), members=left)

    def _is_latest(self, entry_id: int, index: int, member: batches.Member) -> bool:
        self._pause()
        if member.key is None or member.compacted_out or not member.message_bytes:
            return False
        return self._keys.find(member.key) == Place(entry_id, index)

    def _is_latest_single(self, stored: Stored, said: MessageMetadata) -> bool:
        if not said.HasField("partition_key"):
            return False
        latest = self._keys.find(said.partition_key)
        if latest is None:
            return False
        return latest.chunks == said.uuid if latest.chunks else latest.entry_id == stored.entry_id

    # -- both ---------------------------------------------------------------------------------------------------------

    def _look_into(self, entry: Buffer) -> Read:
        self._pause()
        try:
            said = metadata.decode(entry)
        except ProtocolError:
            return Read(None)
        if not batches.is_readable(said):
            return Read(said)
        try:
            payload = batches.decompressed(entry, said)
            members = []
            for member in batches.members(payload, said.num_messages_in_batch):
                self._pause()
                members.append(member)
        except (ProtocolError, UnsupportedVersion):
            return Read(said, whole=True)
        return Read(said, payload, members)


def _change_of_single(stored: Stored, said: MessageMetadata) -> Iterator[tuple[str, Place | None]]:
    if not said.HasField("partition_key"):
        return
    key = said.partition_key
    if said.num_chunks_from_msg > 1:
        # An unfinished message is none: only its last chunk makes it the key's last. Whether the others are there is
        # for its readers to find out, as it would be without compaction.
        if said.chunk_id == said.num_chunks_from_msg - 1:
            yield key, Place(stored.entry_id, chunks=said.uuid)
        return
    size = said.uncompressed_size if said.HasField("uncompressed_size") else len(batches.payload_of(stored.entry))
    yield key, Place(stored.entry_id) if size else None

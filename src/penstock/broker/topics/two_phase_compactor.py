# SPDX-License-Identifier: Apache-2.0
"""The two passes of a compaction: find the last message of each key, then copy only those messages.

Why two passes: payloads are much larger than message positions. The first pass keeps positions only, on disk when there
are many (`LatestKeys`). The second pass reads the entries again and copies those to keep.
Where: `compaction` runs this on its own thread, with functions that read the topic and write the compacted ledger.

As in Pulsar:
- The last message of each key is kept, unless its value is empty or null. Messages without a key are dropped.
- A batch that loses some messages is rewritten; its other messages keep their batch indexes. A batch that cannot be
  decoded (unknown compression, or damaged) is kept unchanged.
- An encrypted entry is kept or dropped by the key of the entry, because its content cannot be read.
- All chunks of a chunked message are kept, if all are present and it is the last of its key. (Pulsar keeps only the
  last chunk.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.errors import UnsupportedVersion
from penstock.core.units import KIB
from penstock.storage.latest_keys import MessageLocation
from penstock.wire import batches, metadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.checksum import Buffer
    from penstock.storage.latest_keys import LatestKeys
    from penstock.wire.codec import MessageMetadata

# Updates of the key index are applied in groups of this size, which takes some hundred microseconds.
CHANGES_AT_ONCE: Final = 64
# The second pass writes about this many bytes at a time.
WRITE_BYTES: Final = 512 * KIB


class Stored(NamedTuple):
    """An entry of the topic."""

    entry_id: int
    entry: Buffer  # checksummed
    message_count: int
    members: Sequence[int] = ()  # batch indexes that remain, if the batch was reduced


class Read(NamedTuple):
    """Decoded content of an entry."""

    said: MessageMetadata | None  # None: the entry cannot be decoded
    payload: bytes = b""
    members: list[batches.SingleMessage] | None = None  # None: a single message, or a batch that is kept whole
    whole: bool = False  # a batch that cannot be decoded


@dataclass(slots=True)
class Outcome:
    """Size of the compacted ledger."""

    entries: int = 0  # entries kept
    messages_dropped: int = 0


class TwoPhaseCompactor:
    """One compaction. All functions block.

    Args:
        read: yields the topic's entries in order, from the first one to the last one to compact.
        write: takes entries of the compacted ledger, in order.
        keys: an empty index of the latest position of each key.
        pause: called once or twice per message; waits when the event loop should run, and raises to stop the
            compaction.
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
        """Run both passes; returns the size of the result. Raises what `read`, `write` and `pause` raise."""
        self._first_pass()
        return self._second_pass()

    # -- first --------------------------------------------------------------------------------------------------------

    def _first_pass(self) -> None:
        changes: list[tuple[str, MessageLocation | None]] = []
        for stored in self._read():
            changes += self._changes(stored)
            if len(changes) >= CHANGES_AT_ONCE:
                self._keys.apply(changes)
                changes = []
        self._keys.apply(changes)

    def _changes(self, stored: Stored) -> Iterator[tuple[str, MessageLocation | None]]:
        """Yield each key in an entry with the position of its last message, or None if the key was deleted."""
        found = self._look_into(stored.entry)
        if found.members is None:
            if found.said is not None and not found.whole:
                yield from _change_of_single(stored, found.said)
            return
        for index, member in enumerate(found.members):
            if member.key is not None and not member.compacted_out:
                yield member.key, MessageLocation(stored.entry_id, index) if member.message_bytes else None

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

    def _is_latest(self, entry_id: int, index: int, member: batches.SingleMessage) -> bool:
        self._pause()
        if member.key is None or member.compacted_out or not member.message_bytes:
            return False
        return self._keys.find(member.key) == MessageLocation(entry_id, index)

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
            for member in batches.single_messages(payload, said.num_messages_in_batch):
                self._pause()
                members.append(member)
        except (ProtocolError, UnsupportedVersion):
            return Read(said, whole=True)
        return Read(said, payload, members)


def _change_of_single(stored: Stored, said: MessageMetadata) -> Iterator[tuple[str, MessageLocation | None]]:
    if not said.HasField("partition_key"):
        return
    key = said.partition_key
    if said.num_chunks_from_msg > 1:
        # A message whose last chunk is missing does not count as the key's last. Missing earlier chunks are left to
        # the readers, as without compaction.
        if said.chunk_id == said.num_chunks_from_msg - 1:
            yield key, MessageLocation(stored.entry_id, chunks=said.uuid)
        return
    size = said.uncompressed_size if said.HasField("uncompressed_size") else len(batches.payload_of(stored.entry))
    yield key, MessageLocation(stored.entry_id) if size else None

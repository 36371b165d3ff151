# SPDX-License-Identifier: Apache-2.0
"""An immutable list of topics, made of blocks that successive lists share.

Why blocks: a namespace may hold a hundred thousand topics; adding or removing one must neither visit nor copy all of
them. A block holds some hundred names in order, their part of the hash, and their encoding once it was needed. A change
replaces only the blocks it touches.
Where: `shared_listings` makes lists and keeps the current one; discovery and watchers send its pieces. Everything here
is pure; long work is an iterator, so the caller can yield in between.

The hash of a list is the CRC32C of its names joined by commas, as clients compute it. A CRC is linear: the CRC of two
concatenated texts follows from the CRC of each and the length of the second (`_appended`), so the names of an unchanged
block are not read again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from penstock.core.crc32c import crc32c
from penstock.core.units import KIB
from penstock.wire import listings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence

    from penstock.net.loop import LoopShare


# ---------------------------------------------------------------------------------------------------------------------
# Recent topic events of one namespace, kept once for all lists of it.
#
# Why: six hundred watchers with different patterns make each new topic expensive. Matched against all patterns in one
# turn, a partitioned topic with a thousand partitions would block the loop for seconds; queued per list, for clients
# that do not read, twenty thousand topics would take a gigabyte. Where: `shared_listings` makes one for each namespace
# with a list.
#
# A list that is too far behind finds that its events were dropped, and gathers all names again.

# Events beyond this number are dropped even if not read: about 200 bytes each.
EVENTS_MAX: Final = 2_000
# Matching a topic against a pattern takes 3 to 15 microseconds.
COMPARED_PER_STEP: Final = 30


class Reader(Protocol):
    """A list that reads events."""

    def wants_events(self) -> bool:
        """Whether the list has unread events, and a watcher that can be notified."""

    def read_events(self) -> int:
        """Read some events; returns how many."""


class NamespaceEvents:
    """Numbered events; those that no list needs are dropped."""

    __slots__ = ("_events", "_loop", "_readers", "_share", "_spreading", "_stop_listening", "first")

    def __init__(self, feed: TopicFeed, namespace: str, share: LoopShare, loop: asyncio.AbstractEventLoop) -> None:
        self.first = feed.last_number  # number of the first kept event
        self._events: deque[TopicEvent] = deque()
        self._readers: dict[Reader, None] = {}
        self._share = share
        self._loop = loop
        self._spreading: asyncio.Task[None] | None = None
        self._stop_listening = feed.listen(namespace, self._receive)

    def __len__(self) -> int:
        return len(self._events)

    @property
    def next_number(self) -> int:
        return self.first + len(self._events)

    @property
    def is_read(self) -> bool:
        return bool(self._readers)

    def attach(self, reader: Reader) -> None:
        """Let a list read future events."""
        self._readers[reader] = None

    def detach(self, reader: Reader) -> None:
        self._readers.pop(reader, None)

    def stop(self) -> None:
        self._stop_listening()
        if self._spreading is not None:
            self._spreading.cancel()

    def since(self, number: int, count: int) -> list[TopicEvent]:
        """At most `count` events from this number on, which must not be dropped."""
        assert number >= self.first, "that is forgotten"
        return list(islice(self._events, number - self.first, number - self.first + count))

    def _receive(self, event: TopicEvent) -> None:
        self._events.append(event)
        if len(self._events) > EVENTS_MAX:
            self._events.popleft()
            self.first += 1
        if self._spreading is None or self._spreading.done():
            self._spreading = self._loop.create_task(self._spread())

    async def _spread(self) -> None:
        while any(reader.wants_events() for reader in self._readers):
            await self._share.run(self._round())
            await asyncio.sleep(0)

    def _round(self) -> Generator[None, int, None]:
        """Let each list that wants to read some events."""
        compared = 0
        for reader in list(self._readers):
            if reader in self._readers and reader.wants_events():
                compared += reader.read_events()
                if compared >= COMPARED_PER_STEP:
                    compared = 0
                    yield


# ---------------------------------------------------------------------------------------------------------------------
# The feed of topics created and deleted in a namespace, in order and exactly once.
#
# Why events have a number and an encoding: a listener may be in another process, behind a byte stream. A gap in the
# numbers tells it that it missed events and must list again; the encoding's version tells it whether it can decode
# them. Where: the directory reports topics that become visible or are deleted; shared listings listen to one namespace
# each.

log = logging.getLogger(__name__)

FORM: Final = 1


class TopicEvent(NamedTuple):
    """A topic was created or deleted."""

    number: int  # one more than the previous event's, over all namespaces of this broker
    topic: str  # full name; a partition counts as a topic
    created: bool

    def encode(self) -> bytes:
        """One line of JSON, for another process."""
        form = {"form": FORM, "number": self.number, "topic": self.topic, "created": self.created}
        return json.dumps(form, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> TopicEvent:
        """Decode the output of `encode`. Raises ValueError for anything else, including later versions."""
        form = json.loads(data)
        match form:
            case {"form": 1, "number": int(number), "topic": str(topic), "created": bool(created)}:
                return cls(number, topic, created)
        raise ValueError(f"no event of form {FORM}: {data[:200]!r}")


class TopicFeed:
    """Calls listeners immediately, in the order in which they were added."""

    def __init__(self) -> None:
        self.last_number = 0  # the number of the last event
        self._listeners: dict[str, dict[int, Callable[[TopicEvent], None]]] = {}
        self._next_key = 0

    def listen(self, namespace: str, listener: Callable[[TopicEvent], None]) -> Callable[[], None]:
        """Call `listener` for each event in `tenant/namespace`. Call the returned function to unsubscribe."""
        key = self._next_key
        self._next_key += 1
        self._listeners.setdefault(namespace, {})[key] = listener

        def stop() -> None:
            listeners = self._listeners.get(namespace, {})
            listeners.pop(key, None)
            if not listeners:
                self._listeners.pop(namespace, None)

        return stop

    def report(self, topic: str, *, created: bool) -> None:
        """Report a topic as created or deleted. An exception of one listener does not affect the others."""
        self.last_number += 1
        event = TopicEvent(self.last_number, topic, created)
        namespace = topic.partition("://")[2].rpartition("/")[0]
        for listener in list(self._listeners.get(namespace, {}).values()):
            try:
                listener(event)
            except Exception:
                log.exception("a listener of namespace %s failed on %s", namespace, event)


# Half of the largest block: making a block takes 0.1 ms, and a hundred thousand topics make two hundred blocks.
BLOCK_NAMES: Final = 512
# Smaller blocks are merged with their neighbour.
BLOCK_NAMES_MIN: Final = BLOCK_NAMES // 4

# Memory of a listed name: its encoded bytes and CPython's overhead (PIP-442 counts the same 32 bytes).
NAME_BYTES: Final = 32
# Memory of a name in a list that is not encoded: the string itself belongs to the directory.
REFERENCE_BYTES: Final = 8
BLOCK_BYTES: Final = 256

# Maximum size of one update: a client's frames and a turn of the loop are limited.
STEP_BYTES_MAX: Final = 256 * KIB
STEP_BLOCKS_MAX: Final = 8

_ALL_ONES: Final = 0xFFFF_FFFF
_ZEROS: Final = bytes(1 << 16)
_BMP_LAST: Final = "\uffff"


class Block:
    """Consecutive names, in Java's order."""

    __slots__ = ("_listed", "_watched", "crc", "name_bytes", "names", "written_bytes")

    def __init__(self, names: Sequence[str]) -> None:
        assert names, "a block holds at least one name"
        text = ",".join(names)
        ascii_only = text.isascii()
        encoded = text.encode()
        lengths = list(map(len, names)) if ascii_only else [len(name.encode()) for name in names]
        self.names: Final = tuple(names)
        self.crc: Final = crc32c(encoded)
        self.name_bytes: Final = len(encoded) - len(names) + 1  # in UTF-8, without commas
        self.written_bytes: Final = listings.listed_bytes(lengths)
        self._listed: bytes | None = None
        self._watched: bytes | None = None

    @property
    def assembled_bytes(self) -> int:
        """Memory of this block while a caller needs its encoding."""
        return self.name_bytes + NAME_BYTES * len(self.names)

    @property
    def remembered_bytes(self) -> int:
        """Memory of this block while it is not encoded."""
        return BLOCK_BYTES + REFERENCE_BYTES * len(self.names)

    def listed(self) -> bytes:
        """The names as encoded in GET_TOPICS_OF_NAMESPACE_RESPONSE; the bytes are shared."""
        if self._listed is None:
            self._listed = listings.listed(self.names)
        return self._listed

    def watched(self) -> bytes:
        """The names as encoded in WATCH_TOPIC_LIST_SUCCESS; the bytes are shared."""
        if self._watched is None:
            self._watched = listings.watched(self.names)
        return self._watched

    def is_encoded(self, form: Callable[..., bytes]) -> bool:
        """Whether `form`, which is `Block.listed` or `Block.watched`, is encoded already."""
        return (self._listed if form is Block.listed else self._watched) is not None

    def forget_written(self) -> None:
        """Drop the encodings. Replies that are being sent keep the bytes."""
        self._listed = self._watched = None


# How pieces of lists are encoded; each form has different bytes.
Form: TypeAlias = "Callable[..., bytes]"


class Piece(Protocol):
    """A block or a step, as replies share it."""

    @property
    def written_bytes(self) -> int: ...

    def is_encoded(self, form: Form) -> bool:
        """Whether the piece is encoded in this form already."""


class Listing:
    """The topics of one moment, in order. Compared by identity."""

    __slots__ = ("_digest", "assembled_bytes", "blocks", "count", "remembered_bytes", "written_bytes")

    def __init__(self, blocks: Sequence[Block] = ()) -> None:
        self.blocks: Final = tuple(blocks)
        self.count: Final = sum(len(block.names) for block in blocks)
        self.assembled_bytes: Final = sum(block.assembled_bytes for block in blocks)
        self.remembered_bytes: Final = sum(block.remembered_bytes for block in blocks)
        self.written_bytes: Final = sum(block.written_bytes for block in blocks)
        self._digest = ""

    @property
    def digest(self) -> str:
        """The hash of this list, as clients compute it: eight hexadecimal digits."""
        if not self._digest:
            self._digest = struct.pack("<I", _crc(self.blocks)).hex()
        return self._digest

    def names(self) -> Iterator[str]:
        return chain.from_iterable(block.names for block in self.blocks)

    def has(self, name: str) -> bool:
        key = java_order(name)
        row = bisect_right(self.blocks, key, key=_first_key) - 1
        if row < 0:
            return False
        names = self.blocks[row].names
        at = bisect_left(names, key, key=java_order)
        return at < len(names) and names[at] == name

    def only_in(self, other: Listing) -> list[Block]:
        """The blocks of this list that `other` does not share."""
        shared = set(map(id, other.blocks))
        return [block for block in self.blocks if id(block) not in shared]


class Change(NamedTuple):
    """Added and removed names within one range of names."""

    new: list[str]
    deleted: list[str]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Step:
    """One WATCH_TOPIC_UPDATE, and the list that it leads to."""

    after: Listing
    written: bytes  # the encoded update; empty when nothing changed

    @property
    def written_bytes(self) -> int:
        return len(self.written)

    def encoded(self) -> bytes:
        """The encoded update; the bytes are shared."""
        return self.written

    def is_encoded(self, _form: Callable[..., bytes]) -> bool:
        """Always True."""
        return True


# -- making lists -----------------------------------------------------------------------------------------------------


def cut(names: Sequence[str]) -> Iterator[Block]:
    """Divide ordered names into blocks of about the same size."""
    pieces = max(1, len(names) // BLOCK_NAMES)
    for piece in range(pieces):
        part = names[len(names) * piece // pieces : len(names) * (piece + 1) // pieces]
        if part:
            yield Block(part)


def changed(blocks: Sequence[Block], changes: Sequence[tuple[str, bool]]) -> Iterator[Block]:
    """The blocks of a list after `changes`: ordered names, each with whether it exists now.

    A change that is already in effect changes nothing.
    """
    starts = list(map(_first_key, blocks))
    keys = [java_order(name) for name, _ in changes]
    done, carried = 0, list[str]()
    for row, block in enumerate(blocks):
        end = len(changes) if row + 1 == len(blocks) else bisect_left(keys, starts[row + 1])
        names = _after(block.names, changes[done:end])
        done = end
        if names is None and not carried:
            yield block
            continue
        carried += block.names if names is None else names
        if len(carried) >= BLOCK_NAMES_MIN:
            yield from _cut_if_large(carried)
            carried = []
    carried += [name for name, there in changes[done:] if there]
    if carried:
        yield from _cut_if_large(carried)


def _cut_if_large(names: list[str]) -> Iterator[Block]:
    return cut(names) if len(names) > 2 * BLOCK_NAMES else iter((Block(names),))


def _after(names: Sequence[str], changes: Collection[tuple[str, bool]]) -> list[str] | None:
    """The names after these changes; None if they are the same."""
    if not changes:
        return None
    before = set(names)
    after = before | {name for name, there in changes if there}
    after -= {name for name, there in changes if not there}
    return None if after == before else in_order(after)


# -- comparing lists --------------------------------------------------------------------------------------------------


def differences(old: Listing, new: Listing) -> Iterator[Change]:
    """Names added and removed between two lists, in order, by block. Shared blocks cost nothing."""
    shared = set(map(id, old.blocks)).intersection(map(id, new.blocks))
    old_runs, new_runs = _runs_between(old.blocks, shared), _runs_between(new.blocks, shared)
    for before, after in zip(old_runs, new_runs, strict=True):
        yield from _differences(before, after)


def _runs_between(blocks: Iterable[Block], shared: Collection[int]) -> Iterator[list[Block]]:
    """The blocks before the first shared one, between it and the second, and so on; many runs are empty."""
    run: list[Block] = []
    for block in blocks:
        if id(block) in shared:
            yield run
            run = []
        else:
            run.append(block)
    yield run


def _differences(before: Sequence[Block], after: Sequence[Block]) -> Iterator[Change]:
    """Differences within one run: compares each new block with the old names in its range."""
    coming = iter(before)
    old: list[str] = []  # old names from the current position, as far as read
    for row, block in enumerate(after):
        last = row + 1 == len(after)
        bound = java_order(block.names[-1]) if last else _first_key(after[row + 1])
        while not (old and java_order(old[-1]) > bound) and (more := next(coming, None)) is not None:
            old += more.names
        end = bisect_right(old, bound, key=java_order) if last else bisect_left(old, bound, key=java_order)
        here, old = old[:end], old[end:]
        had, has = set(here), set(block.names)
        change = Change(
            [name for name in block.names if name not in had],
            [name for name in here if name not in has],
        )
        if change.new or change.deleted:
            yield change
    if old:
        yield Change([], old)
    for block in coming:
        yield Change([], list(block.names))


def next_step(known: Listing, target: Listing) -> Step:
    """The next update on the way from `known` to `target`: everything, or as much as fits into one update."""
    new: list[str] = []
    deleted: list[str] = []
    name_bytes = 0
    for row, change in enumerate(differences(known, target)):
        if row == STEP_BLOCKS_MAX or name_bytes >= STEP_BYTES_MAX:
            so_far = {**dict.fromkeys(new, True), **dict.fromkeys(deleted, False)}
            after = changed(known.blocks, [(name, so_far[name]) for name in in_order(so_far)])
            return Step(Listing(list(after)), listings.changes(new, deleted))
        new += change.new
        deleted += change.deleted
        name_bytes += sum(map(len, chain(*change)))
    return Step(target, listings.changes(new, deleted))


# -- order and hash ---------------------------------------------------------------------------------------------------


def java_order(name: str) -> str:
    """Sort key for names: Java compares strings by UTF-16 code unit."""
    if name.isascii() or max(name) <= _BMP_LAST:
        return name
    data = name.encode("utf-16-be", "surrogatepass")
    return "".join(map(chr, struct.unpack(f">{len(data) // 2}H", data)))


def in_order(names: Iterable[str]) -> list[str]:
    listed = list(names)
    listed.sort(key=None if all(map(str.isascii, listed)) else java_order)
    return listed


def topics_hash(names: Iterable[str]) -> str:
    return struct.pack("<I", crc32c(",".join(in_order(names)).encode())).hex()


def _first_key(block: Block) -> str:
    return java_order(block.names[0])


def _crc(blocks: Iterable[Block]) -> int:
    crc = None
    for block in blocks:
        text_bytes = block.name_bytes + len(block.names) - 1
        crc = block.crc if crc is None else _appended(crc32c(b",", crc), block.crc, text_bytes)
    return crc or 0


def _appended(crc: int, next_crc: int, next_bytes: int) -> int:
    """The CRC32C of two concatenated texts, from the CRC of each and the length of the second.

    The first text's CRC is advanced over as many zero bytes as the second is long, then combined.
    """
    register = crc ^ _ALL_ONES
    while next_bytes:
        step = min(next_bytes, len(_ZEROS))
        register = crc32c(_ZEROS[:step] if step < len(_ZEROS) else _ZEROS, register)
        next_bytes -= step
    return register ^ _ALL_ONES ^ next_crc

# SPDX-License-Identifier: Apache-2.0
"""A list of topics that never changes, made of blocks that it shares with the list before it and the one after.

Why blocks: a namespace may hold a hundred thousand topics, and one that comes or goes must cost neither a walk over all
of them nor a second copy. A block holds some hundred names in order, what they add to the hash, and, once somebody
wants it, how they are written. A change makes anew the blocks it touches; everything else is the same object.
Where: `shared_listings` makes lists, and keeps the one that is in force; discovery and watchers send pieces of them.
Everything here is pure. What could take long is an iterator: whoever drives it lets others have their turn.

The hash of a list is the CRC32C of its names with commas between, as clients compute it. A CRC is linear: that of two
texts, one behind the other, follows from the CRC of each and the length of the second (`_appended`), so that the names
of an unchanged block are never looked at again.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from penstock.core.units import KIB
from penstock.wire import listings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

# Half of what a block may hold: making one anew takes 0.1 ms, and a hundred thousand topics are two hundred blocks.
BLOCK_NAMES: Final = 512
# Smaller ones are put together with their neighbour.
BLOCK_NAMES_MIN: Final = BLOCK_NAMES // 4

# What a name takes in memory while it is listed: its bytes, written out once, and what CPython keeps beside (PIP-442
# counts the same 32 bytes).
NAME_BYTES: Final = 32
# What a name takes in a list that only remembers it: the name itself belongs to the directory.
REFERENCE_BYTES: Final = 8
BLOCK_BYTES: Final = 256

# What one update tells of at most: a client's frames have a limit, and so has a turn of the loop.
STEP_BYTES_MAX: Final = 256 * KIB
STEP_BLOCKS_MAX: Final = 8

_ALL_ONES: Final = 0xFFFF_FFFF
_ZEROS: Final = bytes(1 << 16)
_BMP_LAST: Final = "\uffff"


class Block:
    """Some names that follow one another, in Java's order."""

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
        """What this block takes while somebody asks for it."""
        return self.name_bytes + NAME_BYTES * len(self.names)

    @property
    def remembered_bytes(self) -> int:
        """What it takes when nobody wants it written."""
        return BLOCK_BYTES + REFERENCE_BYTES * len(self.names)

    def listed(self) -> bytes:
        """The names as GET_TOPICS_OF_NAMESPACE_RESPONSE has them; the same bytes for everybody."""
        if self._listed is None:
            self._listed = listings.listed(self.names)
        return self._listed

    def watched(self) -> bytes:
        """The names as WATCH_TOPIC_LIST_SUCCESS has them; the same bytes for everybody."""
        if self._watched is None:
            self._watched = listings.watched(self.names)
        return self._watched

    def is_encoded(self, form: Callable[..., bytes]) -> bool:
        """Whether `listed` or `watched`, the method given, has nothing more to do."""
        return (self._listed if form is Block.listed else self._watched) is not None

    def forget_written(self) -> None:
        """Nobody wants it written just now; whoever still sends it has the bytes."""
        self._listed = self._watched = None


class Listing:
    """The topics of one moment, in order. Compared by identity: the same list is the same object."""

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
        """The hash of this list, as clients compute it; eight hexadecimal digits."""
        if not self._digest:
            self._digest = struct.pack("<I", _crc(self.blocks)).hex()
        return self._digest

    def names(self) -> Iterator[str]:
        """All names, in order."""
        return chain.from_iterable(block.names for block in self.blocks)

    def has(self, name: str) -> bool:
        """Whether the name is in it."""
        key = java_order(name)
        row = bisect_right(self.blocks, key, key=_first_key) - 1
        if row < 0:
            return False
        names = self.blocks[row].names
        at = bisect_left(names, key, key=java_order)
        return at < len(names) and names[at] == name

    def only_in(self, other: Listing) -> list[Block]:
        """The blocks that this list does not share with the other."""
        shared = set(map(id, other.blocks))
        return [block for block in self.blocks if id(block) not in shared]


class Change(NamedTuple):
    """What came and what went between two lists, within one stretch of names."""

    new: list[str]
    deleted: list[str]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Step:
    """What one WATCH_TOPIC_UPDATE says, and the list it leads to."""

    after: Listing
    written: bytes  # what came and went; empty when nothing did, and nothing is to be said

    @property
    def written_bytes(self) -> int:
        """How long that is."""
        return len(self.written)

    def told(self) -> bytes:
        """The same bytes for everybody."""
        return self.written

    def is_encoded(self, _form: Callable[..., bytes]) -> bool:
        """It always is."""
        return True


# -- making lists -----------------------------------------------------------------------------------------------------


def cut(names: Sequence[str]) -> Iterator[Block]:
    """Names in order, as blocks of about the same size."""
    pieces = max(1, len(names) // BLOCK_NAMES)
    for piece in range(pieces):
        part = names[len(names) * piece // pieces : len(names) * (piece + 1) // pieces]
        if part:
            yield Block(part)


def changed(blocks: Sequence[Block], changes: Sequence[tuple[str, bool]]) -> Iterator[Block]:
    """The blocks of the list after `changes`: names in order, each with whether it is there from now on.

    A change that says what is so already changes nothing.
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
    """The names after these changes; None if that is the same."""
    if not changes:
        return None
    before = set(names)
    after = before | {name for name, there in changes if there}
    after -= {name for name, there in changes if not there}
    return None if after == before else in_order(after)


# -- comparing lists --------------------------------------------------------------------------------------------------


def differences(old: Listing, new: Listing) -> Iterator[Change]:
    """What came and went from one list to the other, in order, a block at a time. Blocks of both cost nothing."""
    shared = set(map(id, old.blocks)).intersection(map(id, new.blocks))
    old_runs, new_runs = _runs_between(old.blocks, shared), _runs_between(new.blocks, shared)
    for before, after in zip(old_runs, new_runs, strict=True):
        yield from _differences(before, after)


def _runs_between(blocks: Iterable[Block], shared: Collection[int]) -> Iterator[list[Block]]:
    """The blocks before the first shared one, between it and the second, and so on; many of these runs are empty."""
    run: list[Block] = []
    for block in blocks:
        if id(block) in shared:
            yield run
            run = []
        else:
            run.append(block)
    yield run


def _differences(before: Sequence[Block], after: Sequence[Block]) -> Iterator[Change]:
    """Within one run: each new block beside the old names that lie where it lies."""
    coming = iter(before)
    old: list[str] = []  # names from where we are on, as far as was looked
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
    """What to tell somebody who knows one list next, on the way to the other: all, or as much as goes at a time."""
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
    """What to compare names by: Java compares strings by UTF-16 code unit."""
    if name.isascii() or max(name) <= _BMP_LAST:
        return name
    data = name.encode("utf-16-be", "surrogatepass")
    return "".join(map(chr, struct.unpack(f">{len(data) // 2}H", data)))


def in_order(names: Iterable[str]) -> list[str]:
    """Names in Java's order."""
    listed = list(names)
    listed.sort(key=None if all(map(str.isascii, listed)) else java_order)
    return listed


def topics_hash(names: Iterable[str]) -> str:
    """The hash of a list of any names in any order."""
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
    """The CRC32C of two texts, from that of each and the length of the second.

    What the first leaves in the register passes through the second as through so many zeros, whatever it is.
    """
    register = crc ^ _ALL_ONES
    while next_bytes:
        step = min(next_bytes, len(_ZEROS))
        register = crc32c(_ZEROS[:step] if step < len(_ZEROS) else _ZEROS, register)
        next_bytes -= step
    return register ^ _ALL_ONES ^ next_crc

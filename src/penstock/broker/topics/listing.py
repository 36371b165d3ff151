# SPDX-License-Identifier: Apache-2.0
"""Listing the topics of a namespace: which names there are, and which of them a pattern wants.

Why an index: a broker may hold a hundred thousand topics, and a client asks for those of one namespace, again and
again. Names are kept in Java's order, because that is how they are hashed and told.
Where: the directory keeps the `NameIndex`; `shared_listings` gathers lists from it, which all who ask share.
Everything here is pure; what may take long is a generator. Nothing walks names of another namespace.

Patterns are RE2's, as in Pulsar (`patterns`). What RE2 does not know (lookahead, back references) is left to the
client, which gets the list unfiltered.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.topics.listing_blocks import BLOCK_NAMES, Block, Listing, cut, in_order, java_order
from penstock.broker.topics.patterns import NON_PERSISTENT, PERSISTENT, SCHEME_MARK, Pattern
from penstock.core.names import is_system_topic
from penstock.core.units import NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Sequence
    from typing import Self

# What one step of gathering looks at: at most as many names as make two blocks, and by a pattern as many as it can
# match in a third of a millisecond.
NAMES_PER_STEP: Final = 1_024
NAMES_PER_STEP_FIRST: Final = 64
NAMES_PER_STEP_MIN: Final = 1
# To match many names in one call pays from so many on: another program must be compiled for it.
MANY_NAMES: Final = 100
STEP_NS: Final = 300 * NS_PER_US


class Mode(Enum):
    """Which domains to list. The values are the protocol's (CommandGetTopicsOfNamespace.Mode)."""

    PERSISTENT = 0
    NON_PERSISTENT = 1
    ALL = 2


_DOMAINS: Final = {
    Mode.PERSISTENT: (PERSISTENT,),
    Mode.NON_PERSISTENT: (NON_PERSISTENT,),
    Mode.ALL: (NON_PERSISTENT, PERSISTENT),  # in order
}
# No system topic's name goes without it, but for those of one namespace.
_SYSTEM_MARK: Final = "__"
_SYSTEM_NAMESPACE: Final = "pulsar/system"


class Wanted(NamedTuple):
    """What is asked for. Who asks for the same gets the same list."""

    namespace: str  # tenant/namespace
    mode: Mode = Mode.PERSISTENT
    pattern: str | None = None  # None: whatever their names
    system: bool = False  # Pulsar's own topics too


class NameIndex:
    """Full names of topics by domain and namespace, each list in Java's order."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._lists: dict[str, list[str]] = {}
        for name in names:
            self._lists.setdefault(_folder(name), []).append(name)
        for folder, listed in self._lists.items():
            self._lists[folder] = in_order(listed)

    def add(self, name: str) -> bool:
        """Add a name; False if it is there."""
        listed = self._lists.setdefault(_folder(name), [])
        at = bisect_left(listed, java_order(name), key=java_order)
        if at < len(listed) and listed[at] == name:
            return False
        listed.insert(at, name)
        return True

    def discard(self, name: str) -> bool:
        """Take a name out; False if it is not there."""
        folder = _folder(name)
        listed = self._lists.get(folder, [])
        at = bisect_left(listed, java_order(name), key=java_order)
        if at == len(listed) or listed[at] != name:
            return False
        del listed[at]
        if not listed:
            del self._lists[folder]
        return True

    def of(self, domain: str, namespace: str) -> Sequence[str]:
        """The names in a namespace, in order; a live view."""
        return self._lists.get(f"{domain}{SCHEME_MARK}{namespace}", ())


class Filter:
    """Says of a topic's full name whether it is wanted; of names, once its pattern is compiled."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.pattern: Pattern | None = None
        self._starts = tuple(f"{domain}{SCHEME_MARK}" for domain in _DOMAINS[wanted.mode])

    def compile(self) -> Self:
        """Make the pattern ready, if there is one. Raises what `Pattern` does."""
        if self.wanted.pattern is not None:
            self.pattern = Pattern(self.wanted.pattern)
        return self

    def forget_pattern(self) -> None:
        """Until it is compiled again."""
        self.pattern = None

    @property
    def size_bytes(self) -> int:
        """What its pattern takes in memory."""
        return self.pattern.size_bytes if self.pattern is not None else 0

    def wants(self, name: str) -> bool:
        """Whether this topic, of the namespace that was asked for, is in the list."""
        return (
            name.startswith(self._starts)
            and (self.wanted.system or not is_system_topic(name))
            and (self.pattern is None or self.pattern.matches(name))
        )

    def wanted_of(self, names: Sequence[str]) -> Collection[str]:
        """Those of many names that `wants` is true of."""
        if self.pattern is None or len(names) < MANY_NAMES:
            return set(filter(self.wants, names))
        ours = [name for name in names if name.startswith(self._starts)]
        return set(self.pattern.for_many().of(self.shown(ours)))

    def shown(self, names: Sequence[str]) -> Sequence[str]:
        """Those of some names of the right domains that are not hidden, whatever the pattern says."""
        if not self.wanted.system and (self.wanted.namespace == _SYSTEM_NAMESPACE or _SYSTEM_MARK in ",".join(names)):
            return [name for name in names if not is_system_topic(name)]
        return names


def gather(index: NameIndex, wanted: Filter) -> Generator[None, int, Listing]:
    """The topics that are wanted, partitions one by one: the list of the moment of the first step.

    Steps are short, and are told how long the one before took.
    """
    of = wanted.wanted
    names: list[str] = []
    for domain in _DOMAINS[of.mode]:
        names += index.of(domain, of.namespace)
    pattern = wanted.pattern.for_many() if wanted.pattern is not None else None
    step = NAMES_PER_STEP_FIRST if pattern is not None else NAMES_PER_STEP
    blocks: list[Block] = []
    found: list[str] = []
    start = 0
    while start < len(names):
        these = wanted.shown(names[start : start + step])
        start += step
        found += these if pattern is None else pattern.of(these)
        took_ns = yield
        if pattern is not None:
            step = _paced(step, took_ns)
        while len(found) >= 2 * BLOCK_NAMES:
            blocks.append(Block(found[:BLOCK_NAMES]))
            del found[:BLOCK_NAMES]
            yield
    return Listing([*blocks, *cut(found)])


def _paced(step: int, took_ns: int) -> int:
    """How many names to match next: the pattern, and how long the names are, decide what one takes."""
    if took_ns > STEP_NS:
        return max(NAMES_PER_STEP_MIN, step // 2)
    return step if took_ns > STEP_NS // 2 else min(NAMES_PER_STEP, 2 * step)


def _folder(name: str) -> str:
    return name[: name.rindex("/")]

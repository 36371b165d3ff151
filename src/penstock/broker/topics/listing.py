# SPDX-License-Identifier: Apache-2.0
"""Listing the topics of a namespace, optionally filtered by a pattern.

Why an index: a broker may hold a hundred thousand topics, and clients list one namespace again and again. Names are
kept in Java's order, because they are hashed and sent in it.
Where: the directory keeps the `NameIndex`; `shared_listings` gathers lists from it, which callers share. Everything
here is pure. Long work is a generator, and never visits names of another namespace.

Patterns are RE2's, as in Pulsar (`patterns`). A pattern that RE2 does not support (lookahead, back references) is left
to the client, which gets the unfiltered list.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.topics.listing_blocks import BLOCK_NAMES, Block, Listing, cut, in_order, java_order
from penstock.broker.topics.patterns import NON_PERSISTENT, PERSISTENT, SCHEME_MARK, Pattern
from penstock.core.system_topics import is_system_topic
from penstock.core.units import NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Sequence
    from typing import Self

# One step of gathering looks at no more names than make two blocks, and no more than a pattern can match in a third
# of a millisecond.
NAMES_PER_STEP: Final = 1_024
NAMES_PER_STEP_FIRST: Final = 64
NAMES_PER_STEP_MIN: Final = 1
# Matching many names in one call pays off from this number on, because it compiles a second program.
MANY_NAMES: Final = 100
STEP_NS: Final = 300 * NS_PER_US


class Mode(Enum):
    """Domains to list. The values are the protocol's (CommandGetTopicsOfNamespace.Mode)."""

    PERSISTENT = 0
    NON_PERSISTENT = 1
    ALL = 2


_DOMAINS: Final = {
    Mode.PERSISTENT: (PERSISTENT,),
    Mode.NON_PERSISTENT: (NON_PERSISTENT,),
    Mode.ALL: (NON_PERSISTENT, PERSISTENT),  # in order
}
# All system topics are here.
_SYSTEM_NAMESPACE: Final = "pulsar/system"


class Wanted(NamedTuple):
    """Parameters of a listing. Equal parameters share one list."""

    namespace: str  # tenant/namespace
    mode: Mode = Mode.PERSISTENT
    pattern: str | None = None  # None: all names
    system: bool = False  # include system topics


class NameIndex:
    """Full names of topics by domain and namespace, each list in Java's order."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._lists: dict[str, list[str]] = {}
        for name in names:
            self._lists.setdefault(_folder(name), []).append(name)
        for folder, listed in self._lists.items():
            self._lists[folder] = in_order(listed)

    def add(self, name: str) -> bool:
        """Add a name; returns False if it exists."""
        listed = self._lists.setdefault(_folder(name), [])
        at = bisect_left(listed, java_order(name), key=java_order)
        if at < len(listed) and listed[at] == name:
            return False
        listed.insert(at, name)
        return True

    def discard(self, name: str) -> bool:
        """Remove a name; returns False if it does not exist."""
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
    """Selects topics by full name. Many names are selected faster, once the pattern is compiled."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.pattern: Pattern | None = None
        self._starts = tuple(f"{domain}{SCHEME_MARK}" for domain in _DOMAINS[wanted.mode])

    def compile(self) -> Self:
        """Compile the pattern, if there is one. Raises what `Pattern` does."""
        if self.wanted.pattern is not None:
            self.pattern = Pattern(self.wanted.pattern)
        return self

    def forget_pattern(self) -> None:
        self.pattern = None

    @property
    def size_bytes(self) -> int:
        return self.pattern.size_bytes if self.pattern is not None else 0

    def wants(self, name: str) -> bool:
        """Whether a topic of the requested namespace belongs to the list."""
        return (
            name.startswith(self._starts)
            and (self.wanted.system or not is_system_topic(name))
            and (self.pattern is None or self.pattern.matches(name))
        )

    def wanted_of(self, names: Sequence[str]) -> Collection[str]:
        """Return the `names` for which `wants` is true."""
        if self.pattern is None or len(names) < MANY_NAMES:
            return set(filter(self.wants, names))
        ours = [name for name in names if name.startswith(self._starts)]
        return set(self.pattern.for_many().of(self.shown(ours)))

    def shown(self, names: Sequence[str]) -> Sequence[str]:
        """Return `names` without hidden system topics, regardless of the pattern. The domains must be right."""
        if not self.wanted.system and self.wanted.namespace == _SYSTEM_NAMESPACE:
            return [name for name in names if not is_system_topic(name)]
        return names


def gather(index: NameIndex, wanted: Filter) -> Generator[None, int, Listing]:
    """Gather the list of the moment of the first step, partitions one by one.

    Steps are short; each is told how long the previous one took.
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
    """Number of names to match in the next step: the cost depends on the pattern and the length of names."""
    if took_ns > STEP_NS:
        return max(NAMES_PER_STEP_MIN, step // 2)
    return step if took_ns > STEP_NS // 2 else min(NAMES_PER_STEP, 2 * step)


def _folder(name: str) -> str:
    return name[: name.rindex("/")]

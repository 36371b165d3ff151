# SPDX-License-Identifier: Apache-2.0
"""Listing the topics of a namespace: which names there are, and which of them a pattern wants.

Why an index: a broker may hold a hundred thousand topics, and a client asks for those of one namespace, again and
again. Names are kept in Java's order, because that is how they are hashed and told.
Where: the directory keeps the `NameIndex`; `shared_listings` gathers lists from it, which all who ask share.
Everything here is pure, but that long lists give way to others; nothing walks names of another namespace.

Patterns are RE2's, as in Pulsar, so that no pattern of a client can hold the loop: matching takes time in proportion to
the name. What RE2 does not know (lookahead, back references) is left to the client, which gets the list unfiltered.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.topics.listing_blocks import BLOCK_NAMES, Block, Listing, cut, in_order, java_order
from penstock.core.errors import InvalidTopicName
from penstock.core.names import is_system_topic, parent_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PERSISTENT: Final = "persistent"
NON_PERSISTENT: Final = "non-persistent"

# A name costs a few microseconds to match, and a tenth of one to list.
NAMES_PER_TURN: Final = 250
NAMES_PER_TURN_UNMATCHED: Final = 4_000

_SCHEME_MARK: Final = "://"
_LITERAL_PARTITION: Final = re.compile(r"-partition-[0-9]+\Z")


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


class PatternNotServed(Exception):
    """The pattern is one, but not for RE2."""


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
        return self._lists.get(f"{domain}{_SCHEME_MARK}{namespace}", ())


class Filter:
    """Says of a topic's full name whether it is wanted."""

    def __init__(self, wanted: Wanted) -> None:
        """Raises what `matcher` does."""
        self.wanted = wanted
        self.matches = matcher(wanted.pattern) if wanted.pattern is not None else None
        self._starts = tuple(f"{domain}{_SCHEME_MARK}" for domain in _DOMAINS[wanted.mode])

    def wants(self, name: str) -> bool:
        """Whether this topic, of the namespace that was asked for, is in the list."""
        return (
            name.startswith(self._starts)
            and (self.wanted.system or not is_system_topic(name))
            and (self.matches is None or self.matches(name))
        )

    def of(self, names: Sequence[str]) -> Sequence[str]:
        """Those of some names of the right domains that are in the list."""
        if not self.wanted.system and (self.wanted.namespace == _SYSTEM_NAMESPACE or _SYSTEM_MARK in ",".join(names)):
            names = [name for name in names if not is_system_topic(name)]
        return names if self.matches is None else list(filter(self.matches, names))


async def gather(index: NameIndex, wanted: Filter) -> Listing:
    """The topics that are wanted, partitions one by one.

    Many are looked at in several turns of the loop: it is the list of one moment, the first.
    """
    of = wanted.wanted
    names: list[str] = []
    for domain in _DOMAINS[of.mode]:
        names += index.of(domain, of.namespace)
    step = NAMES_PER_TURN_UNMATCHED if wanted.matches is None else NAMES_PER_TURN
    blocks: list[Block] = []
    found: list[str] = []
    for start in range(0, len(names), step):
        if start:
            await asyncio.sleep(0)
        found += wanted.of(names[start : start + step])
        if len(found) >= BLOCK_NAMES:
            blocks += cut(found)
            found = []
    return Listing([*blocks, *cut(found)])


def matcher(pattern: str) -> Callable[[str], bool]:
    """What says of a full topic name whether it matches the pattern.

    The pattern must match all of `tenant/namespace/topic`; a domain in it and a partition's suffix are left out of
    account on both sides.

    Raises:
        InvalidTopicName: it is no regular expression.
        PatternNotServed: RE2 cannot evaluate it.
    """
    import re2  # noqa: PLC0415 - a broker that nobody asks for a pattern does without

    text = _LITERAL_PARTITION.sub("", _without_domain(pattern))
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(text, options)
    except re2.error as error:
        try:
            re.compile(text)
        except (re.error, RecursionError, OverflowError):
            raise InvalidTopicName(pattern, f"no regular expression: {error}") from None
        raise PatternNotServed(pattern) from None
    full_match = compiled.fullmatch
    return lambda name: full_match(parent_text(name).partition(_SCHEME_MARK)[2]) is not None


def _without_domain(pattern: str) -> str:
    before, mark, after = pattern.partition(_SCHEME_MARK)
    if not mark:
        return pattern
    for domain in (NON_PERSISTENT, PERSISTENT):
        if before.endswith(domain):
            return before[: -len(domain)] + after
    raise InvalidTopicName(pattern, f"unknown domain {before!r} in the pattern, want persistent or non-persistent")


def _folder(name: str) -> str:
    return name[: name.rindex("/")]

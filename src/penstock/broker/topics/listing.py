# SPDX-License-Identifier: Apache-2.0
"""Listing the topics of a namespace: which names there are, which of them a pattern wants, and their hash.

Why an index: a broker may hold a hundred thousand topics, and a client asks for those of one namespace, again and
again. Names are kept sorted, because that is how they are hashed and told.
Where: the directory keeps the `NameIndex`; discovery, watchers and the admin port ask `list_topics`. Everything
here is pure, but that long lists give way to others; nothing walks names of another namespace.

Patterns are RE2's, as in Pulsar, so that no pattern of a client can hold the loop: matching takes time in proportion to
the name. What RE2 does not know (lookahead, back references) is left to the client, which gets the list unfiltered.
"""

from __future__ import annotations

import asyncio
import re
import struct
from bisect import bisect_left, insort
from enum import Enum
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from penstock.core.errors import InvalidTopicName
from penstock.core.names import is_system_topic, parent_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PERSISTENT: Final = "persistent"
NON_PERSISTENT: Final = "non-persistent"

# A name costs a few microseconds to match.
NAMES_PER_TURN: Final = 500

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
    Mode.ALL: (PERSISTENT, NON_PERSISTENT),
}


class PatternNotServed(Exception):
    """The pattern is one, but not for RE2."""


class NameIndex:
    """Full names of topics by domain and namespace, each list sorted."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._lists: dict[str, list[str]] = {}
        for name in names:
            self._lists.setdefault(_folder(name), []).append(name)
        for listed in self._lists.values():
            listed.sort()

    def add(self, name: str) -> bool:
        """Add a name; False if it is there."""
        listed = self._lists.setdefault(_folder(name), [])
        at = bisect_left(listed, name)
        if at < len(listed) and listed[at] == name:
            return False
        insort(listed, name, lo=at)
        return True

    def discard(self, name: str) -> bool:
        """Take a name out; False if it is not there."""
        folder = _folder(name)
        listed = self._lists.get(folder, [])
        at = bisect_left(listed, name)
        if at == len(listed) or listed[at] != name:
            return False
        del listed[at]
        if not listed:
            del self._lists[folder]
        return True

    def of(self, domain: str, namespace: str) -> Sequence[str]:
        """The names in a namespace, sorted; a live view."""
        return self._lists.get(f"{domain}{_SCHEME_MARK}{namespace}", ())


async def list_topics(
    index: NameIndex,
    namespace: str,
    mode: Mode = Mode.PERSISTENT,
    *,
    matches: Callable[[str], bool] | None = None,
    system: bool = False,
) -> list[str]:
    """The topics of a namespace, sorted, partitions one by one: those that match, without Pulsar's own.

    Many are looked at in several turns of the loop: it is the list of one moment, the first.
    """
    names = [name for domain in _DOMAINS[mode] for name in index.of(domain, namespace)]
    if mode is Mode.ALL:
        names.sort()
    if matches is None and system:
        return names
    found: list[str] = []
    for start in range(0, len(names), NAMES_PER_TURN):
        if start:
            await asyncio.sleep(0)
        found += (
            name
            for name in names[start : start + NAMES_PER_TURN]
            if (system or not is_system_topic(name)) and (matches is None or matches(name))
        )
    return found


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


def topics_hash(names: Sequence[str]) -> str:
    """The hash of a listing, as clients compute it: of the sorted names, after filtering."""
    if not names:
        return "00000000"
    text = ",".join(sorted(names) if all(map(str.isascii, names)) else sorted(names, key=_java_order))
    return struct.pack("<I", crc32c(text.encode())).hex()


def _java_order(name: str) -> bytes:
    """Java compares strings by UTF-16 code unit."""
    return name.encode("utf-16-be", "surrogatepass")


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

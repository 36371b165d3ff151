# SPDX-License-Identifier: Apache-2.0
"""Shapes of policies' values as JSON. A shape checks a value and fills in missing members.

`check` returns the value to store, with all its members. It raises ValueError with a sentence for the administrator, in
Pulsar's words where Pulsar has them.
Where: each row of `policy_table` has a shape. The admin API derives its models from the same shapes. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Json: TypeAlias = Any  # the result of json.loads


class Shape(Protocol):
    """The type of a policy's value."""

    def __hash__(self) -> int: ...

    def check(self, value: Json) -> Json:
        """The value with all its members. Raises ValueError if it is invalid."""


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """An integer. `long`: it may exceed Java's int."""

    what: str
    low: int = 0
    long: bool = False
    refusal: str = ""  # error message to use instead

    def check(self, value: Json) -> Json:
        if isinstance(value, bool) or not isinstance(value, int) or value < self.low:
            raise ValueError(f"{self.refusal or f'{self.what} must be {self.low} or more'}, got {value!r}")
        return value


@dataclass(frozen=True, slots=True, eq=False)
class Flag:
    """A boolean."""

    what: str

    def check(self, value: Json) -> Json:
        if not isinstance(value, bool):
            raise ValueError(f"{self.what} must be true or false, got {value!r}")  # noqa: TRY004 -- it is a user's value
        return value


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """One of some words."""

    what: str
    allowed: tuple[str, ...] = ()  # empty: any word

    def check(self, value: Json) -> Json:
        if not isinstance(value, str) or (self.allowed and value not in self.allowed):
            raise ValueError(f"{self.what} must be one of {', '.join(self.allowed)}, got {value!r}")
        return str(value)


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """A list of words, each once. `allowed`: which words; empty for any."""

    what: str
    allowed: tuple[str, ...] = ()

    def check(self, value: Json) -> Json:
        words = value if isinstance(value, list | tuple) else [value]
        unknown = [one for one in words if self.allowed and one not in self.allowed]
        if unknown:
            raise ValueError(f"{self.what} are {', '.join(self.allowed)}, got {unknown[0]!r}")
        return list(dict.fromkeys(words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of an object. If left out, it has its default."""

    kind: type[int | float | str]
    default: Json = None
    long: bool = False  # an integer that may exceed Java's int
    words: tuple[str, ...] = ()  # the allowed words
    required: bool = False
    nullable: bool = False


def whole(default: int | None = None, *, long: bool = False, required: bool = False) -> Member:
    return Member(kind=int, default=default, long=long, required=required, nullable=default is None)


def flag(*, default: bool, required: bool = False) -> Member:
    return Member(kind=bool, default=default, required=required)


def text(default: str | None = None, *words: str) -> Member:
    return Member(kind=str, default=default, words=words, nullable=True)


def _nothing_more(value: dict[str, Json]) -> dict[str, Json]:
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Object:
    """A JSON object with these members. `more` checks them together, and may change them."""

    what: str
    text: str
    members: Mapping[str, Member]
    more: Callable[[dict[str, Json]], dict[str, Json]] = _nothing_more
    open: bool = False  # whether unknown members are kept

    def check(self, value: Json) -> Json:
        if not isinstance(value, dict):
            raise ValueError(f"{self.what} must be a JSON object, got {value!r}")  # noqa: TRY004
        out: dict[str, Json] = {}
        for name, member in self.members.items():
            given = value.get(name)
            if given is None:
                given = member.default
            elif not isinstance(given, member.kind) or (isinstance(given, bool) and member.kind is int):
                raise ValueError(f"{name} of {self.what} cannot be {given!r}")
            out[name] = given
        return self.more(out)


@dataclass(frozen=True, slots=True, eq=False)
class Each:
    """An object whose members all have one shape; null members are dropped. `allowed`: their names; empty for any."""

    what: str
    shape: Shape
    allowed: tuple[str, ...] = ()

    def check(self, value: Json) -> Json:
        if not isinstance(value, dict) or (self.allowed and not value.keys() <= set(self.allowed)):
            raise ValueError(f"{self.what} are {' and '.join(self.allowed) or 'a JSON object'}, got {value!r}")
        return {name: self.shape.check(one) for name, one in value.items() if one is not None}

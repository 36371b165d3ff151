# SPDX-License-Identifier: Apache-2.0
"""What a row of the table of settings is: a key with its default, its parser and its meaning; and how values are read.

Where: groups of rows stand beside the code that reads them (`broker.limit_rows`, `broker.policies.policy_defaults`) and
in `settings.rows`; `settings.model.Settings` joins the groups; `settings.sources` parses with them.
Groups are never instantiated: they are dataclasses without methods, which saves time at the start.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar, cast

from penstock.core.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

VARIABLE_PREFIX: Final = "PENSTOCK_"
# What `str.join` and people put between the items of a list.
SEPARATOR: Final = ","


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One row of the table. `parse` raises ValueError with a sentence on what it wanted."""

    name: str
    parse: Callable[[str], object]
    default: object  # None: worked out from other keys and the machine, or not set; `default_text` says how
    default_text: str
    text: str  # what it does
    flag: str | None
    dynamic: bool  # whether it can be changed while the broker runs
    secret: bool  # whether its value is shown to nobody
    empty: bool  # whether an empty value in a file is a value, not "not set"

    @property
    def variable(self) -> str:
        """The name in the environment: `queued.max.requests` is PENSTOCK_QUEUED_MAX_REQUESTS."""
        return VARIABLE_PREFIX + self.snake_case.upper()

    @property
    def snake_case(self) -> str:
        """The name as Python writes names: `maxMessageSize` is max_message_size."""
        return re.sub(r"\.|(?<=[a-z0-9])(?=[A-Z])", "_", self.name).lower()


def row(
    name: str,
    parse: Callable[[str], T],
    default: object,
    text: str,
    *,
    flag: str | None = None,
    dynamic: bool = False,
    secret: bool = False,
    empty: bool = False,
) -> T:
    """Declare a field as a row. A default in angle brackets is a sentence: `sources` works the value out."""
    worked_out = isinstance(default, str) and default.startswith("<")
    key = Key(
        name=name,
        parse=parse,
        default=None if worked_out else default,
        default_text=str(default).strip("<>") if worked_out else spell(default),
        text=text,
        flag=flag,
        dynamic=dynamic,
        secret=secret,
        empty=empty,
    )
    if worked_out and key.default_text != "none":
        return cast("T", field(metadata={"key": key}))
    return cast("T", field(default=key.default, metadata={"key": key}))


def spell(value: object) -> str:
    """Write a value as a file would; nothing for what is not set."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return SEPARATOR.join(map(str, value))
    return str(value)


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """A whole number within bounds."""
    want = f"a whole number from {low} to {high}" if high is not None else f"a whole number, {low} or more"

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"want {want}") from None
        if number < low or (high is not None and number > high):
            raise ValueError(f"want {want}")
        return number

    return parse


def size(low: int) -> Callable[[str], int]:
    """A number of bytes, at least so many."""

    def parse(text: str) -> int:
        number = parse_bytes(text)
        if number < low:
            raise ValueError(f"want at least {low} bytes")
        return number

    return parse


def any_number(text: str) -> int:
    """A whole number, of which 0 or less means no bound."""
    try:
        return int(text)
    except ValueError:
        raise ValueError("want a whole number; 0 or less switches the bound off") from None


def fraction(text: str) -> float:
    """A number with or without a decimal point, of which less than 0 means no bound."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("want a number; less than 0 switches the bound off")
    return number


def choice(*allowed: str) -> Callable[[str], str]:
    """One of a few words, in any case; spelled as here."""
    spelled = {word.lower(): word for word in allowed}

    def parse(text: str) -> str:
        if text.lower() not in spelled:
            raise ValueError(f"want {' or '.join(allowed)}")
        return spelled[text.lower()]

    return parse


def switch(text: str) -> bool:
    """True or false."""
    if text.lower() not in {"true", "false"}:
        raise ValueError("want true or false")
    return text.lower() == "true"


def names(text: str) -> tuple[str, ...]:
    """A list with commas, in its order, each item once."""
    return tuple(dict.fromkeys(item.strip() for item in text.split(SEPARATOR) if item.strip()))


def names_among(*allowed: str) -> Callable[[str], tuple[str, ...]]:
    """A list of which every item is one of a few words."""

    def parse(text: str) -> tuple[str, ...]:
        items = names(text)
        for item in items:
            if item not in allowed:
                raise ValueError(f"{item} is none of {', '.join(allowed)}")
        return items

    return parse


_LISTENER: Final = re.compile(r"(?P<name>[^:,\s]+):(?P<url>(?P<scheme>pulsar|pulsar\+ssl|http|https)://[^/,\s]+:\d+)")


def listeners(text: str) -> tuple[str, ...]:
    """A list of addresses, each with the name of a listener: `name:pulsar://host:port`."""
    items = names(text)
    for item in items:
        if _LISTENER.fullmatch(item) is None:
            raise ValueError(f"{item} is no NAME:pulsar://HOST:PORT")
    return items


def of_listener(item: str) -> tuple[str, str, str]:
    """The name, the scheme and the whole address of an item of `listeners`."""
    match = _LISTENER.fullmatch(item)
    assert match is not None
    return match["name"], match["scheme"], match["url"]


port_number = whole(0, 65_535)


def port_or_none(text: str) -> int | None:
    """A port; nothing means that it is not opened."""
    return port_number(text) if text else None

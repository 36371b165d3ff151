# SPDX-License-Identifier: Apache-2.0
"""The rows of the table of settings: a key with its default, parser and description; and the parsers of values.

Where: groups of rows are beside the code that reads them (`broker.limit_rows`, `broker.policies.policy_defaults`) and
in `settings.rows`. `settings.model.Settings` joins the groups; `settings.sources` parses with them.
Groups are never instantiated: they are dataclasses without methods, which saves time at the start.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar, cast

from penstock.core.errors import InvalidTopicName
from penstock.core.names import NamespaceName, TopicName
from penstock.core.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable


# -- URLs of ZooKeeper as Pulsar writes them: `zk:host:port,host:port/path` --------------------------------------------

PORT: Final = 2181
PATH: Final = "/penstock"  # if the URL has none
SCHEME: Final = "zk:"
_WANT: Final = "want zk:HOST:PORT,HOST:PORT/PATH, as in Pulsar's metadataStoreUrl; the port and the path may be missing"
# A name, an IPv4 address, or an IPv6 address in brackets.
_SERVER: Final = re.compile(r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_STEP: Final = re.compile(r"[A-Za-z0-9_.:@-]{1,255}")
# ZooKeeper keeps its own nodes there.
_RESERVED: Final = "zookeeper"


@dataclass(frozen=True, slots=True)
class ZooKeeperUrl:
    """The servers of a ZooKeeper ensemble, and a path in it."""

    servers: tuple[str, ...]  # host:port
    path: str

    @classmethod
    def parse(cls, text: str) -> ZooKeeperUrl:
        """Parse a URL; raises ValueError, which says what is allowed."""
        if not text.startswith(SCHEME):
            raise ValueError(f"{_WANT}; other stores than ZooKeeper are not supported")
        rest = text.removeprefix(SCHEME).removeprefix("//")
        servers, slash, path = rest.partition("/")
        return cls(tuple(_server(one.strip()) for one in servers.split(",")), _path(slash + path))

    def __str__(self) -> str:
        return f"{SCHEME}{','.join(self.servers)}{self.path}"


def _server(text: str) -> str:
    match = _SERVER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no HOST:PORT; {_WANT}")
    port = int(match["port"] or PORT)
    if not 0 < port < 1 << 16:
        raise ValueError(f"{port} is no port of a server; {_WANT}")
    return f"{match['host']}:{port}"


def _path(text: str) -> str:
    path = text.rstrip("/")
    if not path:
        return PATH
    steps = path.removeprefix("/").split("/")
    if steps[0] == _RESERVED or any(_STEP.fullmatch(step) is None or step in {".", ".."} for step in steps):
        raise ValueError(f"{path!r} is no path for penstock's nodes; {_WANT}")
    return path


T = TypeVar("T")

VARIABLE_PREFIX: Final = "PENSTOCK_"
# Variables of the command line (`cli.contexts`), which are no settings.
COMMAND_VARIABLES: Final = frozenset(
    VARIABLE_PREFIX + name for name in ("TOKEN", "CONTEXT", "URL", "ADMIN_URL", "TOKEN_FILE", "CACERT")
)
# What `str.join` and people put between the items of a list.
SEPARATOR: Final = ","
# Java's largest number. Larger ones are typing errors; no limit needs them, and they cannot be converted to fractions.
NUMBER_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One row of the table. `parse` raises ValueError, which says what is allowed."""

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
        """Its name in the environment: `queued.max.requests` is PENSTOCK_QUEUED_MAX_REQUESTS."""
        return VARIABLE_PREFIX + self.snake_case.upper()

    @property
    def snake_case(self) -> str:
        """Its name in Python's style: `maxMessageSize` is max_message_size."""
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
    """Declare a field as a row. A default in angle brackets is a description: `sources` computes the value."""
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


def dynamic(name: str, parse: Callable[[str], T], default: object, text: str, *, flag: str | None = None) -> T:
    """Declare a field as a row that can be changed while the broker runs."""
    return row(name, parse, default, text, flag=flag, dynamic=True)


def spell(value: object) -> str:
    """Return a value as in a file; empty if it is not set."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return SEPARATOR.join(map(str, value))
    return str(value)


def whole(low: int, high: int = NUMBER_MAX) -> Callable[[str], int]:
    """Parse a whole number within limits."""
    want = f"a whole number from {low} to {high}" if high != NUMBER_MAX else f"a whole number, {low} or more"

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"want {want}") from None
        if number > NUMBER_MAX:
            raise ValueError(f"want {want}; {NUMBER_MAX} is the largest number")
        if not low <= number <= high:
            raise ValueError(f"want {want}")
        return number

    return parse


def size(low: int) -> Callable[[str], int]:
    """Parse a number of bytes of at least `low`."""

    def parse(text: str) -> int:
        number = parse_bytes(text)
        if not low <= number <= NUMBER_MAX:
            raise ValueError(f"want at least {low} bytes, and at most {NUMBER_MAX}")
        return number

    return parse


def any_number(text: str) -> int:
    """Parse a whole number; 0 or less means no limit."""
    try:
        number = int(text)
    except ValueError:
        raise ValueError("want a whole number; 0 or less switches the bound off") from None
    if abs(number) > NUMBER_MAX:
        raise ValueError(f"want a whole number up to {NUMBER_MAX}; 0 or less switches the bound off")
    return number


def fraction(text: str) -> float:
    """Parse a number with or without a decimal point; less than 0 means no limit."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not abs(number) <= NUMBER_MAX:  # Nor is NaN.
        raise ValueError(f"want a number up to {NUMBER_MAX}; less than 0 switches the bound off")
    return number


def seconds(low: float, high: float) -> Callable[[str], float]:
    """Parse a number of seconds, with or without a decimal point, within limits."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise ValueError(f"want a number of seconds from {low:g} to {high:g}")
        return number

    return parse


def part_of_one(text: str) -> float:
    """Parse a number from 0 to 1."""
    number = _finite(text)
    if not 0.0 <= number <= 1.0:
        raise ValueError("want a number from 0 to 1, as 0.85 for 85 %")
    return number


def part_above_zero(text: str) -> float:
    """Parse a number above 0 and up to 1."""
    number = _finite(text)
    if not 0.0 < number <= 1.0:
        raise ValueError("want a number above 0 and up to 1, as 0.25 for 25 %")
    return number


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return -1.0
    return number if math.isfinite(number) else -1.0


def topic(text: str) -> str:
    """Parse the full name of a topic."""
    if "://" not in text:
        raise ValueError("want a full name, as in non-persistent://tenant/namespace/topic")
    try:
        return str(TopicName.parse(text))
    except InvalidTopicName as error:
        raise ValueError(str(error)) from None


def topics_or_namespaces(text: str) -> tuple[str, ...]:
    """Parse a list of topics (full names, or tenant/namespace/topic) and namespaces (tenant/namespace)."""
    return tuple(dict.fromkeys(map(topic_or_namespace, names(text))))


def topic_or_namespace(text: str) -> str:
    """Parse a topic, or a namespace as tenant/namespace, and return its full name."""
    try:
        is_namespace = "://" not in text and text.count("/") == 1
        return str(NamespaceName.parse(text) if is_namespace else TopicName.parse(text))
    except InvalidTopicName as error:
        raise ValueError(str(error)) from None


def zookeeper(text: str) -> str:
    """Parse the URL of a ZooKeeper ensemble."""
    return str(ZooKeeperUrl.parse(text))


def authentication_method(text: str) -> str:
    """Parse a method of authentication, or the name of Pulsar's class for it."""
    methods = {
        "none": "none",
        "token": "token",
        "basic": "basic",
        "tls": "tls",
        "org.apache.pulsar.client.impl.auth.AuthenticationToken": "token",
        "org.apache.pulsar.client.impl.auth.AuthenticationBasic": "basic",
        "org.apache.pulsar.client.impl.auth.AuthenticationTls": "tls",
        "org.apache.pulsar.client.impl.auth.AuthenticationDisabled": "none",
    }
    if text not in methods:
        raise ValueError(f"want {' or '.join(methods)}")
    return methods[text]


def choice(*allowed: str) -> Callable[[str], str]:
    """Parse one of these words, in any case."""
    spelled = {word.lower(): word for word in allowed}

    def parse(text: str) -> str:
        if text.lower() not in spelled:
            raise ValueError(f"want {' or '.join(allowed)}")
        return spelled[text.lower()]

    return parse


def switch(text: str) -> bool:
    """Parse true or false."""
    if text.lower() not in {"true", "false"}:
        raise ValueError("want true or false")
    return text.lower() == "true"


def names(text: str) -> tuple[str, ...]:
    """Parse a list separated by commas; repeated items count once."""
    return tuple(dict.fromkeys(item.strip() for item in text.split(SEPARATOR) if item.strip()))


def names_among(*allowed: str) -> Callable[[str], tuple[str, ...]]:
    """Parse a list of these words."""

    def parse(text: str) -> tuple[str, ...]:
        items = names(text)
        for item in items:
            if item not in allowed:
                raise ValueError(f"{item} is none of {', '.join(allowed)}")
        return items

    return parse


_LISTENER: Final = re.compile(r"(?P<name>[^:,\s]+):(?P<url>(?P<scheme>pulsar|pulsar\+ssl|http|https)://[^/,\s]+:\d+)")


def listeners(text: str) -> tuple[str, ...]:
    """Parse a list of listeners with addresses: `name:pulsar://host:port`."""
    items = names(text)
    for item in items:
        if _LISTENER.fullmatch(item) is None:
            raise ValueError(f"{item} is no NAME:pulsar://HOST:PORT")
    return items


def of_listener(item: str) -> tuple[str, str, str]:
    """Return the name, the scheme and the address of an item of `listeners`."""
    match = _LISTENER.fullmatch(item)
    assert match is not None
    return match["name"], match["scheme"], match["url"]


# Links to show; more would not be a menu any more.
_LINKS_MAX: Final = 50
_LINK: Final = re.compile(
    r"(?P<name>[^=<>\x00-\x1f]{1,64})=(?P<url>https?://[A-Za-z0-9.\-\[\]:]+(/[A-Za-z0-9._~\-/]*)?)"
)


def links(text: str) -> tuple[str, ...]:
    """Parse a list of `NAME=https://HOST:PORT`."""
    items = names(text)
    if len(items) > _LINKS_MAX:
        raise ValueError(f"want {_LINKS_MAX} addresses at most, not {len(items)}")
    for item in items:
        if _LINK.fullmatch(item) is None:
            raise ValueError(f"{item} is no NAME=https://HOST:PORT")
    return items


def of_link(item: str) -> tuple[str, str]:
    """Return the name and the address of an item of `links`."""
    name, _, url = item.partition("=")
    return name.strip(), url.rstrip("/")


port_number = whole(0, 65_535)


def port_or_none(text: str) -> int | None:
    """Parse a port; an empty text means that it is not opened."""
    return port_number(text) if text else None

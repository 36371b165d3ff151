# SPDX-License-Identifier: Apache-2.0
"""When the certificates and tokens expire that this process shows to others.

Why the certificates in use, and not their files: a file that was renewed helps nobody until the process has read it.
Why the files of tokens: they are read again for each connection, so what counts is what is in them now.
Where: brokers and proxies measure it once a minute (`Expiries`); metrics, health and the console show it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from penstock.core.units import NS_PER_S
from penstock.net.tls import valid_until_ms
from penstock.stats.measuring import Measuring

if TYPE_CHECKING:
    import ssl
    from asyncio import Future
    from collections.abc import Callable, Iterable, Iterator

    from penstock.net.own_credentials import OwnCredentials

INTERVAL_NS: Final = 60 * NS_PER_S
_DAY_MS: Final = 86_400_000
# Health names what expires within this time. A token in a file is replaced in time, often shortly before it expires.
NAMED_MS: Final = 3 * _DAY_MS
NAMED_IN_FILE_MS: Final = 5 * 60_000

Source = Literal["certificate", "setting", "file"]


class Expiry(NamedTuple):
    """A certificate or token, and until when it is valid.

    Attributes:
        use: for what: `clients`, `admin`, `brokers`, `cluster NAME`.
        source: a certificate; or a token that stands in a setting, or in a file that somebody renews.
        until_ms: since 1970.
    """

    use: str
    source: Source
    until_ms: int


class Expiries(Measuring["tuple[Expiry, ...]"]):
    """Looks at all of them, once a minute."""

    __slots__ = ()

    def __init__(
        self,
        read: Callable[[], Iterable[Expiry]],
        in_thread: Callable[[Callable[[], tuple[Expiry, ...]]], Future[tuple[Expiry, ...]]],
    ) -> None:
        """Args: read: may block. in_thread: calls it in a thread."""
        super().__init__("the expiry of certificates and tokens", INTERVAL_NS, lambda: tuple(read()), in_thread)

    def notes(self, wall_ms: int) -> Iterator[str]:
        """See `notes`."""
        return notes(self.last or (), wall_ms)


def notes(expiries: Iterable[Expiry], wall_ms: int) -> Iterator[str]:
    """Yield in words what expires soon, or has expired."""
    for one in expiries:
        named_ms = NAMED_IN_FILE_MS if one.source == "file" else NAMED_MS
        if one.until_ms - wall_ms < named_ms:
            what = "certificate" if one.source == "certificate" else "token"
            until = datetime.fromtimestamp(one.until_ms / 1_000, UTC).isoformat(timespec="seconds")
            verb = "has expired" if one.until_ms <= wall_ms else "expires soon"
            yield f"the {what} for {one.use} {verb}: it is valid until {until}"


def of_contexts(contexts: Iterable[tuple[str, ssl.SSLContext | None]]) -> Iterator[Expiry]:
    """Yield the certificates of these, by what they are for; a context may be None or have none."""
    for use, context in contexts:
        until_ms = valid_until_ms(context) if context is not None else None
        if until_ms is not None:
            yield Expiry(use, "certificate", until_ms)


def of_credentials(use: str, own: OwnCredentials) -> Iterator[Expiry]:
    """Yield the token of these, if there is one that expires. Reads its file."""
    until_ms = own.valid_until_ms()
    if until_ms is not None:
        yield Expiry(use, "file" if own.in_file else "setting", until_ms)

# SPDX-License-Identifier: Apache-2.0
"""A proxy before the brokers of these tests: with COMPAT_PROXY=1, every client is given the proxy's addresses instead.

Where: the fixtures of `conftest`, and `run` for the clients of other languages.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, Self

from penstock.testing.process import ProxyProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SCHEME: Final = "://"


class Broker(Protocol):
    """A broker process, of penstock or of Apache Pulsar."""

    @property
    def port(self) -> int: ...

    @property
    def admin_port(self) -> int: ...

    @property
    def url(self) -> str: ...

    @property
    def admin_url(self) -> str: ...

    def start(self, *, port: int = 0, admin_port: int = 0) -> object: ...

    def stop(self) -> int: ...

    def kill(self) -> None: ...


def joined(urls: Sequence[str]) -> str:
    """Return one URL with all hosts of these: `pulsar://a:6650,b:6650`."""
    scheme, _, _ = urls[0].partition(SCHEME)
    return f"{scheme}{SCHEME}{','.join(url.partition(SCHEME)[2] for url in urls)}"


@contextmanager
def proxy_before(
    urls: Sequence[str], admin_urls: Sequence[str], log: Path, arguments: Sequence[str] = ()
) -> Iterator[ProxyProcess]:
    """Start a proxy before these brokers, and stop it."""
    with ProxyProcess(joined(urls), ["--upstream-admin", joined(admin_urls), *arguments], log_path=log) as process:
        yield process


class Proxied:
    """A broker and the proxy before it, with the methods of a broker process.

    The addresses are the proxy's. It is the broker that is stopped, killed and started again, always at the same ports,
    because its proxy stays.
    """

    def __init__(self, broker: Broker, proxy: ProxyProcess) -> None:
        self.broker = broker
        self.proxy = proxy

    @property
    def port(self) -> int:
        """Of the proxy."""
        return self.proxy.port

    @property
    def admin_port(self) -> int:
        """Of the proxy."""
        return self.proxy.admin_port

    @property
    def url(self) -> str:
        """Of the proxy."""
        return self.proxy.url

    @property
    def admin_url(self) -> str:
        """Of the proxy."""
        return self.proxy.admin_url

    def start(self, *, port: int = 0, admin_port: int = 0) -> Self:
        """Start the broker again, at its own ports: its proxy looks for it there."""
        self.broker.start(port=self.broker.port, admin_port=self.broker.admin_port)
        return self

    def stop(self) -> int:
        """Stop the broker."""
        return self.broker.stop()

    def kill(self) -> None:
        """Kill the broker."""
        self.broker.kill()

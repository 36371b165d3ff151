# SPDX-License-Identifier: Apache-2.0
"""Where brokers are and how to reach them: service URLs, TLS, timeouts.

Why values: the driver parses and checks them once; tasks receive them pickled and open their own sockets.
Where: made from the source's options, used by `Connection` and `Cluster`.
"""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.spark.client.credentials import NO_CREDENTIALS, Credentials
from penstock.spark.client.errors import UnusableFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SCHEMES: Final = {"pulsar": False, "pulsar+ssl": True}
_PORTS: Final = {False: 6650, True: 6651}


class Address(NamedTuple):
    """One broker's port."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        scheme = "pulsar+ssl" if self.tls else "pulsar"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"


def parse_service_url(text: str) -> tuple[Address, ...]:
    """Read `pulsar://host:6650`, `pulsar+ssl://a:6651,b:6651`; the port may be left out, hosts are tried in turn.

    Raises:
        ValueError: it does not read as one, and why.
    """
    scheme, mark, rest = text.strip().partition("://")
    if not mark or scheme not in _SCHEMES:
        raise ValueError(f"service URL {text!r}: want pulsar://host:6650 or pulsar+ssl://host:6651")
    tls = _SCHEMES[scheme]
    hosts = rest.partition("/")[0].split(",")
    return tuple(Address(*_host_and_port(host.strip(), text, _PORTS[tls]), tls) for host in hosts)


def _host_and_port(text: str, url: str, default: int) -> tuple[str, int]:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host or not (not port or (port.isascii() and port.isdigit() and 0 < int(port) < 65_536)):
        raise ValueError(f"service URL {url!r}: {text!r} is not host:port")
    return host, int(port or default)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """How a broker must show who it is, and with which certificate we do."""

    trusted: Path | None = None  # PEM; None: the system's
    certificate: Path | None = None
    key: Path | None = None
    check_host: bool = True
    allow_insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """Made anew for each connection: contexts cannot be pickled, and files may be renewed. Raises UnusableFile."""
        with _read("want certificates in PEM", tlsTrustCertsFilePath=self.trusted):
            context = ssl.create_default_context(cafile=self.trusted)
        context.check_hostname = self.check_host and not self.allow_insecure
        if self.allow_insecure:
            context.verify_mode = ssl.CERT_NONE
        if self.certificate is not None:
            wanted = "want PEM, a key that belongs to the certificate, and no password on it"
            with _read(wanted, tlsCertificateFilePath=self.certificate, tlsKeyFilePath=self.key):
                # Without an empty password, OpenSSL would ask for one on the terminal, and wait.
                context.load_cert_chain(self.certificate, self.key, password="")
        return context


@contextmanager
def _read(wanted: str, **files: Path | None) -> Iterator[None]:
    """Name the file that cannot be read, or what is wanted of all of them. Raises UnusableFile."""
    try:
        yield
    except OSError as error:
        named = {option: path for option, path in files.items() if path is not None}
        for option, path in named.items():
            try:
                path.open("rb").close()
            except OSError as unreadable:
                raise UnusableFile(option, str(path), unreadable.strerror or str(unreadable)) from error
        raise UnusableFile(" and ".join(named), " and ".join(map(str, named.values())), wanted) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Everything that a connection needs to know; can be pickled."""

    addresses: tuple[Address, ...]
    credentials: Credentials = NO_CREDENTIALS
    tls: TlsOptions = field(default_factory=TlsOptions)
    listener: str = ""  # the advertised listener to ask lookups for
    connect_timeout_s: float = 10.0
    operation_timeout_s: float = 30.0

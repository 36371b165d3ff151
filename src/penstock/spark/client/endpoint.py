# SPDX-License-Identifier: Apache-2.0
"""How to reach brokers: their addresses, TLS, timeouts.

Why values: the driver parses and checks them once; tasks receive them pickled and open their own sockets.
Where: made from the source's options, used by `Connection` and `Cluster`.
"""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.spark.client.credentials import NO_CREDENTIALS, Credentials
from penstock.spark.client.errors import UnusableFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.wire.client.lookup import Address


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

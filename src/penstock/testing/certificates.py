# SPDX-License-Identifier: Apache-2.0
"""Self-signed certificates for tests and benchmarks of TLS.

Why not a file in the repository: it would expire, and scanners would report its private key.
Where: tests of the transport, the flood. Needs `cryptography`, which is in the `dev` extra.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

# Valid for any clock of a test machine.
VALID_FROM = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
VALID_UNTIL = dt.datetime(2099, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate for localhost and its private key, both in PEM."""

    certificate: Path
    key: Path

    @classmethod
    def make(cls, directory: Path, until: dt.datetime = VALID_UNTIL) -> Self:
        """Make a key, sign its certificate with itself, and write both into a directory."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("localhost")
        names = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
        )
        draft = _draft(name, name, key, until).add_extension(names, critical=False)
        return cls._written(directory, "", draft, key, key, ca=True)

    def signed(self, common_name: str, directory: Path | None = None) -> Self:
        """A client certificate with this common name, signed by this one."""
        issuer = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        issuer_key = serialization.load_pem_private_key(self.key.read_bytes(), None)
        assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        draft = _draft(_name(common_name), issuer.subject, key)
        return self._written(directory or self.certificate.parent, f"{common_name}-", draft, key, issuer_key, ca=False)

    @classmethod
    def _written(
        cls,
        directory: Path,
        prefix: str,
        draft: x509.CertificateBuilder,
        key: ec.EllipticCurvePrivateKey,
        issuer_key: ec.EllipticCurvePrivateKey,
        *,
        ca: bool,
    ) -> Self:
        signed = draft.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True).sign(
            issuer_key, hashes.SHA256()
        )
        made = cls(directory / f"{prefix}certificate.pem", directory / f"{prefix}key.pem")
        made.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        made.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return made

    def server(self) -> ssl.SSLContext:
        """A TLS context for a listener, as the broker makes it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        return context

    def client(
        self, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, *, shows: Certificate | None = None
    ) -> ssl.SSLContext:
        """A client's TLS context that trusts only this certificate; `shows` is its own certificate."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        context.check_hostname = False
        context.minimum_version = context.maximum_version = version
        if shows is not None:
            context.load_cert_chain(shows.certificate, shows.key)
        return context


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _draft(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, until: dt.datetime = VALID_UNTIL
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID_FROM)
        .not_valid_after(until)
    )

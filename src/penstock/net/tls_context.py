# SPDX-License-Identifier: Apache-2.0
"""Creates the `ssl` context of a TLS port from Pulsar's configuration: protocols, ciphers and trusted certificates.

Where: app creates one context for each TLS port, and new ones on SIGHUP; open connections keep theirs.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
# Java names ciphers as the RFCs do, OpenSSL has its own names: TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 is
# ECDHE-RSA-AES256-GCM-SHA384. The ciphers of TLS 1.3 have no key exchange in their names and are always enabled.
_JAVA_CIPHER: Final = re.compile(r"(?:TLS|SSL)_(?P<exchange>\w+)_WITH_(?P<cipher>\w+)")
_OF_TLS_13: Final = re.compile(r"TLS_(?:AES|CHACHA20)_(?!.*WITH)\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """The configuration of all TLS ports."""

    certificate: Path
    key: Path
    trust: Path | None = None  # certificate authorities of clients' certificates
    require_client_certificate: bool = False
    allow_untrusted: bool = False
    protocols: tuple[str, ...] = ()
    ciphers: tuple[str, ...] = ()


def server_context(options: TlsOptions) -> ssl.SSLContext:
    """Return a context for a listener. Raises ConfigurationError, which names the setting and never a key's content."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_versions(context, options.protocols)
    _set_ciphers(context, options.ciphers)
    try:
        context.load_cert_chain(options.certificate, options.key, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            f"TLS certificate {options.certificate} with key {options.key} cannot be used: {error}"
        ) from error
    _set_trust(context, options)
    return context


def client_context(
    trust: Path | None, *, check_hostname: bool, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """Return a context for connections to brokers, whose certificates are verified. Raises ConfigurationError.

    Args:
        trust: certificate authorities in PEM; None: those of the system.
        check_hostname: whether a broker's certificate must have its host's name.
        certificate: shown to brokers; with its `key`.
        key: of the certificate.
    """
    try:
        context = ssl.create_default_context(cafile=trust)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"brokerClientTrustCertsFilePath={trust} cannot be used: {error}") from error
    context.check_hostname = check_hostname
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ConfigurationError(
                f"brokerClientCertificateFilePath={certificate} with key {key} cannot be used: {error}"
            ) from error
    return context


def _no_password() -> str:
    # Otherwise OpenSSL would ask on the terminal and wait.
    raise ValueError("the key is encrypted; penstock takes keys without a passphrase")


def _set_versions(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    unknown = sorted(set(names) - _VERSIONS.keys())
    if unknown:
        raise ConfigurationError(f"tlsProtocols={','.join(unknown)} is not supported; want TLSv1.2 or TLSv1.3 or both")
    versions = [_VERSIONS[name] for name in names] or [ssl.TLSVersion.TLSv1_2]
    context.minimum_version = min(versions)
    if names:
        context.maximum_version = max(versions)


def _set_ciphers(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    wanted = [_openssl_name(name) for name in names if _OF_TLS_13.fullmatch(name) is None]
    if not wanted:
        return
    try:
        context.set_ciphers(":".join(wanted))
    except ssl.SSLError as error:
        raise ConfigurationError(f"tlsCiphers={','.join(names)}: this system has none of them") from error


def _openssl_name(name: str) -> str:
    java = _JAVA_CIPHER.fullmatch(name)
    if java is None:
        return name
    cipher = re.sub(r"(AES|ARIA|CAMELLIA)_(\d+)", r"\1\2", java["cipher"])
    cipher = cipher.replace("_CBC", "").replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    exchange = "" if java["exchange"] == "RSA" else f"{java['exchange']}-"
    return f"{exchange}{cipher}".replace("_", "-")


def _set_trust(context: ssl.SSLContext, options: TlsOptions) -> None:
    """Request client certificates if there are trusted certificate authorities."""
    if options.trust is not None:
        try:
            context.load_verify_locations(options.trust)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"tlsTrustCertsFilePath={options.trust} cannot be used: {error}") from error
    if options.require_client_certificate:
        if options.trust is None:
            raise ConfigurationError(
                "tlsRequireTrustedClientCertOnConnect=true needs tlsTrustCertsFilePath: the certificates to trust"
            )
        context.verify_mode = ssl.CERT_REQUIRED
    elif options.trust is not None and not options.allow_untrusted:
        context.verify_mode = ssl.CERT_OPTIONAL

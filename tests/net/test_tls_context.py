# SPDX-License-Identifier: Apache-2.0
"""What a TLS port speaks and whom it trusts: real handshakes, in memory."""

from __future__ import annotations

import ssl
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization

from penstock.core.errors import ConfigurationError
from penstock.net.tls import TlsOptions, server_context
from penstock.testing.certificates import Certificate

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Signed by nobody we know."""
    return Certificate.make(tmp_path_factory.mktemp("stranger")).signed("mallory")


@pytest.fixture(scope="module")
def known(certificate: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Signed by whom we trust."""
    return certificate.signed("audit", tmp_path_factory.mktemp("known"))


@pytest.fixture
def options(certificate: Certificate) -> TlsOptions:
    return TlsOptions(certificate=certificate.certificate, key=certificate.key, trust=certificate.certificate)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Both ends of a handshake; the server's end of it. Raises ssl.SSLError as soon as one of them gives up."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
    ]
    waiting = set(ends)
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
                waiting.discard(end)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            return ends[0]
    raise AssertionError("the handshake does not end")


def common_name(server_end: ssl.SSLObject) -> object:
    certificate = server_end.getpeercert()
    return dict(pair for part in certificate["subject"] for pair in part)["commonName"] if certificate else None  # type: ignore[misc]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_is_known_by_the_certificate_that_it_shows(
    options: TlsOptions, certificate: Certificate, known: Certificate, version: ssl.TLSVersion
) -> None:
    server = server_context(options)
    assert common_name(handshake(server, certificate.client(version, shows=known))) == "audit"
    assert common_name(handshake(server, certificate.client(version))) is None


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("required", [False, True])
def test_a_certificate_that_nobody_vouches_for_is_turned_away(
    options: TlsOptions, certificate: Certificate, stranger: Certificate, version: ssl.TLSVersion, *, required: bool
) -> None:
    server = server_context(replace(options, require_client_certificate=required))
    with pytest.raises(ssl.SSLError):
        handshake(server, certificate.client(version, shows=stranger))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_without_a_certificate_is_turned_away_where_one_is_required(
    options: TlsOptions, certificate: Certificate, version: ssl.TLSVersion
) -> None:
    server = server_context(replace(options, require_client_certificate=True, allow_untrusted=True))
    with pytest.raises(ssl.SSLError):
        handshake(server, certificate.client(version))


def test_a_certificate_that_may_be_anybodys_names_nobody(
    options: TlsOptions, certificate: Certificate, stranger: Certificate, known: Certificate
) -> None:
    server = server_context(replace(options, allow_untrusted=True))
    for shows in (stranger, known, None):
        assert common_name(handshake(server, certificate.client(shows=shows))) is None


def test_without_anybody_to_trust_no_certificate_is_asked_for(
    options: TlsOptions, certificate: Certificate, known: Certificate
) -> None:
    server = server_context(replace(options, trust=None))
    assert common_name(handshake(server, certificate.client(shows=known))) is None


@pytest.mark.parametrize("spoken", ["TLSv1.2", "TLSv1.3"])
def test_only_the_protocols_that_were_named_are_spoken(
    options: TlsOptions, certificate: Certificate, spoken: str
) -> None:
    server = server_context(replace(options, protocols=(spoken,)))
    for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
        if name == spoken:
            assert handshake(server, certificate.client(version)).version() == name
        else:
            with pytest.raises(ssl.SSLError):
                handshake(server, certificate.client(version))


@pytest.mark.parametrize(
    "cipher",
    ["ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"],
)
def test_only_the_ciphers_that_were_named_are_used_in_either_spelling(
    options: TlsOptions, certificate: Certificate, cipher: str
) -> None:
    server = server_context(replace(options, ciphers=("TLS_AES_256_GCM_SHA384", cipher)))
    used = handshake(server, certificate.client(ssl.TLSVersion.TLSv1_2)).cipher()
    assert used is not None
    assert used[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
    handshake(server, certificate.client(ssl.TLSVersion.TLSv1_3))


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "ECDHE-RSA-AES128-SHA"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
    ],
)
def test_javas_names_of_ciphers_are_understood(options: TlsOptions, java: str, openssl: str) -> None:
    context = server_context(replace(options, ciphers=(java,)))
    assert [row["name"] for row in context.get_ciphers() if not row["name"].startswith("TLS_")] == [openssl]


def test_what_cannot_be_spoken_is_named(options: TlsOptions) -> None:
    with pytest.raises(ConfigurationError, match=r"tlsProtocols=SSLv3 is not supported; want TLSv1\.2 or TLSv1\.3"):
        server_context(replace(options, protocols=("TLSv1.2", "SSLv3")))
    with pytest.raises(ConfigurationError, match="tlsCiphers=ROT13: this system has none"):
        server_context(replace(options, ciphers=("ROT13",)))


def test_a_missing_or_wrong_file_is_named(options: TlsOptions, known: Certificate, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere.pem"
    with pytest.raises(ConfigurationError, match=r"nowhere\.pem"):
        server_context(replace(options, certificate=nowhere))
    with pytest.raises(ConfigurationError, match=f"tlsTrustCertsFilePath={nowhere}"):
        server_context(replace(options, trust=nowhere))
    with pytest.raises(ConfigurationError, match=r"audit-key\.pem cannot be used"):
        server_context(replace(options, key=known.key))
    with pytest.raises(ConfigurationError, match="needs tlsTrustCertsFilePath"):
        server_context(replace(options, trust=None, require_client_certificate=True))


def test_a_key_with_a_passphrase_is_an_error_and_no_question(
    options: TlsOptions, certificate: Certificate, tmp_path: Path
) -> None:
    key = serialization.load_pem_private_key(certificate.key.read_bytes(), None)
    encrypted = tmp_path / "key.pem"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hunter2"),
        )
    )
    with pytest.raises(ConfigurationError, match="without a passphrase"):
        server_context(replace(options, key=encrypted))

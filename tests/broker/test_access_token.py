# SPDX-License-Identifier: Apache-2.0
"""Tokens: whose they are, and which count."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from penstock.authentication.credentials import Credentials, Identity, ProviderOptions
from penstock.authentication.token import TOKEN_BYTES_MAX, TokenProvider
from penstock.core.errors import AuthenticationFailed, ConfigurationError
from penstock.testing.tokens import (
    SECRET,
    curve_key,
    data_url,
    private_bytes,
    public_bytes,
    rsa_key,
    signed,
    token,
    unsigned,
)

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.testing.tokens import PrivateKey

NOW_S = 1_700_000_000
RSA_KEY = rsa_key()


def with_secret(secret: bytes = SECRET, **options: Any) -> TokenProvider:  # noqa: ANN401
    return TokenProvider(ProviderOptions(token_secret_key=data_url(secret), **options))


def with_public(key: PrivateKey, algorithm: str, encoding: Encoding = Encoding.DER) -> TokenProvider:
    source = data_url(public_bytes(key, encoding))
    return TokenProvider(ProviderOptions(token_public_key=source, token_public_alg=algorithm))


def identify(provider: TokenProvider, shown: str | bytes) -> Identity:
    data = shown.encode() if isinstance(shown, str) else shown
    return provider.identify(Credentials("token", data), NOW_S * 1000)


def refusal(provider: TokenProvider, shown: str | bytes) -> str:
    with pytest.raises(AuthenticationFailed) as caught:
        identify(provider, shown)
    return str(caught.value)


def part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_the_subject_of_a_token_signed_with_our_secret_is_the_role(algorithm: str) -> None:
    assert identify(with_secret(), token("audit", SECRET, algorithm)) == Identity("audit")


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512"])
@pytest.mark.parametrize("encoding", [Encoding.DER, Encoding.PEM])
def test_an_rsa_public_key_checks_tokens_of_its_private_half(algorithm: str, encoding: Encoding) -> None:
    provider = with_public(RSA_KEY, "RS256", encoding)
    assert identify(provider, token("audit", RSA_KEY, algorithm)) == Identity("audit")


@pytest.mark.parametrize(
    ("algorithm", "curve"), [("ES256", ec.SECP256R1()), ("ES384", ec.SECP384R1()), ("ES512", ec.SECP521R1())]
)
def test_a_public_key_on_a_curve_checks_tokens_of_its_private_half(algorithm: str, curve: ec.EllipticCurve) -> None:
    key = curve_key(curve)
    assert identify(with_public(key, algorithm), token("audit", key, algorithm)) == Identity("audit")


def test_a_token_that_says_it_is_signed_by_nobody_is_refused() -> None:
    for provider in (with_secret(), with_public(RSA_KEY, "RS256")):
        assert "another algorithm" in refusal(provider, unsigned("admin"))


def test_an_unsigned_token_in_any_spelling_of_none_is_refused() -> None:
    for spelling in ("None", "NONE", "nOnE", "", "HS256"):
        forged = f"{part({'alg': spelling, 'typ': 'JWT'})}.{part({'sub': 'admin'})}."
        assert refusal(with_secret(), forged)


@pytest.mark.parametrize("encoding", [Encoding.DER, Encoding.PEM])
def test_an_rsa_public_key_is_never_used_as_a_secret(encoding: Encoding) -> None:
    """Everybody may know the public key: a token that is signed with it as a secret proves nothing."""
    import hashlib
    import hmac

    text = f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part({'sub': 'admin'})}"
    for key in (public_bytes(RSA_KEY, encoding), public_bytes(RSA_KEY, Encoding.PEM).strip()):
        mac = base64.urlsafe_b64encode(hmac.digest(key, text.encode(), hashlib.sha256)).rstrip(b"=").decode()
        assert "another algorithm" in refusal(with_public(RSA_KEY, "RS256", encoding), f"{text}.{mac}")


@pytest.mark.parametrize("encoding", [Encoding.DER, Encoding.PEM])
def test_a_public_key_cannot_be_configured_as_the_secret(encoding: Encoding) -> None:
    with pytest.raises(ConfigurationError, match="tokenPublicKey"):
        with_secret(public_bytes(RSA_KEY, encoding))


def test_a_token_of_another_key_is_refused() -> None:
    assert "not signed with our key" in refusal(with_secret(), token("admin", b"x" * 64))
    assert "not signed with our key" in refusal(with_public(RSA_KEY, "RS256"), token("admin", rsa_key(), "RS256"))


def test_a_token_whose_claims_were_changed_is_refused() -> None:
    head, _, signature = token("audit").split(".")
    assert "not signed with our key" in refusal(with_secret(), f"{head}.{part({'sub': 'admin'})}.{signature}")


def test_a_secret_that_is_too_short_for_an_algorithm_does_not_check_it() -> None:
    short = b"s" * 32
    assert identify(with_secret(short), token("audit", short)) == Identity("audit")
    longer = f"{part({'alg': 'HS512', 'typ': 'JWT'})}.{part({'sub': 'audit'})}.AAAA"
    assert "another algorithm than HS256" in refusal(with_secret(short), longer)


def test_a_secret_shorter_than_any_hash_cannot_be_configured() -> None:
    with pytest.raises(ConfigurationError, match="has 31 bytes; a secret key has 32 or more"):
        with_secret(b"s" * 31)


@pytest.mark.parametrize(
    ("key", "algorithm"), [(RSA_KEY, "ES256"), (curve_key(), "RS256"), (curve_key(), "ES384"), (RSA_KEY, "HS256")]
)
def test_a_public_key_that_does_not_fit_its_algorithm_cannot_be_configured(key: PrivateKey, algorithm: str) -> None:
    with pytest.raises(ConfigurationError, match=f"not a key for {algorithm}"):
        with_public(key, algorithm)


@pytest.mark.parametrize("data", [b"", b"no key", private_bytes(RSA_KEY)], ids=["empty", "text", "private"])
def test_what_is_no_public_key_cannot_be_configured(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(data)
    with pytest.raises(ConfigurationError, match="no public key"):
        TokenProvider(ProviderOptions(token_public_key=f"file://{file}"))


def test_without_a_key_there_are_no_tokens() -> None:
    with pytest.raises(ConfigurationError, match="tokenSecretKey or tokenPublicKey"):
        TokenProvider(ProviderOptions())


# -- time


def test_a_token_counts_until_it_expires() -> None:
    assert identify(with_secret(), token("audit", exp=NOW_S + 1)) == Identity("audit", (NOW_S + 1) * 1000)
    assert "expired 0 s ago" in refusal(with_secret(), token("audit", exp=NOW_S))
    assert "expired 60 s ago" in refusal(with_secret(), token("audit", exp=NOW_S - 60))


def test_a_token_does_not_count_before_its_time() -> None:
    assert identify(with_secret(), token("audit", nbf=NOW_S)) == Identity("audit")
    assert "not valid for another 30 s" in refusal(with_secret(), token("audit", nbf=NOW_S + 30))


def test_clocks_may_differ_by_as_much_as_was_allowed() -> None:
    provider = with_secret(token_clock_skew_s=60)
    assert identify(provider, token("audit", exp=NOW_S - 59)).expires_ms == (NOW_S + 1) * 1000
    assert identify(provider, token("audit", nbf=NOW_S + 60)).role == "audit"
    assert "expired" in refusal(provider, token("audit", exp=NOW_S - 60))
    assert "not valid" in refusal(provider, token("audit", nbf=NOW_S + 61))


@pytest.mark.parametrize("value", ["tomorrow", True, float("nan"), float("inf"), [NOW_S + 60], {}])
@pytest.mark.parametrize("claim", ["exp", "nbf"])
def test_a_time_that_is_none_is_refused(claim: str, value: object) -> None:
    assert f"{claim!r} is no time" in refusal(with_secret(), signed({"sub": "audit", claim: value}))


# -- claims


def test_the_role_is_in_the_claim_that_was_configured() -> None:
    provider = with_secret(token_auth_claim="client_id")
    assert identify(provider, token("ignored", client_id="audit")) == Identity("audit")
    assert "'client_id' names no role" in refusal(provider, token("audit"))


def test_of_several_roles_in_a_claim_the_first_counts() -> None:
    provider = with_secret(token_auth_claim="roles")
    assert identify(provider, token("x", roles=["audit", "billing"])) == Identity("audit")


@pytest.mark.parametrize("value", ["", [], [7], 7, None, {"audit": 1}, True])
def test_a_claim_without_a_role_is_refused(value: object) -> None:
    assert "names no role" in refusal(with_secret(token_auth_claim="roles"), token("x", roles=value))


@pytest.mark.parametrize("role", ["\ud800", "admin\udfff"])
def test_half_of_a_surrogate_pair_is_no_role(role: str) -> None:
    assert "is no text" in refusal(with_secret(), token(role))


@pytest.mark.parametrize("role", [" ", "admin ", "None", "null", "\u200badmin", "\U0001f600"])
def test_a_role_is_the_claim_to_the_letter(role: str) -> None:
    assert identify(with_secret(), token(role)) == Identity(role)


@pytest.mark.parametrize("value", ["broker", ["broker"], ["other", "broker"]])
def test_a_token_made_for_this_broker_counts(value: object) -> None:
    provider = with_secret(token_audience_claim="aud", token_audience="broker")
    assert identify(provider, token("audit", aud=value)) == Identity("audit")


@pytest.mark.parametrize("value", [None, "other", ["other"], [], "brokers", {"broker": 1}])
def test_a_token_made_for_others_is_refused(value: object) -> None:
    provider = with_secret(token_audience_claim="aud", token_audience="broker")
    assert "does not name 'broker'" in refusal(provider, token("audit", aud=value))


def test_without_a_configured_audience_nobody_looks_at_it() -> None:
    assert identify(with_secret(), token("audit", aud="other")) == Identity("audit")


# -- what is no token


@pytest.mark.parametrize(
    "shown",
    [b"secret-text", b"a.b", b"a.b.c", b"a.b.c.d", b"\xff\xfe.\xff.\xff", b".." * 100, b"{}", b"null.null.null"],
)
def test_what_is_no_token_is_refused_and_not_repeated(shown: bytes) -> None:
    why = refusal(with_secret(), shown)
    assert "no token that can be read" in why or "another algorithm" in why
    assert "secret" not in why


def test_nothing_is_no_token() -> None:
    assert "no token was given" in refusal(with_secret(), b"")


def test_a_token_longer_than_any_is_not_looked_at() -> None:
    assert f"{TOKEN_BYTES_MAX} is the most" in refusal(with_secret(), token("a" * TOKEN_BYTES_MAX))

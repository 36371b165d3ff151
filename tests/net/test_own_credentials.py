# SPDX-License-Identifier: Apache-2.0
"""Credentials of a proxy: how they are written, and what brokers are shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import ConfigurationError
from penstock.net.own_credentials import CREDENTIALS_BYTES_MAX, OwnCredentials, own_credentials

if TYPE_CHECKING:
    from pathlib import Path

KEY = "brokerClientAuthentication"


@pytest.mark.parametrize(
    ("method", "parameters", "shown", "header"),
    [
        ("none", "", b"", None),
        ("tls", "tlsCertFile:/a,tlsKeyFile:/b", b"", None),
        ("token", "token:words", b"words", "Bearer words"),
        ("token", json.dumps({"token": "words"}), b"words", "Bearer words"),
        ("basic", "user:pass:word", b"user:pass:word", "Basic dXNlcjpwYXNzOndvcmQ="),
        (
            "basic",
            json.dumps({"userId": "user", "password": "pass:word"}),
            b"user:pass:word",
            "Basic dXNlcjpwYXNzOndvcmQ=",
        ),
    ],
)
def test_credentials_are_written_as_for_pulsars_clients(
    method: str, parameters: str, shown: bytes, header: str | None
) -> None:
    own = own_credentials(KEY, method, parameters)
    assert (own.method, own.read()) == (method, shown)
    assert own.http_headers() == ([("authorization", header)] if header else [])


@pytest.mark.parametrize("written", ["file://{}", "file:{}", '{{"file": "{}"}}', '{{"file": "//{}"}}'])
def test_a_file_is_read_whenever_it_is_needed_and_its_last_content_stays(tmp_path: Path, written: str) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    own = own_credentials(KEY, "token", written.format(file))
    assert own.read() == b"first"
    file.write_text("second")
    assert own.read() == b"second"
    file.unlink()
    assert own.read() == b"second"


def test_a_token_that_would_begin_another_header_is_refused_and_the_last_one_stays(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for words in ("one\nx-original-principal: admin", "one\r\ntwo", "one\0", "\u00e9"):
        with pytest.raises(ConfigurationError, match="the token has line breaks"):
            own_credentials(KEY, "token", json.dumps({"token": words}))
        file.write_text(words)
        with pytest.raises(ConfigurationError, match="has line breaks"):
            own_credentials(KEY, "token", f"file://{file}")
    file.write_text("one")
    own = own_credentials(KEY, "token", f"file://{file}")
    file.write_text("one\ntwo")
    assert own.http_headers() == [("authorization", "Bearer one")]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [("token", ""), ("token", "secret"), ("token", "{secret"), ("token", '["secret"]'), ("basic", "secret")],
)
def test_what_cannot_be_read_is_an_error_without_the_secret(method: str, parameters: str) -> None:
    with pytest.raises(ConfigurationError, match="brokerClientAuthenticationParameters: want token:WORDS") as error:
        own_credentials(KEY, method, parameters)
    assert "secret" not in str(error.value)


def test_a_file_that_is_missing_or_too_large_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        OwnCredentials("token", file=tmp_path / "missing")
    (tmp_path / "large").write_bytes(b"x" * (CREDENTIALS_BYTES_MAX + 1))
    with pytest.raises(ConfigurationError, match="more than 65536 bytes"):
        OwnCredentials("token", file=tmp_path / "large")

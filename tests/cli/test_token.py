# SPDX-License-Identifier: Apache-2.0
"""`penstock token`: what it creates is what the broker's own check accepts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jwt
import pytest

from penstock.cli.exits import Exit
from penstock.cli.main import main
from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    from pathlib import Path


def test_a_broker_lets_in_who_shows_a_created_token_and_nobody_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    key, token, other, old = (str(tmp_path / name) for name in ("key", "token", "other", "old"))
    assert main(["token", "create-secret-key", key]) == Exit.OK
    assert main(["token", "create", "admin", "--secret-key", key, "--expires", "1h", "--out", token]) == Exit.OK
    assert main(["token", "create", "shop", "--secret-key", key, "--out", other]) == Exit.OK
    assert main(["token", "create", "admin", "--secret-key", key, "--expires", "0s", "--out", old]) == Exit.OK
    config = tmp_path / "conf"
    config.write_text(
        "authenticationEnabled=true\nauthorizationEnabled=true\nsuperUserRoles=admin\n"
        "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken\n"
        f"tokenSecretKey=file:{key}\n"
    )
    with BrokerProcess(tmp_path / "data", ["--config", str(config)]) as broker:
        where = ["--admin-url", broker.admin_url, "--url", broker.url]
        assert main(["tenants", "create", "shop", *where, "--token-file", token]) == Exit.OK
        assert main(["produce", "t", "-m", "x", *where, "--token-file", token]) == Exit.OK
        capsys.readouterr()
        for wrong in ([], ["--token-file", other], ["--token-file", old]):
            assert main(["tenants", "create", "more", *where, *wrong]) == Exit.NOT_ALLOWED
            assert main(["produce", "t", "-m", "x", *where, *wrong]) == Exit.NOT_ALLOWED
        assert "--token-file" in capsys.readouterr().err
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_tokens_of_secret_keys_are_those_of_the_standard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str
) -> None:
    key = tmp_path / "key"
    main(["token", "create-secret-key", str(key)])
    assert main(["token", "create", "ann", "--secret-key", str(key), "--algorithm", algorithm, "--claim", "aud=x"]) == 0
    claims = jwt.decode(capsys.readouterr().out.strip(), key.read_bytes(), algorithms=[algorithm], audience="x")
    assert claims["sub"] == "ann"


def test_tokens_of_key_pairs_are_checked_with_the_public_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    private, public = tmp_path / "private", tmp_path / "public"
    assert main(["token", "create-key-pair", str(private), str(public)]) == Exit.OK
    assert main(["token", "create", "ann", "--private-key", str(private)]) == Exit.OK
    key = load_der_public_key(public.read_bytes())
    made = capsys.readouterr().out.strip()
    assert jwt.decode(made, key, algorithms=["RS256"])["sub"] == "ann"  # type: ignore[arg-type]


def test_a_token_is_shown_and_an_expired_one_is_bad_news(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, token, old = (str(tmp_path / name) for name in ("key", "token", "old"))
    main(["token", "create-secret-key", key])
    main(["token", "create", "ann", "--secret-key", key, "--out", token])
    main(["token", "create", "ann", "--secret-key", key, "--expires", "0s", "--out", old])
    assert main(["token", "show", token, "-o", "json"]) == Exit.OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["alg"], shown["sub"]) == ("HS256", "ann")
    assert main(["token", "show", old]) == Exit.BAD_NEWS
    assert "expired" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("create-secret-key {key}", "cannot be created: File exists"),
        ("create ann --secret-key {none}", "cannot be read"),
        ("create ann --secret-key {short}", "has 5 bytes, and HS256 needs 32"),
        ("create ann --secret-key {key} --algorithm RS256", "a secret key has HS256, HS384, HS512"),
        ("create ann --secret-key {key} --expires soon", "such as 30d"),
        ("create ann --secret-key {key} --claim a", "has no ="),
        ("create ann --private-key {key}", "cannot sign with RS256"),
        ("show {short}", "holds no token"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    names = {name: str(tmp_path / name) for name in ("key", "none", "short")}
    main(["token", "create-secret-key", names["key"]])
    (tmp_path / "short").write_bytes(b"short")
    assert main(["token", *words.format(**names).split()]) == Exit.USAGE
    assert said in capsys.readouterr().err

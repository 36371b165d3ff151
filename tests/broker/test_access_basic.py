# SPDX-License-Identifier: Apache-2.0
"""Users and passwords, as Apache's htpasswd and Pulsar's own provider take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.authentication import basic
from penstock.authentication.basic import BasicProvider
from penstock.authentication.credentials import Credentials, Identity, ProviderOptions
from penstock.core.errors import AuthenticationFailed, ConfigurationError
from penstock.testing.tokens import data_url

if TYPE_CHECKING:
    from pathlib import Path

# The password of each is `123456`; by htpasswd's flags.
HASHES = {
    "apr1 (-m)": "$apr1$xyz12345$qRX/glElflL3JeMb2ocXi0",
    "bcrypt (-B)": "$2y$04$NqSsJVLBo4Zk7DxwnQf1SOJCFn3fsiCEyZr1QEFecIlAiSa2wRFwW",
    "sha1 (-s)": "{SHA}fEqNCco3Yq9h5ZUglD3CZJT4lBs=",
    "crypt (-d)": "ab01FAX.bQRSU",
    "sha256 (-2)": "$5$rounds=1000$saltsalt$7KF8SkmGj9DhZLfdZuhi1QbBhMPdOJhzr14.yfuTGL8",
}
USERS = "admin:" + HASHES["apr1 (-m)"] + "\n"


def provider(users: str = USERS) -> BasicProvider:
    return BasicProvider(ProviderOptions(basic_users=data_url(users.encode())))


def identify(users: BasicProvider, shown: str | bytes) -> Identity:
    data = shown.encode() if isinstance(shown, str) else shown
    return users.identify(Credentials("basic", data), 0)


@pytest.mark.parametrize("stored", HASHES.values(), ids=HASHES.keys())
def test_every_hash_that_htpasswd_writes_is_understood(stored: str) -> None:
    users = provider(f"admin:{stored}\n")
    assert identify(users, "admin:123456") == Identity("admin")
    with pytest.raises(AuthenticationFailed, match="unknown user or wrong password"):
        identify(users, "admin:1234567")


def test_users_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / ".htpasswd"
    file.write_text(f"# admins\n{USERS}\nother:{HASHES['sha1 (-s)']}\n")
    for source in (str(file), f"file://{file}"):
        users = BasicProvider(ProviderOptions(basic_users=source))
        assert identify(users, "admin:123456") == Identity("admin")
        assert identify(users, "other:123456") == Identity("other")


@pytest.mark.parametrize(
    "shown", ["nobody:123456", "admin:", ":123456", ":", "ADMIN:123456", "admin:123456:", "admin:\0"]
)
def test_anybody_else_is_refused_with_the_same_words(shown: str) -> None:
    with pytest.raises(AuthenticationFailed, match=r"^unknown user or wrong password$"):
        identify(provider(), shown)


@pytest.mark.parametrize("shown", [b"", b"admin", b"admin:" + b"x" * 1024])
def test_what_is_no_user_with_a_password_is_refused(shown: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match="not user:password"):
        identify(provider(), shown)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(AuthenticationFailed, match="not UTF-8"):
        identify(provider(), b"admin:\xff")


def test_a_password_may_hold_colons() -> None:
    from passlib.hash import apr_md5_crypt

    assert identify(provider(f"admin:{apr_md5_crypt.hash('a:b:c')}"), "admin:a:b:c") == Identity("admin")


def test_what_was_right_once_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    users = provider()
    identify(users, "admin:123456")
    monkeypatch.setattr(basic, "_HASHES", None)
    assert identify(users, "admin:123456") == Identity("admin")
    with pytest.raises(AttributeError):
        identify(users, "admin:1234567")


def test_a_password_that_was_wrong_is_not_remembered_as_right() -> None:
    users = provider()
    for _ in range(2):
        with pytest.raises(AuthenticationFailed):
            identify(users, "admin:wrong")


@pytest.mark.parametrize(
    "line", ["admin", "admin:", "admin:hunter2", " hunter2", ":$apr1$xyz12345$qRX/glElflL3JeMb2ocXi0"]
)
def test_a_line_that_htpasswd_did_not_write_is_named_by_its_number_and_not_repeated(line: str) -> None:
    with pytest.raises(ConfigurationError, match="basicAuthConf line 2 is not user:hash") as caught:
        provider(USERS + line)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("line", [" admin:", "admin :", "\tadmin:", "\u00a0admin:", "\u3000admin:"])
def test_a_user_that_would_become_another_one_without_its_spaces_is_no_user(line: str) -> None:
    with pytest.raises(ConfigurationError, match=r"basicAuthConf line 2: user .* begins or ends with a space"):
        provider(f"{USERS}{line}{HASHES['apr1 (-m)']}")


@pytest.mark.parametrize("mark", ["\v", "\f", "\x1c", "\x85", "\u2028"])
def test_only_a_line_feed_ends_the_line_of_a_user(mark: str) -> None:
    hashed = HASHES["apr1 (-m)"]
    users = provider(f"other{mark}admin:{hashed}\r\n")
    assert identify(users, f"other{mark}admin:123456") == Identity(f"other{mark}admin")
    with pytest.raises(AuthenticationFailed):
        identify(users, "admin:123456")


def test_a_file_without_users_cannot_be() -> None:
    with pytest.raises(ConfigurationError, match="names no user"):
        provider("# nobody\n")
    with pytest.raises(ConfigurationError, match="wants basicAuthConf"):
        BasicProvider(ProviderOptions())

# SPDX-License-Identifier: Apache-2.0
"""The provider `basic`: user and password, checked against a file of Apache's `htpasswd`.

Where: `authentication` makes it if `basic` is enabled.

A hash takes from a millisecond (apr1) to half a second (bcrypt), so this runs on a thread of its own and caches correct
passwords: HTTP sends the password with every request.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Final

from passlib.context import CryptContext

from penstock.authentication import keys
from penstock.authentication.credentials import Credentials, Identity
from penstock.core.errors import AuthenticationFailed, ConfigurationError

if TYPE_CHECKING:
    from penstock.authentication.credentials import ProviderOptions

# Formats of htpasswd, and crypt, which Pulsar accepts too. Clear-text passwords are not accepted.
_HASHES: Final = CryptContext(["bcrypt", "sha256_crypt", "sha512_crypt", "apr_md5_crypt", "des_crypt", "ldap_sha1"])
_REMEMBERED: Final = 256
_UNKNOWN: Final = "unknown user or wrong password"  # an attacker must not learn which
_PASSWORD_BYTES_MAX: Final = 1024


class BasicProvider:
    """Checks `user:password`."""

    slow = True

    def __init__(self, options: ProviderOptions) -> None:
        """Read the users. Raises ConfigurationError."""
        if not options.basic_users:
            raise ConfigurationError("AuthenticationProviderBasic wants basicAuthConf, a file that htpasswd wrote")
        self._hashes = _users(keys.read_source("basicAuthConf", options.basic_users))
        self._salt = secrets.token_bytes(32)
        self._right: dict[bytes, None] = {}  # keyed hashes of correct credentials, oldest first

    def identify(self, credentials: Credentials, now_ms: int) -> Identity:  # noqa: ARG002 - passwords do not expire
        try:
            user, colon, password = credentials.data.decode("utf-8").partition(":")
        except UnicodeDecodeError:
            raise AuthenticationFailed("user and password are not UTF-8") from None
        if not colon or len(credentials.data) > _PASSWORD_BYTES_MAX:
            raise AuthenticationFailed("what was given is not user:password")
        seen = hmac.digest(self._salt, credentials.data, hashlib.sha256)
        if seen not in self._right:
            self._check(user, password)
            self._right[seen] = None
            while len(self._right) > _REMEMBERED:
                self._right.pop(next(iter(self._right), b""), None)
        return Identity(user)

    def _check(self, user: str, password: str) -> None:
        # An unknown user takes as long as a known one.
        stored = self._hashes.get(user) or next(iter(self._hashes.values()))
        try:
            right = _HASHES.verify(password, stored)
        except ValueError:  # a password that the hash refuses, such as one with a zero byte
            right = False
        if not right or user not in self._hashes:
            raise AuthenticationFailed(_UNKNOWN)


def _users(content: bytes) -> dict[str, str]:
    users: dict[str, str] = {}
    try:
        # Only line feeds end lines: the name of a user may have other characters that Python would end lines at.
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise ConfigurationError("basicAuthConf is not a file that htpasswd wrote: it is not UTF-8") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, stored = line.rstrip().partition(":")
        if not colon or not user or _HASHES.identify(stored) is None:
            raise ConfigurationError(
                f"basicAuthConf line {number} is not user:hash as htpasswd -m, -B or -s writes it; "
                f"passwords in clear are not taken"
            )
        if user != user.strip():
            raise ConfigurationError(
                f"basicAuthConf line {number}: user {user!r} begins or ends with a space; take it out of the file"
            )
        users[user] = stored
    if not users:
        raise ConfigurationError("basicAuthConf names no user; add one with htpasswd")
    return users

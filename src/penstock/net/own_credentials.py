# SPDX-License-Identifier: Apache-2.0
"""Credentials of this process itself, which it shows to brokers of others: a proxy, or a broker that replicates.

Parameters are written as for Pulsar's clients and its proxy: `token:WORDS`, `file:///path`, `user:password` for basic,
or JSON such as {"token": "…"}, {"file": "…"} and {"userId": "…", "password": "…"}.

Why a file is read for every connection: the issuer of tokens replaces it before its token expires.
Where: `proxy_app` and `broker.replication` make them; connections to brokers, and requests to their admin ports, ask
for what to show.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core.errors import ConfigurationError
from penstock.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

# Brokers refuse longer ones.
CREDENTIALS_BYTES_MAX: Final = 64 * KIB
_SCHEMES: Final[Mapping[str, str]] = {"token": "Bearer", "basic": "Basic"}


class OwnCredentials:
    """A method of authentication, and what to show."""

    def __init__(self, method: str, *, data: bytes = b"", file: Path | None = None) -> None:
        """Args: data: the bytes to show; or file: their file, read again whenever they are needed.

        Raises:
            ConfigurationError: the file cannot be read.
        """
        self.method = method
        self._file = file
        self._data = data if file is None else _content(file)

    def read(self) -> bytes:
        """Return what to show now. A file that cannot be read any more has its last content."""
        if self._file is not None:
            try:
                self._data = _content(self._file)
            except ConfigurationError as error:
                log.error("brokers are shown what they were shown before: %s", error)  # noqa: TRY400 -- it says all
        return self._data

    @property
    def in_file(self) -> bool:
        """Whether they are in a file, which somebody may renew."""
        return self._file is not None

    def valid_until_ms(self) -> int | None:
        """Return until when a token is valid, in ms since 1970; None: that is not known. Reads its file."""
        data = self._data
        if self._file is not None:
            with contextlib.suppress(ConfigurationError):  # `read` logs it.
                data = _content(self._file)
        return _expiry_ms(data) if self.method == "token" else None

    def http_headers(self) -> list[tuple[str, str]]:
        """Return the headers of a request to a broker's admin port; none with a certificate."""
        scheme = _SCHEMES.get(self.method)
        if scheme is None:
            return []
        data = self.read()
        text = base64.b64encode(data).decode() if self.method == "basic" else data.decode("latin-1")
        return [("authorization", f"{scheme} {text}")]


def own_credentials(key: str, method: str, parameters: str) -> OwnCredentials:
    """Read the settings `KEYPlugin` (a method) and `KEYParameters`. Raises ConfigurationError, without secrets."""
    wants = f"{key}Parameters: want token:WORDS, file:///path, or user:password for basic"
    if method == "none":
        return OwnCredentials("none")
    if method == "tls":
        return OwnCredentials("tls")
    given = _parameters(parameters)
    if method == "basic":
        if "userId" in given and "password" in given:
            return OwnCredentials("basic", data=f"{given['userId']}:{given['password']}".encode())
        if not given and ":" in parameters:
            return OwnCredentials("basic", data=parameters.encode())
    elif parameters.startswith("token:") or "token" in given:
        token = given.get("token") or parameters.removeprefix("token:")
        return OwnCredentials("token", data=_checked(token.strip().encode(), f"{key}Parameters: the token"))
    elif parameters.startswith("file:") or "file" in given:
        path = (given.get("file") or parameters).removeprefix("file:")
        return OwnCredentials("token", file=Path(path.removeprefix("//")))
    raise ConfigurationError(wants)


def _parameters(text: str) -> dict[str, str]:
    if not text.startswith("{"):
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in found.items()}


def _expiry_ms(token: bytes) -> int | None:
    """Return when a JSON web token says that it expires, in ms since 1970; None: it does not, or is no such token."""
    _, _, rest = token.partition(b".")
    claims = rest.partition(b".")[0]
    try:
        expiry_s = json.loads(base64.urlsafe_b64decode(claims + b"=" * (-len(claims) % 4))).get("exp")
    except (ValueError, AttributeError):
        return None
    return int(expiry_s * 1_000) if isinstance(expiry_s, int | float) else None


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(CREDENTIALS_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"the credentials in {path} cannot be read: {error.strerror}") from error
    if len(data) > CREDENTIALS_BYTES_MAX:
        raise ConfigurationError(f"the credentials in {path} have more than {CREDENTIALS_BYTES_MAX} bytes")
    return _checked(data.strip(), f"the token in {path}")


def _checked(token: bytes, which: str) -> bytes:
    """Return a token that can stand in a header. Raises ConfigurationError: a line break would begin another header."""
    if not token.isascii() or not token.decode("ascii").isprintable():
        raise ConfigurationError(f"{which} has line breaks, or other characters than a token has; give one token")
    return token

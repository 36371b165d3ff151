# SPDX-License-Identifier: Apache-2.0
"""Tokens from an OAuth 2.0 server, as the Java client's `AuthenticationOAuth2` gets them: by client credentials.

Why fetched in each process: a task begins with a token that is valid for as long as possible, and the secret is read
from its file at that time, so it can be replaced. A token is kept until shortly before it expires.
Where: `options` makes one from `authParams`; a connection asks for `data()` as it does of any credentials.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.client.credentials import Credentials
from penstock.spark.client.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Mapping

_DISCOVERY: Final = "/.well-known/openid-configuration"
_TIMEOUT_S: Final = 30.0
_ANSWER_BYTES_MAX: Final = 1 << 20
# A token that expires sooner than this is not used for another connection.
_MARGIN_S: Final = 60.0
# Tokens of this process, by what they were asked for, with the time until they are used.
_known: Final[dict[OAuth2, tuple[str, float]]] = {}


class NoToken(ClientError):
    """The server gave no token."""

    def __init__(self, url: str, why: str, *, may_pass: bool = False) -> None:
        self.may_pass = may_pass
        super().__init__(
            f"no token from {url}: {why}; check issuerUrl, audience and the client in the option authParams, and that "
            "executors reach this address"
        )


@dataclass(frozen=True, slots=True)
class OAuth2(Credentials):
    """Client credentials, and where to exchange them for tokens; can be pickled."""

    issuer: str = ""
    audience: str = ""
    scope: str = ""

    def data(self) -> bytes:
        """Return a token that is valid now. Raises UnusableFile, NoToken."""
        now_s = time.monotonic()  # noqa: TID251 -- as sockets do: a credential has no clock to be given one
        token, until_s = _known.get(self, ("", 0.0))
        if now_s >= until_s:
            token, lifetime_s = self._fetch()
            _known[self] = token, now_s + max(0.0, lifetime_s - _MARGIN_S)
        return token.encode()

    def _fetch(self) -> tuple[str, float]:
        client = self._client()
        endpoint = _ask(self.issuer.rstrip("/") + _DISCOVERY).get("token_endpoint")
        if not isinstance(endpoint, str):
            raise NoToken(self.issuer, f"{_DISCOVERY} names no token_endpoint")
        wanted = {
            "grant_type": "client_credentials",
            "client_id": client["client_id"],
            "client_secret": client["client_secret"],
            "audience": self.audience,
            "scope": self.scope,
        }
        answer = _ask(endpoint, urllib.parse.urlencode({name: text for name, text in wanted.items() if text}))
        token, lifetime = answer.get("access_token"), answer.get("expires_in", 0)
        if not isinstance(token, str) or not isinstance(lifetime, int | float):
            raise NoToken(endpoint, "its answer has no access_token")
        return token, lifetime

    def _client(self) -> Mapping[str, str]:
        """Return the client's id and secret, from the file or the option."""
        text = self.secret or Credentials.data(self).decode()
        try:
            said = json.loads(text)
            return {name: str(said[name]) for name in ("client_id", "client_secret")}
        except (ValueError, KeyError, TypeError):
            raise NoToken(
                self.issuer, 'the private key does not read as {"client_id": …, "client_secret": …}'
            ) from None


def of_parameters(said: Mapping[str, str]) -> OAuth2:
    """Return credentials from the parameters of `AuthenticationOAuth2`. Raises KeyError, ValueError."""
    if said.get("type", "client_credentials") != "client_credentials":
        raise ValueError(said["type"])
    key = said["privateKey"]
    if key.startswith("data:"):
        head, _, body = key.partition(",")
        text = base64.b64decode(body).decode() if head.endswith(";base64") else urllib.parse.unquote(body)
        secret, file = text, ""
    else:
        secret, file = "", key.removeprefix("file://").removeprefix("file:")
    return OAuth2(
        "token",
        secret=secret,
        secret_file=file,
        issuer=said["issuerUrl"],
        audience=said.get("audience", ""),
        scope=said.get("scope", ""),
    )


def _ask(url: str, form: str | None = None) -> dict[str, Any]:
    """Send a request, and return the JSON object of its answer. Raises NoToken."""
    if urllib.parse.urlsplit(url).scheme not in {"https", "http"}:
        raise NoToken(url, "want https://…")
    request = urllib.request.Request(url, None if form is None else form.encode())  # noqa: S310 -- checked above
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 -- likewise
            said = json.loads(answer.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        error.close()
        raise NoToken(url, f"it answered {error.code} {error.reason}", may_pass=error.code >= 500) from None
    except (OSError, ValueError) as error:
        raise NoToken(url, str(error), may_pass=isinstance(error, OSError)) from None
    if not isinstance(said, dict):
        raise NoToken(url, "its answer is no JSON object")
    return said

# SPDX-License-Identifier: Apache-2.0
"""Requests to the admin port of a broker. Where: `whatif` sets quotas, `shadow` observes some."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from penstock.core.errors import ConfigurationError, NotFound, PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping

_GROUPS: Final = "/admin/v2/resourcegroups"
_TIMEOUT_S: Final = 60
_ANSWERED_OK: Final = 300


class Admin:
    """The admin port of one broker."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """Raises ConfigurationError."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigurationError(f"--admin-url {url!r} is not a URL: want http://HOST:PORT")
        self.url = url
        self._opener = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port = parts.hostname, parts.port
        bearer = {"Authorization": f"Bearer {token}"} if token else {}
        self._headers = {"Content-Type": "application/json", **bearer}

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 - JSON
        """Return what the broker answers; None without an answer.

        Raises:
            NotFound: the object does not exist there.
            PenstockError: the broker did not answer, or refused.
        """
        connection = self._opener(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, body=sent, headers=self._headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise PenstockError(f"the broker at {self.url} does not answer: {error}") from error
        finally:
            connection.close()
        if response.status == http.HTTPStatus.NOT_FOUND:
            raise NotFound(text[:200])
        if response.status >= _ANSWERED_OK:
            raise PenstockError(f"{self.url}{path} was refused (status {response.status}): {text[:200]}")
        return json.loads(text) if text else None


def group_path(group: str) -> str:
    return f"{_GROUPS}/{quote(group, safe='')}"

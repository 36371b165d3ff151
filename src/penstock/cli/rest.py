# SPDX-License-Identifier: Apache-2.0
"""Requests to the admin port of a cluster, penstock's or Apache Pulsar's.

Why http.client: it is there, and imports in 12 ms. Where: the commands of resources, `why`, `top`, `doctor`.
"""

from __future__ import annotations

import http.client
import json
import select
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias
from urllib.parse import urlencode, urlsplit

from penstock.cli.exits import CommandFailed, Exit, wrong

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from penstock.cli.contexts import Target

Json: TypeAlias = Any

TIMEOUT_S: Final = 60.0
# Brokers of Pulsar name the broker that serves a topic, which may have moved on.
_REDIRECTS_MAX: Final = 5
_PIECE_BYTES: Final = 65_536
_STATUSES: Final = {401: Exit.NOT_ALLOWED, 403: Exit.NOT_ALLOWED, 404: Exit.NOT_FOUND}
_NEXT: Final = {
    401: "; show a token with --token-file, or in the variable PENSTOCK_TOKEN",
    403: "; ask an administrator of the tenant for this permission",
}


class Answer(NamedTuple):
    """A response that is no error."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def value(self) -> Json:
        """Return the body as JSON; text that is none as it is; None if there is no body."""
        if not self.body:
            return None
        try:
            return json.loads(self.body)
        except ValueError:
            return self.body.decode("utf-8", "backslashreplace")


class Rest:
    """One connection to an admin port, kept between requests; use it in a `with`."""

    def __init__(self, target: Target, *, timeout_s: float = TIMEOUT_S) -> None:
        self._url = target.admin_url
        self._cacert = target.cacert
        token = target.token()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s
        self._connections: dict[tuple[str, str], http.client.HTTPConnection] = {}
        _place(self._url)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """Return what a path answers. Raises as `ask`."""
        return self.ask("GET", path, query).value()

    def ask(self, verb: str, path: str, query: Mapping[str, str] | None = None, body: Json = None) -> Answer:
        """Send a request and return its answer.

        Args:
            verb: GET, PUT, POST or DELETE.
            path: with all names quoted.
            query: parameters.
            body: sent as JSON; None: no body.

        Raises:
            CommandFailed: the broker does not answer, or refuses; the message has its reason.
        """
        data = None if body is None else json.dumps(body).encode()
        url, response = self._response(verb, f"{path}?{urlencode(query)}" if query else path, data)
        return _answer(response, b"".join(self._pieces(url, response)))

    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield what a path answers, however long it is, in pieces of up to 64 KiB. Raises as `ask`."""
        url, response = self._response("GET", path, None)
        yield from self._pieces(url, response)

    def _response(self, verb: str, path: str, data: bytes | None) -> tuple[str, http.client.HTTPResponse]:
        """Return the URL of the broker that answers, and its response. Raises as `ask`."""
        url = self._url
        response = self._once(url, verb, path, data)
        for _ in range(_REDIRECTS_MAX):
            if response.status not in {307, 308} or not (location := response.getheader("location")):
                break
            b"".join(self._pieces(url, response))
            url, path = _redirected(url, location)
            response = self._once(url, verb, path, data)
        if response.status >= 300:
            raise _refused(_answer(response, b"".join(self._pieces(url, response))))
        return url, response

    def _once(self, url: str, verb: str, path: str, data: bytes | None) -> http.client.HTTPResponse:
        scheme, place = _place(url)
        connection = self._connection(scheme, place)
        headers = self._headers | ({"Content-Type": "application/json"} if data is not None else {})
        try:
            connection.request(verb, path, body=data, headers=headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise CommandFailed(_unanswered(url, error), Exit.NO_ANSWER) from error

    def _pieces(self, url: str, response: http.client.HTTPResponse) -> Iterator[bytes]:
        """Yield the body. If the caller does not want all of it, the connection ends, for it cannot be used again."""
        done = False
        try:
            while piece := response.read(_PIECE_BYTES):
                yield piece
            if response.length:  # With a size, read does not complain of an early end.
                raise http.client.IncompleteRead(b"", response.length)
            done = True
        except (OSError, http.client.HTTPException) as error:
            raise CommandFailed(_unanswered(url, error), Exit.NO_ANSWER) from error
        finally:
            if not done:
                response.close()
                self._connection(*_place(url)).close()

    def _connection(self, scheme: str, place: str) -> http.client.HTTPConnection:
        kept = self._connections.get((scheme, place))
        if kept is None:
            if scheme == "https":
                kept = http.client.HTTPSConnection(place, timeout=self._timeout_s, context=tls_context(self._cacert))
            else:
                kept = http.client.HTTPConnection(place, timeout=self._timeout_s)
            self._connections[scheme, place] = kept
        elif kept.sock is not None and _is_readable(kept.sock):
            kept.close()  # The broker has closed it, because it was idle; the next request connects again.
        return kept

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections.values():
            connection.close()


def _is_readable(sock: socket.socket) -> bool:
    """Whether something has come where nothing was asked: the end of the connection."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _answer(response: http.client.HTTPResponse, body: bytes) -> Answer:
    return Answer(response.status, {name.lower(): text for name, text in response.getheaders()}, body)


def tls_context(cacert: str) -> ssl.SSLContext:
    """Return how to check the certificate of a cluster. Raises CommandFailed."""
    import ssl

    try:
        return ssl.create_default_context(cafile=cacert or None)
    except OSError as error:
        raise wrong(f"--cacert {cacert} cannot be used: {error}; give certificates in PEM format") from error


def _place(url: str) -> tuple[str, str]:
    """Return scheme and host:port of a URL. Raises CommandFailed."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise wrong(f"--admin-url {url!r} is not a URL: want http://HOST:PORT or https://HOST:PORT")
    return parts.scheme, parts.netloc


def _redirected(url: str, location: str) -> tuple[str, str]:
    """Return base and path of where a broker sends us. Raises CommandFailed: from TLS to an address without."""
    parts = urlsplit(location)
    base = f"{parts.scheme}://{parts.netloc}" if parts.netloc else url
    if url.startswith("https:") and not base.startswith("https:"):
        raise CommandFailed(f"{url} sends us to {base}, which has no TLS; ask its administrator for webServicePortTls")
    return base, parts.path + (f"?{parts.query}" if parts.query else "")


def _refused(answer: Answer) -> CommandFailed:
    said = answer.value()
    reason = said.get("reason") if isinstance(said, dict) else said
    if str(reason or "").lstrip().startswith("<"):
        reason = None  # A page for browsers, of a route that is not there.
    reason = str(reason or http.client.responses.get(answer.status, "refused")).rstrip(".")
    message = f"{reason} (status {answer.status}){_NEXT.get(answer.status, '')}"
    return CommandFailed(message, _STATUSES.get(answer.status, Exit.FAILED))


def _unanswered(url: str, error: Exception) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"the certificate of {url} is not trusted: {error}; give --cacert the certificate of who signed it"
    return f"the broker at {url} does not answer: {str(error) or type(error).__name__}; is --admin-url right?"

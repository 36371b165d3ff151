# SPDX-License-Identifier: Apache-2.0
"""A token comes from an OAuth 2.0 server, for the client that the file of the private key names."""

from __future__ import annotations

import base64
import json
import pickle
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark.client import oauth2
from penstock.spark.options import parse_endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.spark.client.credentials import Credentials

KEY = {"type": "client_credentials", "client_id": "me", "client_secret": "hidden"}


class Server(HTTPServer):
    """A server that gives tokens; `asked` has the forms that it was sent."""

    asked: list[dict[str, list[str]]]
    lifetime_s: int
    status: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer({"token_endpoint": f"{self.server.url}/token"} if self.path.startswith("/.well-known/") else {})

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append(urllib.parse.parse_qs(form))
        token = f"token-{len(self.server.asked)}"
        self._answer({"access_token": token, "expires_in": self.server.lifetime_s}, self.server.status)

    def _answer(self, said: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("penstock.spark.client.oauth2._known", {})
    found = Server(("127.0.0.1", 0), Handler)
    found.asked, found.lifetime_s, found.status = [], 3_600, 200
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def credentials(server: Server, key: str) -> Credentials:
    java = "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2"
    params = {"issuerUrl": server.url, "privateKey": key, "audience": "urn:pulsar"}
    given = {"service.url": "pulsar://h:1", "authPluginClassName": java, "authParams": json.dumps(params)}
    return parse_endpoint(given).credentials


def test_a_token_is_fetched_once_by_the_client_of_the_file_and_kept(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    file.write_text(json.dumps(KEY))
    shown = credentials(server, f"file://{file}")
    assert (shown.method, shown.data()) == ("token", b"token-1")
    assert pickle.loads(pickle.dumps(shown)).data() == b"token-1"
    assert server.asked == [
        {
            "grant_type": ["client_credentials"],
            "client_id": ["me"],
            "client_secret": ["hidden"],
            "audience": ["urn:pulsar"],
        }
    ]


def test_a_token_that_expires_soon_is_not_used_again(server: Server) -> None:
    server.lifetime_s = 30
    key = base64.b64encode(json.dumps(KEY).encode()).decode()
    shown = credentials(server, f"data:application/json;base64,{key}")
    assert [shown.data(), shown.data()] == [b"token-1", b"token-2"]
    assert "hidden" not in repr(shown)


@pytest.mark.parametrize(("status", "may_pass"), [(401, False), (503, True)])
def test_a_server_that_refuses_is_named(server: Server, status: int, may_pass: bool) -> None:
    server.status = status
    shown = credentials(server, "data:," + urllib.parse.quote(json.dumps(KEY)))
    with pytest.raises(oauth2.NoToken, match=f"no token from {server.url}/token: it answered {status}") as told:
        shown.data()
    assert told.value.may_pass is may_pass


def test_a_key_and_parameters_that_do_not_read_are_told(server: Server) -> None:
    with pytest.raises(oauth2.NoToken, match="client_secret"):
        credentials(server, "data:,{}").data()
    with pytest.raises(ValueError, match="issuerUrl"):
        parse_endpoint(
            {"service.url": "pulsar://h:1", "authPluginClassName": "AuthenticationOAuth2", "authParams": "{}"}
        )

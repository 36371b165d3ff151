# SPDX-License-Identifier: Apache-2.0
"""Why clients of a proxy wait: groups, a broker that takes nothing, and who may ask."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from penstock.cli.exits import Exit
from penstock.cli.main import main
from penstock.testing.client import RawClient, Type, entry, frame, send
from penstock.testing.process import BrokerProcess, ProxyProcess
from penstock.wire import codec
from tests.proxy.guarded import ADMIN, GUARDING, WRITER, bearer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

TIMEOUT_S = 50
SLOW = "persistent://acme/slow/t"


def ask(proxy: ProxyProcess, path: str, **headers: str) -> httpx.Response:
    return httpx.get(f"{proxy.admin_url}/admin/v3/why/{path}", timeout=TIMEOUT_S, headers=headers)


def found_when(proxy: ProxyProcess, path: str, reason: str) -> dict[str, Any]:
    """The finding with this reason, as soon as there is one."""
    deadline = time.monotonic() + TIMEOUT_S
    response = ask(proxy, path)
    while time.monotonic() < deadline:
        for finding in response.json().get("findings", ()):
            if finding["reason"] == reason:
                found: dict[str, Any] = finding
                return found
        response = ask(proxy, path)
    raise AssertionError(f"no finding {reason}: {response.text}")


def test_a_group_in_debt_is_explained_to_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    groups = tmp_path / "groups.toml"
    groups.write_text('[slow]\npublishRateInMsgs = 1\nnamespaces = ["acme/slow"]\n')
    config = tmp_path / "proxy.conf"
    config.write_text(f"resourceGroupsFile={groups}\n")
    with (
        BrokerProcess(tmp_path / "data") as broker,
        ProxyProcess(broker.url, ["--config", str(config)], log_path=tmp_path / "p.log") as proxy,
    ):
        admin = f"{broker.admin_url}/admin/v2"
        httpx.put(f"{admin}/tenants/acme", json={"allowedClusters": ["standalone"]}, timeout=TIMEOUT_S)
        httpx.put(f"{admin}/namespaces/acme/slow", timeout=TIMEOUT_S)
        with RawClient(proxy.port, connect=False) as client:
            target = f"127.0.0.1:{broker.port}"
            client.write(frame(Type.CONNECT, client_version="raw", protocol_version=19, proxy_to_broker_url=target))
            assert client.read().kind == Type.CONNECTED
            client.write(frame(Type.PRODUCER, topic=SLOW, producer_id=1, request_id=1))
            assert client.read().kind == Type.PRODUCER_SUCCESS
            for number in range(200):
                client.write(send(1, number, entry(b"x")))
            finding = found_when(proxy, "persistent/acme/slow/t", "group-quota")
            assert finding["limit"] == "publish quota of resource group slow"
            assert finding["numbers"]["quota_messages_per_s"] == 1
            assert finding["numbers"]["held_messages"] > 0
            assert main(["why", SLOW, "--admin-url", proxy.admin_url]) == Exit.BAD_NEWS
            assert "raise publishRateInMsgs or publishRateInBytes of the group" in capsys.readouterr().out
            for path in ("tenants/acme", "namespaces/acme/slow", "producers/127.0.0.1"):
                assert ask(proxy, path).json()["slowed"] is True
            assert ask(proxy, "namespaces/acme/other").status_code == 404
            assert main(["why", "nobody", "--admin-url", proxy.admin_url]) != 0


@contextmanager
def silent_broker() -> Iterator[int]:
    """A broker that answers CONNECT and then reads nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(TIMEOUT_S)
        accepted: list[socket.socket] = []

        def serve() -> None:
            connection, _ = listening.accept()
            accepted.append(connection)
            connection.recv(4_096)
            connection.sendall(codec.connected("silent", 19, 5 * 1024 * 1024, topic_watchers=False))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            thread.join(TIMEOUT_S)
            for connection in accepted:
                connection.close()


def test_a_broker_that_takes_nothing_is_named(tmp_path: Path) -> None:
    with (
        silent_broker() as port,
        ProxyProcess(f"pulsar://127.0.0.1:{port}", log_path=tmp_path / "proxy.log") as proxy,
        RawClient(proxy.port, connect=False) as client,
    ):
        target = f"127.0.0.1:{port}"
        client.write(frame(Type.CONNECT, client_version="raw", protocol_version=19, proxy_to_broker_url=target))
        assert client.read().kind == Type.CONNECTED
        client.write(frame(Type.PRODUCER, topic=SLOW, producer_id=1, request_id=1))

        def publish() -> None:
            try:
                for number in range(1_000):
                    client.write(send(1, number, entry(bytes(100_000))))
            except OSError:
                pass  # The proxy is stopped.

        publishing = threading.Thread(target=publish)
        publishing.start()
        finding = found_when(proxy, "producers/127.0.0.1", "upstream")
        assert finding["limit"] == f"broker pulsar://{target} takes nothing"
        assert finding["numbers"]["unsent_bytes"] > 0
        proxy.kill()
        publishing.join(TIMEOUT_S)


def test_a_proxy_that_authenticates_tells_superusers_only(tmp_path: Path) -> None:
    config = tmp_path / "proxy.conf"
    config.write_text(f"{GUARDING}authorizationEnabled=true\nsuperUserRoles={ADMIN}\n")
    arguments = ["--config", str(config)]
    with ProxyProcess("pulsar://127.0.0.1:1", arguments, log_path=tmp_path / "proxy.log") as proxy:
        assert ask(proxy, "tenants/acme").status_code == 401
        assert ask(proxy, "tenants/acme", **bearer(WRITER)).status_code == 403
        assert ask(proxy, "tenants/acme", **bearer(ADMIN)).status_code == 404  # of no client

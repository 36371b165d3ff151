# SPDX-License-Identifier: Apache-2.0
"""A proxy that authenticates its clients before Apache Pulsar: run by hand, with a Pulsar that has these settings.

    python -m tests.proxy.against_pulsar --settings true > extra.conf      # then start Pulsar with them
    python -m tests.proxy.against_pulsar --checks true pulsar://127.0.0.1:6650 http://127.0.0.1:8080

`true` and `false` say whether brokers check again what the proxy forwards (authenticateOriginalAuthData). It fails if
something is not as it should be. Why not a test: Pulsar takes half a minute to start, and tokens expire in real time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Final

import httpx
import pulsar

from penstock.testing.process import ProxyProcess
from penstock.testing.tokens import token
from tests.proxy.guarded import ADMIN, GUARDING, NAMESPACE, PROXY, STRANGER, TOKENS, TOPIC, WRITER, bearer, client_as

# Tokens of a client are valid for so long, and are looked at every two seconds.
TOKEN_S: Final = 4
PUBLISHING_S: Final = 20


def broker_settings(checks: str) -> str:
    """Return what Pulsar's configuration must contain."""
    return (
        f"{TOKENS}authorizationEnabled=true\nsuperUserRoles={ADMIN},{PROXY}\nproxyRoles={PROXY}\n"
        f"authenticateOriginalAuthData={checks}\nauthenticationRefreshCheckSeconds=2\n"
        "brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken\n"
        f"brokerClientAuthenticationParameters=token:{token(ADMIN)}\n"
    )


def check_admin(proxy: ProxyProcess) -> None:
    """Create the namespace through the proxy, and ask as each role."""
    with httpx.Client(base_url=proxy.admin_url, timeout=60) as http:
        tenant = {"adminRoles": [], "allowedClusters": ["standalone"]}
        http.put("/admin/v2/tenants/shop", json=tenant, headers=bearer(ADMIN))
        http.put(f"/admin/v2/namespaces/{NAMESPACE}", json={}, headers=bearer(ADMIN))
        granted = http.post(
            f"/admin/v2/namespaces/{NAMESPACE}/permissions/{WRITER}", json=["produce", "consume"], headers=bearer(ADMIN)
        )
        assert granted.status_code == 204, granted.text
        # Pulsar answers 401 to a role without permission.
        for role, status in ((None, 401), (STRANGER, 401), (WRITER, 401), (ADMIN, 200), (PROXY, 403)):
            answer = http.get("/admin/v2/namespaces/shop", headers=bearer(role) if role else {})
            assert answer.status_code == status, (role, answer.status_code, answer.text)
        spoofed = http.get("/admin/v2/namespaces/shop", headers=bearer(STRANGER) | {"x-original-principal": ADMIN})
        assert spoofed.status_code == 401, spoofed.text


def check_clients(proxy: ProxyProcess) -> None:
    """Publish as one who may, and as one who may not."""
    client = client_as(proxy, token(WRITER))
    consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
    client.create_producer(TOPIC).send(b"one")
    assert consumer.receive(10_000).data() == b"one"
    client.close()
    client = client_as(proxy, token(STRANGER))
    try:
        client.create_producer(TOPIC)
    except pulsar.AuthorizationError:
        pass
    else:
        raise AssertionError("a stranger may publish")
    finally:
        client.close()


def check_refresh(proxy: ProxyProcess) -> None:
    """Publish for longer than a token is valid, over the same connections."""
    supplied = []

    def supply() -> str:
        supplied.append(time.time())
        return token(WRITER, exp=int(time.time()) + TOKEN_S)

    client = pulsar.Client(
        proxy.url,
        authentication=pulsar.AuthenticationToken(supply),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    consumer = client.subscribe(f"{TOPIC}-long", "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(f"{TOPIC}-long")
    before = proxy.log_path.read_text().count(" closed: ")
    until_s, sent = time.time() + PUBLISHING_S, 0
    while time.time() < until_s:
        producer.send(b"%d" % sent)
        assert consumer.receive(10_000).data() == b"%d" % sent
        sent += 1
        time.sleep(0.2)
    client.create_producer(f"{TOPIC}-other").send(b"looked up after expiry")
    assert proxy.log_path.read_text().count(" closed: ") == before, "a connection was closed meanwhile"
    client.close()
    print(f"{sent} messages in {PUBLISHING_S} s with tokens of {TOKEN_S} s; the client was asked {len(supplied)} times")


def main() -> None:
    """Print the settings, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", choices=["true", "false"])
    parser.add_argument("--checks", choices=["true", "false"], default="true")
    parser.add_argument("urls", nargs="*", metavar="URL")
    arguments = parser.parse_args()
    if arguments.settings:
        print(broker_settings(arguments.settings), end="")
        return
    url, admin_url = arguments.urls
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "proxy.conf"
        settings = GUARDING.replace("CheckSeconds=1", "CheckSeconds=2")
        file.write_text(f"{settings}proxyRoles={PROXY}\nforwardAuthorizationCredentials={arguments.checks}\n")
        command = ["--config", str(file), "--upstream-admin", admin_url]
        with ProxyProcess(url, command, log_path=Path(directory) / "proxy.log") as proxy:
            check_admin(proxy)
            check_clients(proxy)
            check_refresh(proxy)
    print("all as it should be")


if __name__ == "__main__":
    main()

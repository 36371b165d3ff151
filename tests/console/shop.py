# SPDX-License-Identifier: Apache-2.0
"""Brokers that the console is looked at with: a shop with orders, one of whose consumers does not receive."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx
import pulsar

from penstock.testing.process import BrokerProcess
from penstock.testing.tokens import SECRET, data_url, token

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

CHECKOUT: Final = "persistent://shop/orders/checkout"
PARTS: Final = "persistent://shop/orders/parts"
# Names and payloads that would be code, or would turn the text around them, if they were not shown as text.
EVIL_LOCAL: Final = "<img src=x onerror=document.title=1>\u202egnp.exe"
EVIL: Final = f"persistent://shop/orders/{EVIL_LOCAL}"
EVIL_SUBSCRIPTION: Final = "<b onclick=document.title=1>100%+&/?#"
EVIL_PAYLOAD: Final = "<script>document.title=1</script>\u202e"
EVIL_PROPERTY: Final = ("<i>name", "</bdi><script>document.title=1</script>")

ROOT, OWNER, STRANGER = "root", "owner", "stranger"
_PROVIDER: Final = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
_GUARD: Final = (
    f"authenticationEnabled=true\nauthenticationProviders={_PROVIDER}\ntokenSecretKey={data_url(SECRET)}\n"
    f"authorizationEnabled=true\nsuperUserRoles={ROOT}\n"
    # A test takes the subscription of a topic away, which others look for later.
    "brokerDeleteInactiveTopicsEnabled=false\n"
)


@dataclass(frozen=True)
class OpenShop:
    """A broker that asks nobody who they are, and a client of it."""

    broker: BrokerProcess
    client: pulsar.Client

    def subscription(self, topic: str, name: str) -> dict[str, Any]:
        """The statistics of a subscription, from the REST API."""
        path = topic.replace("://", "/", 1)
        stats = httpx.get(f"{self.broker.admin_url}/admin/v2/{path}/stats", trust_env=False, timeout=60).json()
        found: dict[str, Any] = stats["subscriptions"][name]
        return found

    def filled(self, name: str, subscription: str, messages: int) -> str:
        """The name of a new topic whose subscription has so many messages to receive, and no consumer."""
        topic = f"persistent://shop/orders/{name}"
        self.client.subscribe(topic, subscription).close()
        producer = self.client.create_producer(topic)
        for number in range(messages):
            producer.send(b"message %d" % number, properties={"number": str(number)})
        producer.close()
        return topic


@contextmanager
def open_shop(directory: Path, *, hostile: bool = True) -> Iterator[OpenShop]:
    """Yield a running one; its tenants are `hostile`, if they name topics as nobody should."""
    with BrokerProcess(directory / "data") as broker, _administering(broker) as http:
        _create(http, "shop", {})
        _done(http.put("/persistent/shop/orders/parts/partitions", json=3))
        client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        shop = OpenShop(broker, client)
        try:
            kept = [
                client.subscribe(CHECKOUT, "billing", consumer_type=pulsar.ConsumerType.Shared),
                client.subscribe(CHECKOUT, "stuck", receiver_queue_size=1),
                client.subscribe(PARTS, "all"),
            ]
            for topic in (CHECKOUT, PARTS):
                producer = client.create_producer(topic)
                for number in range(30):
                    producer.send(b"order %d" % number)
            if hostile:
                client.subscribe(EVIL, EVIL_SUBSCRIPTION).close()
                name, value = EVIL_PROPERTY
                client.create_producer(EVIL).send(EVIL_PAYLOAD.encode(), properties={name: value})
            yield shop
            del kept
        finally:
            client.close()


@contextmanager
def guarded_shop(directory: Path) -> Iterator[BrokerProcess]:
    """Yield a running broker that checks tokens, with the tenants of an owner and of a stranger."""
    file = directory / "broker.conf"
    file.write_text(_GUARD)
    with (
        BrokerProcess(directory / "data", ["--config", str(file)]) as broker,
        _administering(broker, {"authorization": f"Bearer {token(ROOT)}"}) as http,
    ):
        _create(http, "shop", {"adminRoles": [OWNER]})
        _create(http, "other", {"adminRoles": [STRANGER]})
        for topic in ("shop/orders/checkout", "other/orders/secret"):
            _done(http.put(f"/persistent/{topic}"))
            _done(http.put(f"/persistent/{topic}/subscription/audit"))
        yield broker


def _administering(broker: BrokerProcess, headers: Mapping[str, str] | None = None) -> httpx.Client:
    return httpx.Client(base_url=f"{broker.admin_url}/admin/v2", headers=headers, trust_env=False, timeout=60)


def _create(http: httpx.Client, tenant: str, info: Mapping[str, Any]) -> None:
    _done(http.put(f"/tenants/{tenant}", json={"allowedClusters": ["standalone"], **info}))
    _done(http.put(f"/namespaces/{tenant}/orders"))


def _done(response: httpx.Response) -> None:
    assert response.is_success, response.text

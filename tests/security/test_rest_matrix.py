# SPDX-License-Identifier: Apache-2.0
"""Every route of the admin port, asked by every kind of role: who is answered, who is refused, and what that changes.

What should be stands in docs/reference/authorization.md. A route without its place there fails a test, and so does a
place without its route.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import httpx
import pytest

from penstock.admin.gateway import BrokerGateway
from penstock.admin.routes.policies import OF_NAMESPACES, OF_TOPICS
from penstock.broker.administration import schema_admin
from penstock.broker.composition.administration import administration
from penstock.core.names import TopicName
from penstock.core.position import EARLIEST
from penstock.testing.client import Type
from penstock.testing.tokens import token
from penstock.wire.pulsar_pb2 import Schema
from tests.admin.application import application, before
from tests.net.harness import SMALL
from tests.security.roles import (
    DOCUMENT,
    EVERYBODY,
    GRANTS,
    LETS_IN,
    NO_CREDENTIALS,
    OWNER,
    READER,
    ROOT,
    WRITER,
    administer,
    connected,
    everything,
    guarded,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

    from tests.net.harness import Client, Harness

METHODS: Final = ("GET", "PUT", "POST", "DELETE")
SHORT: Final = {
    "NS": "/admin/v2/namespaces/{tenant}/{namespace}",
    "T": "/admin/v2/{domain}/{tenant}/{namespace}/{topic}",
}
VISITOR: Final = "visitor"  # may consume from one topic


# -- what is asked


@dataclass(frozen=True)
class Route:
    """A route, and how it is asked here."""

    method: str
    path: str
    who: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def short(self) -> str:
        """As the document writes it."""
        for short, long in SHORT.items():
            if self.path.startswith(long):
                return f"{self.method} {short}{self.path.removeprefix(long)}"
        return str(self)

    def url(self, tenant: str) -> str:
        """The path, with names of what exists in this tenant."""
        places = {**PLACES, "tenant": tenant, **OTHER_PLACES.get(self.short, {})}
        path = re.sub(r"{(\w+)}", lambda part: places[part[1]], self.path)
        return path + QUERIES.get(self.short, "")

    @property
    def body(self) -> Any:  # noqa: ANN401 - JSON
        """What is sent along; None for nothing."""
        if self.short in BODIES:
            return BODIES[self.short]
        return POLICIES.get(self.path.rpartition("/")[2]) if self.method in {"PUT", "POST"} else None

    @property
    def answer(self) -> int | None:
        """What those who may are answered where it is not success."""
        return HTTPStatus.CONFLICT if WORKERS.match(self.path) else OTHERWISE.get(self.short)

    @property
    def spoils(self) -> bool:
        """Whether what it does is in the way of the routes that are asked afterwards."""
        policy = self.path.rpartition("/")[2]
        return self.method != "GET" and self.answer is None and policy not in POLICIES.keys() - LASTING


PLACES: Final = {
    "domain": "persistent",
    "namespace": "orders",
    "topic": "t",
    "subscription": "s",
    "role": "guest",
    "bundle": "0x00000000_0x40000000",
    "cluster": "test",
    "broker": "localhost",
    "key": "color",
    "value": "red",
    "group": "gold",
    "hold": "h",
    "producer": "nobody",
    "rest": "anything",
    "allocator": "default",
    "count": "1",
    "nth": "1",
    "wall_ms": "1700000000000",
    "seconds": "1",
    "ledger": "0",
    "entry": "0",
    "coordinator": "0",
    "number": "0",
    "timeout_ms": "0",
    "version": "0",
}
PARTITIONED: Final = {"topic": "p"}
OTHER_PLACES: Final[Mapping[str, Mapping[str, str]]] = {
    "PUT /admin/v2/clusters/{cluster}": {"cluster": "new"},
    "DELETE /admin/v2/clusters/{cluster}": {"cluster": "far"},
    "PUT /admin/v2/tenants/{tenant}": {"tenant": "new"},
    "DELETE /admin/v2/tenants/{tenant}": {"tenant": "empty"},
    "DELETE /admin/v2/resourcegroups/{group}": {"group": "unused"},
    "DELETE /admin/v2/resourcegroup/{group}": {"group": "unused-too"},
    "PUT NS": {"namespace": "new"},
    "DELETE NS": {"namespace": "empty"},
    "DELETE NS/permissions/{role}": {"role": READER},
    "DELETE NS/permissions/{subscription}/{role}": {"subscription": "mine", "role": READER},
    "DELETE T/permissions/{role}": {"role": VISITOR},
    "GET NS/property/{key}": {"key": "size"},
    "DELETE NS/property/{key}": {"key": "size"},
    "PUT T": {"topic": "new"},
    "POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema": PARTITIONED,
    "PUT T/partitions": {"topic": "new"},
    "POST T/partitions": PARTITIONED,
    "DELETE T/partitions": PARTITIONED,
    "POST T/createMissedPartitions": PARTITIONED,
    "POST T/terminate/partitions": PARTITIONED,
    "GET T/partitioned-stats": PARTITIONED,
    "GET T/partitioned-internalStats": PARTITIONED,
    "PUT T/subscription/{subscription}": {"subscription": "new"},
    "POST /admin/v2/brokers/configuration/{key}/{value}": {"key": "brokerMaxConnections", "value": "7"},
}
QUERIES: Final = {
    "GET T/getMessageIdByIndex": "?index=0",
    "POST T/messageTTL": "?messageTTL=7",
    "DELETE T": "?force=true",
    "DELETE T/partitions": "?force=true",
    "DELETE T/properties": "?key=color",
    "DELETE T/subscription/{subscription}": "?force=true",
}
POSITION: Final = {"ledgerId": 0, "entryId": 1}
SCHEMA: Final = {"type": "STRING", "schema": "", "properties": {}}
RATE: Final = {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": 50, "ratePeriodInSecond": 1}
QUOTA: Final = {"limitSize": 1000, "policy": "producer_exception"}
BODIES: Final[Mapping[str, Any]] = {
    "PUT /admin/v2/clusters/{cluster}": {"serviceUrl": "http://elsewhere:8080"},
    "POST /admin/v2/clusters/{cluster}": {"serviceUrl": "http://elsewhere:8080"},
    "POST /admin/v2/clusters/{cluster}/migrate": {"brokerServiceUrl": "pulsar://elsewhere:6650"},
    "PUT /admin/v2/tenants/{tenant}": {"adminRoles": [], "allowedClusters": ["test"]},
    "POST /admin/v2/tenants/{tenant}": {"adminRoles": ["usurper"], "allowedClusters": ["test"]},
    "PUT /admin/v2/resourcegroups/{group}": {"publishRateInMsgs": 5},
    "PUT /admin/v2/resourcegroups/{group}/observed": {"publishRateInMsgs": 5},
    "PUT /admin/v2/resourcegroup/{group}": {"publishRateInmsgs": 5},
    "POST NS/permissions/{role}": ["produce", "consume"],
    "POST NS/permissions/subscription/{subscription}": ["guest"],
    "PUT NS/properties": {"color": "red"},
    "POST T/permissions/{role}": ["produce", "consume"],
    "PUT T/partitions": 3,
    "POST T/partitions": 3,
    "PUT T/backlogSize": POSITION,
    "POST /admin/v3/messages/{domain}/{tenant}/{namespace}/{topic}": {"value": "x"},
    "PUT T/offload": POSITION,
    "PUT T/properties": {"color": "red"},
    "POST T/subscription/{subscription}/resetcursor": POSITION,
    "POST T/subscription/{subscription}/expireMessages": POSITION,
    "PUT T/subscription/{subscription}/properties": {"color": "red"},
    "POST T/subscription/{subscription}/replicatedSubscriptionStatus": True,
    "POST T/{subscription}/dispatchRate": RATE,
    "PUT /admin/v3/transactions/parts/{coordinator}/{number}": {
        "owner": "usurper",
        "startedMs": 0,
        "timeoutMs": 60_000,
        "topics": [],
        "subscriptions": [],
    },
    "POST /admin/v3/transactions/parts/end": {"ends": [[0, 0, True]]},
    "POST /admin/v3/transactions/parts/open": {"numbers": [0]},
    "POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema": {"type": "INT32", "schema": "", "properties": {}},
    "POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/compatibility": SCHEMA,
    "POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/version": SCHEMA,
    "POST /admin/v2/resource-quotas": {"msgRateIn": 5.0},
    "POST /admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}": {"msgRateIn": 5.0},
}
# Policies that shut roles or clusters out, or are carried out in the background.
LASTING: Final = {"subscriptionAuthMode", "deduplication", "deduplicationEnabled", "allowedClusters"}
# By the last part of the path.
POLICIES: Final[Mapping[str, Any]] = {
    **{resource.path: resource.example for resource in (*OF_NAMESPACES, *OF_TOPICS)},
    "replication": ["test"],
    "backlogQuota": QUOTA,
}
OTHERWISE: Final = {
    "GET /status.html": 404,  # statusFilePath is not set
    "POST /admin/v2/brokers/shutdown": 405,  # the broker runs inside this program
    "POST /admin/v2/brokers/configuration/{key}/{value}": 412,  # and was made without settings
    "DELETE /admin/v2/brokers/configuration/{key}": 412,
    "GET /admin/v2/brokers/{cluster}/{broker}/ownedNamespaces": 404,  # of another broker
    "GET /admin/v3/why/producers/{producer}": 404,
    "GET /admin/v3/transactions/transactionMetadata/{coordinator}/{number}": 404,  # none is open
    "POST /admin/v3/transactions/abortTransaction/{coordinator}/{number}": 404,
    "GET T/ledger/{ledger}/entry/{entry}": 404,  # of another topic
    "DELETE T/delayed/ledger/{ledger}/entry/{entry}": 404,
    "PUT T/offload": 405,
    "GET T/getMessageIdByIndex": 412,  # there are indexes only where brokerEntryMetadataInterceptors says so
}
WORKERS: Final = re.compile(r"/admin/v[23]/(worker|worker-stats|functions|sources?|sinks?)(/|$)")


def documented() -> Iterator[Route]:
    """The routes as the document has them."""
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            head, slash, tail = cells[0].strip("`").partition("/")
            path = SHORT.get(head, head) + slash + tail
            yield from (Route(method, path, who) for method, who in zip(METHODS, cells[1:], strict=True) if who)


def served() -> set[str]:
    """The routes as the application has them, those of included routers too."""
    found = set()
    pending: list[object] = [*application().routes]
    while pending:
        route = pending.pop()
        included = getattr(route, "effective_route_contexts", None)
        if included is not None:
            pending += included()
            continue
        path = re.sub(r":\w+}", "}", cast("str", getattr(route, "path", None)))
        found |= {f"{method} {path}" for method in cast("set[str]", getattr(route, "methods", None)) - {"HEAD"}}
    return found


ROUTES: Final = tuple(documented())


# -- where it is asked


@dataclass
class Asking:
    """A broker, the application in front of it, and tenants to ask about."""

    harness: Harness
    client: httpx.AsyncClient
    writer: Client
    tenants: int = 0

    async def __call__(self, route: Route, tenant: str, role: str | None) -> httpx.Response:
        """Call a route as this role."""
        headers = {"Authorization": f"Bearer {token(role)}"} if role is not NO_CREDENTIALS else {}
        body = {"json": route.body} if route.body is not None else {}
        return await self.client.request(route.method, route.url(tenant), headers=headers, **body)

    async def furnish(self) -> str:
        """Make a tenant like all others here, with everything in it that routes are asked about."""
        self.tenants += 1
        tenant = f"shop{self.tenants}"
        namespace, broker = f"{tenant}/orders", self.harness.broker
        await administer(self.harness, tenant, OWNER, f"{tenant}/empty", {})
        await administer(self.harness, tenant, OWNER, namespace, GRANTS)
        await broker.policies.update_namespace(namespace, partial(_dress, namespace))
        topic = TopicName.parse(f"persistent://{namespace}/t")
        await administration(broker).topics.create(topic, {"color": "blue"})
        await administration(broker).topics.create_partitioned(topic.parse(f"persistent://{namespace}/p"), 2)
        await administration(broker).subscriptions.create(topic, "s", EARLIEST)
        await administration(broker).schemas.post(topic, schema_admin.schema_of("STRING", "", {}))
        schema = {"name": "s", "schema_data": b"", "type": Schema.String}
        await self.writer.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=str(topic), producer_id=0, schema=schema)
        self.writer.publish(SMALL, SMALL, SMALL)
        await self.writer.receipts(3)
        await self.writer.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=0)
        return tenant


def _dress(namespace: str, policies: dict[str, Any]) -> None:
    """What there is to be read and taken away."""
    granted = policies["auth_policies"]
    granted["destination_auth"] = {f"persistent://{namespace}/t": {VISITOR: ["consume"]}}
    granted["subscription_auth_roles"] = {"mine": [READER, OWNER, ROOT]}
    policies["properties"] = {"size": "large"}


@asynccontextmanager
async def asking(directory: Path) -> AsyncIterator[Asking]:
    """Real requests to the real application, on the test's loop."""
    async with guarded(directory) as harness:
        broker = harness.broker
        await administration(broker).clusters.create("far", {"serviceUrl": "http://far:8080"})
        await administration(broker).tenants.create("empty", {"adminRoles": [OWNER], "allowedClusters": ["test"]})
        for group in ("gold", "unused", "unused-too"):
            await administration(broker).resource_groups.put(group, {"publishRateInMsgs": 5})
        app = before(BrokerGateway(lambda: administration(broker), broker.loop, lambda _: ["one 1\n"]))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
            yield Asking(harness, client, await connected(harness, ROOT))


# -- the matrix


def test_every_route_has_its_place_in_the_document_and_every_place_its_route() -> None:
    assert sorted(map(str, ROUTES)) == sorted(served())


async def test_a_route_answers_those_who_may_and_changes_nothing_for_others(tmp_path: Path) -> None:
    faults: list[str] = []
    async with asking(tmp_path) as ask:
        shared = await ask.furnish()
        for route in ROUTES:
            tenant = await ask.furnish() if route.spoils else shared
            before = everything(ask.harness, f"{tenant}/")
            for role in EVERYBODY:
                if role not in LETS_IN[route.who]:
                    status = (await ask(route, tenant, role)).status_code
                    if status != (401 if role is NO_CREDENTIALS else 403):
                        faults.append(f"{route.short}: {role} is answered {status}")
            if everything(ask.harness, f"{tenant}/") != before:
                faults.append(f"{route.short}: changed something for those who may not")
            allowed = [role for role in EVERYBODY if role in LETS_IN[route.who]]
            answers = [await ask(route, tenant, role) for role in allowed]
            if answers and not (
                answers[0].is_success if route.answer is None else answers[0].status_code == route.answer
            ):
                faults.append(f"{route.short}: {allowed[0]} is answered {answers[0].status_code} {answers[0].text}")
            faults += [
                f"{route.short}: {role} is answered {answer.status_code}"
                for role, answer in zip(allowed, answers, strict=True)
                if answer.status_code in {401, 403}
            ]
    assert not faults, "\n".join(faults)


async def test_a_grant_on_one_topic_is_none_on_its_namespace_or_on_another_topic(tmp_path: Path) -> None:
    async with asking(tmp_path) as ask:
        tenant = await ask.furnish()
        for route in ROUTES:
            if route.method == "GET" and route.who.startswith(("consume", "lookup")):
                of_it = not route.who.endswith("in the namespace") and "{topic}" in route.path
                mine = of_it and "topic" not in OTHER_PLACES.get(route.short, {})
                assert ((await ask(route, tenant, VISITOR)).status_code != HTTPStatus.FORBIDDEN) is mine, route.short


async def test_head_is_for_those_whom_get_is_for(tmp_path: Path) -> None:
    async with asking(tmp_path) as ask:
        tenant = await ask.furnish()
        for role, status in ((NO_CREDENTIALS, 401), (WRITER, 403), (OWNER, 200)):
            assert (await ask(Route("HEAD", SHORT["NS"], ""), tenant, role)).status_code == status


OF_COMPACTION = [
    ("DELETE", "/admin/v2/persistent/{tenant}/orders/t/subscription/__compaction?force=true"),
    ("POST", "/admin/v2/persistent/{tenant}/orders/t/subscription/__compaction/skip_all"),
    ("POST", "/admin/v2/persistent/{tenant}/orders/t/subscription/__compaction/skip/1"),
    ("POST", "/admin/v2/persistent/{tenant}/orders/t/subscription/__compaction/expireMessages/1"),
    ("POST", "/admin/v2/persistent/{tenant}/orders/t/subscription/__compaction/resetcursor/1"),
    ("POST", "/admin/v2/namespaces/{tenant}/orders/unsubscribe/__compaction"),
    ("POST", "/admin/v2/namespaces/{tenant}/orders/clearBacklog/__compaction"),
]


@pytest.mark.parametrize(("method", "path"), OF_COMPACTION)
async def test_who_may_only_consume_does_not_touch_what_compaction_stands_on(
    tmp_path: Path, method: str, path: str
) -> None:
    async with asking(tmp_path) as here:
        tenant = await here.furnish()
        topic = await here.harness.broker.topics.load(TopicName.parse(f"persistent://{tenant}/orders/t"))
        await topic.open_subscription("__compaction", durable=True, start=0)
        headers = {"Authorization": f"Bearer {token(READER)}"}
        answer = await here.client.request(method, path.format(tenant=tenant), headers=headers)
        assert answer.status_code == 403, answer.text
        assert topic.subscriptions["__compaction"].cursor.mark_delete == -1

# SPDX-License-Identifier: Apache-2.0
"""Administration over HTTP, of the broker that the whole session shares."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import httpx
import pulsar
import pytest
import pytest_asyncio

from penstock.admin.gateway import BrokerGateway
from penstock.broker.composition.administration import administration
from tests.admin.application import before
from tests.net.harness import Harness, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from penstock.testing.process import BrokerProcess


@pytest_asyncio.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    """A broker of the test's own, with the limits of `running`."""
    async with running(tmp_path) as harness:
        yield harness


@pytest.fixture
async def admin(harness: Harness) -> AsyncIterator[httpx.AsyncClient]:
    """A caller of the admin port of `harness`, without a socket."""
    gateway = BrokerGateway(lambda: administration(harness.broker), harness.broker.loop, lambda _snapshot: [])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(before(gateway)), base_url="http://broker") as client:
        yield client


@pytest.fixture
def rest(broker: BrokerProcess) -> Iterator[httpx.Client]:
    """A caller of the admin port."""
    with httpx.Client(base_url=broker.admin_url, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture
def namespace(rest: httpx.Client) -> str:
    """`tenant/namespace`, new, with nothing in it."""
    tenant = f"tenant-{uuid.uuid4().hex[:12]}"
    assert rest.put(f"/admin/v2/tenants/{tenant}", json={"allowedClusters": ["standalone"]}).status_code == 204
    assert rest.put(f"/admin/v2/namespaces/{tenant}/orders").status_code == 204
    return f"{tenant}/orders"


@pytest.fixture
def topic(rest: httpx.Client, namespace: str) -> str:
    """`tenant/namespace/topic`, persistent, new and empty."""
    assert rest.put(f"/admin/v2/persistent/{namespace}/t").status_code == 204
    return f"{namespace}/t"


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    """A client of the session's broker."""
    client = pulsar.Client(broker.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
    yield client
    client.close()

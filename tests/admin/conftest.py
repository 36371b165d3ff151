# SPDX-License-Identifier: Apache-2.0
"""Administration over HTTP, of the broker that the whole session shares."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing.process import BrokerProcess


@pytest.fixture
def rest(broker: BrokerProcess) -> Iterator[httpx.Client]:
    """A caller of the admin port."""
    with httpx.Client(base_url=broker.admin_url, trust_env=False, timeout=30) as client:
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

# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of a proxy before a broker, both on one loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from penstock.testing.certificates import Certificate
from tests.broker.throttled import throttled
from tests.loops import loop_of
from tests.net.harness import close_clients
from tests.proxied.harness import KEEP_ALIVE_NS, proxied
from tests.proxied.tenants import Tenant

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run in virtual time; those marked `real` on a real loop."""
    return loop_of(item)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """One certificate for all tests: making a key takes a moment."""
    return Certificate.make(tmp_path_factory.mktemp("tls"))


@pytest_asyncio.fixture(autouse=True)
async def _no_client_outlives_its_test() -> AsyncIterator[None]:
    yield
    await close_clients()


@pytest_asyncio.fixture(params=["broker", "proxy"])
async def tenant(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Tenant]:
    """A tenant of a broker whose memory and disk the test tells."""
    async with throttled(tmp_path, keep_alive_ns=KEEP_ALIVE_NS) as (broker, sensors):
        if request.param == "broker":
            yield Tenant(broker, sensors, None)
        else:
            async with proxied(broker, authenticates=False) as proxy:
                yield Tenant(broker, sensors, proxy)

# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the transport's tests."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from penstock.testing.certificates import Certificate
from tests.loops import loop_of
from tests.net.harness import Harness, Transport, close_clients, running

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


@pytest.fixture(scope="session")
def server_tls(certificate: Certificate) -> ssl.SSLContext:
    """What the broker's TLS port uses."""
    return certificate.server()


@pytest_asyncio.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    """A broker of the test's own, with the limits of `running`."""
    async with running(tmp_path) as harness:
        yield harness


@pytest.fixture(params=[None, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["plain", "tls12", "tls13"])
def transport(
    request: pytest.FixtureRequest, tmp_path: Path, certificate: Certificate, server_tls: ssl.SSLContext
) -> Transport:
    """Each way in which clients may connect."""
    version: ssl.TLSVersion | None = request.param
    return Transport(tmp_path, server_tls, None if version is None else certificate.client(version))


@pytest_asyncio.fixture(autouse=True)
async def _no_client_outlives_its_test() -> AsyncIterator[None]:
    yield
    await close_clients()

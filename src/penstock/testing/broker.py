# SPDX-License-Identifier: Apache-2.0
"""A Pulsar broker for tests, as pytest fixtures: after `pip install penstock`, `def test_x(pulsar_url)` works.

Why: a test that needs a broker should not need a container, a JVM or half a minute. One broker starts in a fraction of
a second and serves the whole test session; each test uses a topic of its own (`pulsar_topic`). Why imports are late:
pytest loads this module in every project that has penstock installed; the broker is imported for the first test that
needs it.
Where: pytest finds the fixtures by the package's entry point; without pytest, `penstock.testing.serving` has a context
manager.

The broker runs in a thread of the test process, on free ports of the loopback address, in a temporary directory. With
`--pulsar-broker=process`, or the ini option of that name, it runs in a process of its own, which survives a crash of
the tests and does not share their interpreter. To change its settings, override the fixture `pulsar_settings`:

    @pytest.fixture(scope="session")
    def pulsar_settings() -> dict[str, str]:
        return {"brokerDeduplicationEnabled": "true"}
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

import pytest

from penstock.testing.serving import RunningBroker, serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["RunningBroker", "serving"]

OPTION: Final = "pulsar_broker"
IN_PROCESS, OWN_PROCESS = "in-process", "process"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and ini option `pulsar-broker`."""
    text = f"where the broker of the Pulsar fixtures runs: {IN_PROCESS} (a thread of the tests) or {OWN_PROCESS}"
    parser.getgroup("penstock").addoption(
        "--pulsar-broker", dest=OPTION, choices=(IN_PROCESS, OWN_PROCESS), default=None, help=text
    )
    parser.addini(OPTION, text, default=IN_PROCESS)


@pytest.fixture(scope="session")
def pulsar_settings() -> Mapping[str, str]:
    """Settings of the broker, by key; override it to change them."""
    return {}


@pytest.fixture(scope="session")
def pulsar_broker(request: pytest.FixtureRequest, pulsar_settings: Mapping[str, str]) -> Iterator[RunningBroker]:
    """A running broker shared by all tests of the session: `url` for clients, `admin_url` for the admin API."""
    where = request.config.getoption(OPTION) or request.config.getini(OPTION)
    if where not in {IN_PROCESS, OWN_PROCESS}:
        raise pytest.UsageError(f"{OPTION}={where}: want {IN_PROCESS} or {OWN_PROCESS}")
    with serving(pulsar_settings, own_process=where == OWN_PROCESS) as broker:
        yield broker


@pytest.fixture(scope="session")
def pulsar_url(pulsar_broker: RunningBroker) -> str:
    """The service URL for clients: `pulsar.Client(pulsar_url)`."""
    return pulsar_broker.url


@pytest.fixture(scope="session")
def pulsar_admin_url(pulsar_broker: RunningBroker) -> str:
    """The URL of the admin API."""
    return pulsar_broker.admin_url


@pytest.fixture
def pulsar_topic() -> str:
    """The full name of a topic that no other test uses."""
    return f"persistent://public/default/test-{uuid.uuid4().hex}"

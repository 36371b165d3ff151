# SPDX-License-Identifier: Apache-2.0
"""Fixtures that several folders use."""

from __future__ import annotations

import gc
import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Nothing that collecting 12,000 tests makes is garbage. The collector would look through it again and again: for half
# of the time of the collection, and for a quarter of that of the tests.
gc.disable()


def pytest_configure() -> None:
    """Let programs that tests start be interrupted, also where this one was started to ignore it: by `nohup … &`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # Ignoring is inherited, a handler is not.
        signal.signal(signal.SIGINT, lambda *_: None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one worker run all tests that share a fixture of their module: each worker would make its own."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None and "module" in _scopes(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def _scopes(item: pytest.Item) -> set[str]:
    """The scopes of the fixtures of a test."""
    assert isinstance(item, pytest.Function)
    return {fixtures[-1].scope for fixtures in item._fixtureinfo.name2fixturedefs.values()}  # noqa: SLF001


def pytest_collection_finish() -> None:
    """Collect what tests leave, and nothing older."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One real broker that the whole session shares; each test uses topics of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A real broker for one test, which may stop, kill and restart it."""
    with BrokerProcess(tmp_path / "data") as process:
        yield process

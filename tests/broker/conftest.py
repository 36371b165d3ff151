# SPDX-License-Identifier: Apache-2.0
"""Tests of the broker run in virtual time; those marked `real` on a real loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.loops import loop_of
from tests.net.harness import Harness, running

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    import pytest


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A hook of pytest-asyncio."""
    return loop_of(item)


@pytest_asyncio.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    """A broker of the test's own, with the limits of `running`."""
    async with running(tmp_path) as harness:
        yield harness

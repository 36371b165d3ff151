# SPDX-License-Identifier: Apache-2.0
"""Tests of the proxy's parts run in virtual time; those marked `real` on a real loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.loops import loop_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    import pytest


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A hook of pytest-asyncio."""
    return loop_of(item)

# SPDX-License-Identifier: Apache-2.0
"""Which event loop a test runs on: a virtual one, unless it says that it needs the real thing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.testing.loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def loop_of(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """For pytest-asyncio: the loop of a test."""
    return {"real": asyncio.new_event_loop} if item.get_closest_marker("real") else {"virtual": VirtualLoop}

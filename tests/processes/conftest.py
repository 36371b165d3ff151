# SPDX-License-Identifier: Apache-2.0
"""Time for tests that start processes: several brokers and clients, each of which waits for others up to `WITHIN_S`."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Some of these waits, one after another. On two busy cores a test takes half a minute.
TIMEOUT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))

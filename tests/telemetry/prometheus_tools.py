# SPDX-License-Identifier: Apache-2.0
"""Prometheus' own programs, for tests of what `ops` has for it."""

from __future__ import annotations

import os
import shutil

import pytest


def find_tool(name: str) -> str:
    """Path of `promtool` or `prometheus`; without it the test is skipped, or fails in CI."""
    path = shutil.which(name)
    if path is None:
        if os.environ.get("REQUIRE_TOOLS"):
            pytest.fail(f"{name} is missing, and CI must have it")
        pytest.skip(f"there is no {name} on the PATH: apt-get install prometheus")
    return path

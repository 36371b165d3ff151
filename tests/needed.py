# SPDX-License-Identifier: Apache-2.0
"""Programs of others that some tests need. Without one a test is skipped, and says which; in CI it fails."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def find_program(name: str, package: str) -> str:
    """The path of a program, which this package of Debian has."""
    path = shutil.which(name)
    return path or skip(f"there is no {name} on the PATH: apt-get install {package}")


def skip(sentence: str) -> NoReturn:
    """Skip this test for lack of what the sentence names, with how to install it; fail where REQUIRE_TOOLS is set."""
    if os.environ.get("REQUIRE_TOOLS"):
        pytest.fail(f"{sentence}; CI must have it")
    pytest.skip(sentence)

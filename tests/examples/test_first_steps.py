# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/guide/first-steps.md after the installation; CI does all in an empty home (`first_steps`)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.first_steps import check


@pytest.mark.real
def test_the_first_steps_print_what_the_page_shows(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    check(tmp_path, {**os.environ, "PATH": path, "HOME": str(tmp_path)}, first=1)

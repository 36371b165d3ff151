# SPDX-License-Identifier: Apache-2.0
"""One short seed of `make jepsen`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.jepsen.faulty_disk import CANNOT
from tests.jepsen.run import play

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.real
@pytest.mark.timeout(600)
@pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT))
def test_what_real_processes_promise_holds_whatever_happens_to_them(tmp_path: Path) -> None:
    result = play(1, 3.0, tmp_path)
    assert result.violations == []
    assert result.messages > 0
    assert sum(result.faults.values()) >= 3

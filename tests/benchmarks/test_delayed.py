# SPDX-License-Identifier: Apache-2.0
"""What a million delayed messages take, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize("subscriptions", ["1", "1000"])
def test_a_million_messages_due_in_order_take_less_than_four_bytes_each(subscriptions: str) -> None:
    command = [sys.executable, "-m", "benchmarks.delayed", "--case", "in order", "1000000", subscriptions]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert figures["bytes each"] < 4
    assert abs(figures["accounted each"] - figures["bytes each"]) < 1
    assert figures["bytes per subscription"] < 2_000 or subscriptions == "1"

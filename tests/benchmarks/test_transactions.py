# SPDX-License-Identifier: Apache-2.0
"""The benchmark of transactions, a small one, against a real broker."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from benchmarks import transactions
from benchmarks.brokers import penstock

if TYPE_CHECKING:
    import pytest


def test_transactions_of_all_sizes_are_counted_and_others_go_on_beside_open_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"WARM_UP_S": 0.1, "BACKLOG": 2_000, "OPEN": 40, "SIZES": (1, 10)}.items():
        monkeypatch.setattr(transactions, name, value)
    with penstock(settings=transactions.SETTINGS) as address:
        found = asyncio.run(transactions.measured(address, argparse.Namespace(seconds=0.5, clients=2)))
    assert found["1 message: transactions/s"] > 0
    assert found["10 messages: p99 ms"] >= found["10 messages: p50 ms"] > 0
    assert min(rate for name, rate in found.items() if name.endswith("entries/s")) > 0

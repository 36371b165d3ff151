# SPDX-License-Identifier: Apache-2.0
"""The flood of `make flood`, small enough for every day: 50 connections against a real broker process."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import flood


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_flood_of_large_frames_keeps_every_bound_and_loses_nothing(*, tls: bool) -> None:
    options = argparse.Namespace(connections=50, mebibytes=64, seed=72, stall_s=0.0)
    with flood.subject(tls=tls, hard=False) as target:
        rows = list(flood.flood(target, options))
    assert [row for row in rows if not row.kept] == []


def test_a_proxy_whose_broker_stands_still_keeps_every_bound_and_loses_nothing() -> None:
    options = argparse.Namespace(connections=50, mebibytes=64, seed=72, stall_s=1.0)
    with flood.subject(tls=False, hard=False, proxied=True) as target:
        rows = list(flood.flood(target, options))
    assert [row for row in rows if not row.kept] == []

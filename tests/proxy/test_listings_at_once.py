# SPDX-License-Identifier: Apache-2.0
"""Many lists of topics at once through a proxy before a real broker, for clients that are connected to the broker."""

from __future__ import annotations

import pytest

from benchmarks.listing_loads import LOADS, Figures, Sizes, permits_held
from benchmarks.listings import SMALL, asked
from benchmarks.report import PENSTOCK
from tests.processes.cluster import until

pytestmark = pytest.mark.real

SIZES = Sizes(topics=1_000, topic_bytes=100, connections=60, watchers=30, watched=100, watched_bytes=300, unread_s=0)
WITHIN_S = 60


def test_lists_and_watchers_are_answered_and_every_permit_is_returned() -> None:
    with asked(PENSTOCK, SMALL, proxied=True, connected=True) as proxy:
        for load in ("unread", "watchers"):
            figures = Figures()
            LOADS[load](proxy, SIZES, figures)
            assert figures.failed == []
        until(lambda: not permits_held(proxy), WITHIN_S)

# SPDX-License-Identifier: Apache-2.0
"""Reads of entries out of their order that several subscriptions share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.broker.subscriptions.replay_reads import ReplayReads

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.subscriptions.consumer import Reads
    from penstock.storage.entry_log import EntryLog


class NeverDone:
    """Reader threads that do not come to it."""

    def in_thread(self, _read: Callable[[], Any]) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("wanted", "asked"), [([3, 5, 9], [3, 5, 9]), ([3, 4, 5], [3, 5]), ([5, 7, 12], [5]), ([4, 5], [4, 5])]
)
async def test_a_read_that_was_joined_tells_nothing_of_what_it_was_not_asked_for(
    wanted: list[int], asked: list[int]
) -> None:
    reads = ReplayReads(cast("EntryLog", None), cast("Reads", NeverDone()), 1, lambda _: None)
    under_way = reads.read([3, 5, 9])
    mine = reads.read(wanted)
    assert (mine is under_way) is (wanted[0] in {3, 5, 9})
    assert reads.asked_for(mine, wanted) == asked

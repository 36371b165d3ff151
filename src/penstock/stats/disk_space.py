# SPDX-License-Identifier: Apache-2.0
"""How much space the file system of the data directory has left.

Where: the broker's tick calls `tick`; snapshots have the last measurement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.units import NS_PER_S
from penstock.stats.measuring import Measuring

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

# A disk of 500 MB/s writes 5 GB in this time.
INTERVAL_NS: Final = 10 * NS_PER_S


class DiskUse(NamedTuple):
    """A file system, in bytes."""

    size: int
    free: int  # for this user: some are reserved for the administrator


class DiskSpace(Measuring[DiskUse]):
    """Measures the disk."""

    __slots__ = ()

    def __init__(
        self, measure: Callable[[], DiskUse], in_thread: Callable[[Callable[[], DiskUse]], Future[DiskUse]]
    ) -> None:
        """Args: measure: may block. in_thread: calls it in a thread."""
        super().__init__("the free space of the disk", INTERVAL_NS, measure, in_thread)

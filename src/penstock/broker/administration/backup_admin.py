# SPDX-License-Identifier: Apache-2.0
"""Keeps the segments of all brokers' logs while `penstock backup` copies them (docs/adr/0118).

Where: a route of the admin port asks. Nothing here waits for the metadata: a backup asks while that is frozen.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from penstock.broker.elsewhere import Elsewhere
    from penstock.broker.log_reads import LogReads
    from penstock.storage.entry_log import EntryLog
    from penstock.storage.keeping import Kept


class BackupAdmin:
    """The part of a backup that brokers do. Called on the event loop."""

    def __init__(self, *, log: EntryLog, reads: LogReads, broker: int, elsewhere: Elsewhere) -> None:
        self._log = log
        self._reads = reads
        self._broker = broker
        self._elsewhere = elsewhere

    async def keep(self, seconds: int) -> list[dict[str, Any]]:
        """Keep all segments for so long at least; returns what each broker keeps.

        Raises ServiceNotReady if a broker does not serve.
        """
        inode, kept = await self._reads.in_thread(partial(self._keep, seconds * NS_PER_S))
        own = {"broker": self._broker, "inode": inode, "hold": kept.hold, "segments": kept.segments}
        others = await self._elsewhere.ask_each("POST", f"/admin/v2/brokers/backup?seconds={seconds}")
        return [own, *(one for answer in others for one in answer)]

    def _keep(self, duration_ns: int) -> tuple[int, Kept]:
        return self._log.directory.stat().st_ino, self._log.keep(duration_ns)

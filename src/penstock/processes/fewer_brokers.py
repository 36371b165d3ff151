# SPDX-License-Identifier: Apache-2.0
"""Finds out whether a data directory has brokers that a start leaves out.

Why apart from `removal`, which moves their topics: few starts need that, and each imports this.
Where: `app.run` and `supervisor.run`, before they open anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.net.clock import SystemClock
from penstock.settings.limits import log_limits
from penstock.storage.directory import DataDirectory, is_data_directory
from penstock.storage.files import OsFiles

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.settings import Settings


def leave_out_brokers(settings: Settings, data_dir: Path, brokers: int) -> None:
    """Move the topics of brokers that are not started any more to those that are. Blocks.

    Raises:
        ConfigurationError: they cannot be moved; nothing was changed.
        PersistenceFailed, ReadFailed, MetadataFailed: the disk failed; the next start goes on.
    """
    directory, files = DataDirectory(data_dir), OsFiles()
    try:
        left_out = is_data_directory(data_dir) and directory.brokers_from(brokers, files)
    except OSError:
        return  # The start says what is wrong with the directory.
    if left_out:
        from penstock.processes.moving import Disk  # noqa: PLC0415 -- see above
        from penstock.processes.removal import leave_only  # noqa: PLC0415

        leave_only(Disk(directory=directory, files=files, limits=log_limits(settings), clock=SystemClock()), brokers)

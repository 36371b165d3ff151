# SPDX-License-Identifier: Apache-2.0
"""Reading the stored configuration from beside a broker that may be running.

Why: `penstock config` tells what is in force without stopping, asking or disturbing anybody. SQLite lets others read
while one process writes; the read is over within a millisecond, so that the writer's next checkpoint does not wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import apsw

from penstock.core.errors import ConfigurationError, MetadataFailed
from penstock.storage.directory import DataDirectory, is_data_directory
from penstock.storage.shared_tables import configuration_rows

if TYPE_CHECKING:
    from pathlib import Path

_BUSY_MS: Final = 1_000


def read_configuration(data_dir: Path) -> dict[str, str]:
    """The settings that were changed while a broker ran on this directory, by key; changes nothing.

    Raises:
        ConfigurationError: it is not a data directory.
        MetadataFailed: it cannot be read.
    """
    if not is_data_directory(data_dir):
        raise ConfigurationError(f"{data_dir} is not a penstock data directory: it has no FORMAT file")
    path = DataDirectory(data_dir).metadata
    if not path.exists():
        return {}
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            db.set_busy_timeout(_BUSY_MS)
            return dict(configuration_rows(db))
        finally:
            db.close()
    except (apsw.Error, LookupError, ValueError) as error:
        raise MetadataFailed(f"{path} cannot be read: {type(error).__name__}: {error}") from error

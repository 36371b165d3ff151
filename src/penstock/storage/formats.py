# SPDX-License-Identifier: Apache-2.0
"""The formats of what is stored, one number for each part that can change by itself.

Why in one place: whoever upgrades asks what changes, and a part that is forgotten here would be found by its damage.
Where: the admin port says those of a running broker, and `penstock upgrade --check` compares.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.storage.blocks import BLOCK_MAGIC
from penstock.storage.directory import FORMAT_VERSION
from penstock.storage.schema import SHARED_MIGRATIONS, TOPIC_DATA_MIGRATIONS
from penstock.storage.sealed_index import SCHEMA_VERSION


class Formats(NamedTuple):
    """A version of each part; a later one has a larger number."""

    directory: int  # FORMAT: which files there are
    shared_catalog: int  # meta.sqlite
    topic_catalog: int  # broker-N/topics.sqlite
    log_index: int  # broker-N/index, built again from the log if it has another version
    log: int  # the blocks of broker-N/log


# What this penstock writes. The last migration of the shared catalog is a function, beside the scripts.
NEWEST: Final = Formats(
    FORMAT_VERSION, len(SHARED_MIGRATIONS) + 1, len(TOPIC_DATA_MIGRATIONS), SCHEMA_VERSION, BLOCK_MAGIC[-1]
)

# SPDX-License-Identifier: Apache-2.0
"""Names the version of records that cannot be used.

Why: fields are only ever added, so records of newer brokers are read, without what is new. But a newer broker may also
say something in a known field that has no meaning here, such as another scope. Whoever finds such records refused is
to see that this program is too old, and not that records are forged.

Where: the reasons in the table `refused_records`.
"""

from __future__ import annotations

from typing import Final

from penstock.accounting.records import RECORD_VERSION

# Reasons are rows of a table: whoever forges records chooses among so many versions at most.
VERSION_MAX: Final = 100


def with_version(fault: str, version: int | None) -> str:
    """Return why a record was refused, with its version if that is newer than ours."""
    if version is None or version <= RECORD_VERSION:
        return fault
    return f"{fault}, version {version if version <= VERSION_MAX else 'impossible'}"

# SPDX-License-Identifier: Apache-2.0
"""The tables of transactions: what the end of one has to look at."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from penstock.storage.files import OsFiles
from penstock.storage.metadata import open_database
from penstock.storage.schema import TOPIC_DATA_MIGRATIONS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("table", ["transaction_parts", "pending_acks", "transactions"])
def test_a_transaction_that_ends_looks_at_no_rows_of_others(tmp_path: Path, table: str) -> None:
    """Ten thousand may be open, each with many rows, and all changes of metadata wait for this one."""
    with closing(
        open_database(tmp_path / "topics.sqlite", TOPIC_DATA_MIGRATIONS, OsFiles(), exclusive=False, vfs=None)
    ) as db:
        asked = f"explain query plan delete from {table} where coordinator = ? and number = ?"
        plan = " ".join(str(row) for row in db.execute(asked, (0, 1)))
    assert "SEARCH" in plan
    assert "SCAN" not in plan

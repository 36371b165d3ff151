# SPDX-License-Identifier: Apache-2.0
"""The tables of transactions: what the end of one has to look at."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from penstock.broker.transactions.open_transactions import forgotten_below
from penstock.core.transaction_id import TransactionId
from penstock.storage.files import OsFiles
from penstock.storage.metadata import open_database
from penstock.storage.schema import TOPIC_DATA_MIGRATIONS
from penstock.storage.transaction_rows import (
    COMMITTED,
    OPEN,
    EndedTransaction,
    StoredTransaction,
    TransactionPart,
    end,
    put_open,
    put_parts,
    stored_transactions,
)

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


def test_a_small_transaction_takes_a_statement_for_each_row_and_no_others(tmp_path: Path) -> None:
    """Each gives the interpreter away and takes it back from the loop; those that change nothing cost as much."""
    transaction = StoredTransaction(TransactionId(0, 7), OPEN, started_ms=1, timeout_ms=2, owner="")
    statements: list[str] = []

    def note(_cursor: object, statement: str, _values: object) -> bool:
        statements.append(statement.split(" values", maxsplit=1)[0])
        return True

    with closing(
        open_database(tmp_path / "topics.sqlite", TOPIC_DATA_MIGRATIONS, OsFiles(), exclusive=False, vfs=None)
    ) as db:
        db.exec_trace = note
        put_open(db, transaction)
        put_parts(db, [TransactionPart(1, "", transaction.id, 0)], None)
        end(db, EndedTransaction(transaction._replace(status=COMMITTED), has_pending=False))
        db.exec_trace = None
        left = stored_transactions(db)
    assert statements == [
        "insert or replace into transactions",
        "insert or ignore into transaction_parts",
        "delete from transaction_parts where coordinator = ? and number = ?",
        "insert or replace into transactions",
    ]
    assert [one.status for one in left.transactions] == [COMMITTED]
    assert not left.parts


def test_outcomes_are_forgotten_by_the_hundred() -> None:
    assert [forgotten_below(number) for number in (1, 10_099, 10_100, 10_101)] == [0, 0, 100, 0]

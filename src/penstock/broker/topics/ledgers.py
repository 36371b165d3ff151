# SPDX-License-Identifier: Apache-2.0
"""Repairs differences between catalog and log after a crash: ledgers without a topic, topics without entries.

Where: called once when the broker starts, before clients connect.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.broker.topics.topic_states import ledgers_in_use

if TYPE_CHECKING:
    from penstock.core.errors import PenstockError
    from penstock.storage.catalog import Catalog
    from penstock.storage.entry_log import EntryLog

log = logging.getLogger(__name__)

# At most this many missing segments are logged with the names of their topics.
MISSING_NAMED_MAX: Final = 100


def name_missing(catalog: Catalog, entry_log: EntryLog) -> None:
    """Log the names of the topics of which entries are missing; the log itself knows only ledgers."""
    pieces = entry_log.missing.listed()
    if not pieces:
        return
    names = {record.ledger_id: record.name for record in catalog.topics()}
    for one in pieces[:MISSING_NAMED_MAX]:
        if one.ledger_id in names:
            log.error(
                "topic %s: entries %d to %d are missing, for the log lacks a file; they stay in the backlogs until it "
                "is back", names[one.ledger_id], one.first_entry, one.end_entry - 1,
            )  # fmt: skip


def drop_unknown_ledgers(catalog: Catalog, entry_log: EntryLog) -> None:
    """Delete ledgers that no topic uses. Blocks on the disk.

    If the log has ledgers that this catalog never assigned, the catalog is an older copy or a new one, and unknown
    ledgers may be the only data. Then nothing is deleted, now or at a later start, and no ledger id is reused.
    """
    unknown = entry_log.ledgers() - ledgers_in_use(catalog)
    if not unknown:
        return
    if all(map(catalog.was_given_out, unknown)):
        log.info("giving up %d ledgers of topics that were deleted right before the last stop", len(unknown))
        for ledger_id in sorted(unknown):
            entry_log.drop(ledger_id)
        return
    log.error(
        "meta.sqlite is older than the log: of %d ledgers it does not know which topics have them; they are kept. "
        "Stop penstock and put the meta.sqlite in place that belongs to this log, if you have it",
        len(unknown),
    )
    kept = unknown | catalog.kept_ledgers()
    catalog.keep_ledgers(kept, _logged)
    catalog.skip_ledger_ids(max(kept) + 1, _logged)


def _logged(error: PenstockError | None) -> None:
    if error is not None:
        log.error("what to keep of the log could not be stored: %s", error)

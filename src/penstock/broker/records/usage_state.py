# SPDX-License-Identifier: Apache-2.0
"""What is stored about counting usage as a whole: cycles, and the broker's own sum.

The sum survives restarts as the counters of topics do, and is stored with the number of the cycle that it goes up to.
A topic's stored counters say how much of them no earlier sum has. So after a crash the sum goes on where it was,
with what was stored and not summed, and without what was summed and not recorded.

Where: `usage` reads it at the start, and stores it in each cycle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from penstock.accounting.totals import NOTHING, Totals

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from penstock.storage.catalog_rows import Document


@dataclass(slots=True)
class UsageState:
    """What is stored about counting as a whole.

    Attributes:
        epoch: of the last run.
        first_ledger: topics with smaller ledger ids are older than counting.
        first_cycle: counters that were stored in an earlier cycle are of an earlier time when counting was switched on.
        recorded: the last cycle whose counters are all recorded.
        since_ms: the last `counters_since_ms` that was given out.
        counting: whether the last run counted.
        summed: the last cycle whose counters are all in `total`.
        total: what all topics have done since `total_since_ms`.
        total_since_ms: 0 if nothing was summed yet.
    """

    epoch: int = 0
    first_ledger: int = 0
    first_cycle: int = 0
    recorded: int = 0
    since_ms: int = 0
    counting: bool = False
    summed: int = 0
    total: Totals = NOTHING
    total_since_ms: int = 0

    def document(self) -> Document:
        return {**asdict(self), "total": list(self.total)}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> UsageState:
        return cls(**{**document, "total": Totals(*document.get("total", ()))})

    def begin_total(self, since_ms: int) -> None:
        """Sum from now on what is stored by later cycles than the recorded ones."""
        self.summed, self.total, self.total_since_ms = self.recorded, NOTHING, since_ms

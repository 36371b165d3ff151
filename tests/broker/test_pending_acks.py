# SPDX-License-Identifier: Apache-2.0
"""What dispatch asks of pending acknowledgements, against a plain set of entries."""

from __future__ import annotations

import random

import pytest

from penstock.broker.subscriptions.pending_acks import PendingAcks
from penstock.core.transaction_id import TransactionId
from penstock.storage.cursor import Cursor
from penstock.storage.transaction_rows import PendingAck


@pytest.mark.parametrize("seed", range(20))
def test_the_next_entry_that_no_transaction_holds_is_found_however_many_are_held(seed: int) -> None:
    chance = random.Random(seed)
    pending, held = PendingAcks(Cursor()), set[int]()
    at = 0
    for number in range(chance.randrange(1, 8)):
        at += chance.randrange(3)
        last = at + chance.choice([0, 1, 2, 100, 5_000])
        if chance.random() < 0.3:  # A batch of which all messages are acknowledged.
            ack, last = PendingAck((), {at: (2, [0])}, -1), at
        else:
            ack = PendingAck(((at, last),), {}, -1)
        pending.add(TransactionId(0, number), ack)
        held.update(range(at, last + 1))
        at = last + 1
    for asked in [0, *(chance.randrange(at + 2) for _ in range(50))]:
        assert pending.first_free(asked) == next(one for one in range(asked, at + 10) if one not in held)

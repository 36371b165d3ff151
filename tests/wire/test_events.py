# SPDX-License-Identifier: Apache-2.0
"""Runs of publishes, and parts of them."""

from __future__ import annotations

from penstock.core.transaction_id import TransactionId
from penstock.wire.events import OfTransaction, PublishRun
from penstock.wire.pulsar_pb2 import CommandSend


def run() -> PublishRun:
    """Four entries of two producers, each with its own bytes between others that are no entries."""
    return PublishRun(
        b"..aaa.bb....cccc.d.",
        producer_ids=[1, 2, 1, 2],
        sequence_ids=[10, 20, 11, 21],
        offsets=[2, 6, 12, 17],
        lengths=[3, 2, 4, 1],
        message_counts=[1, 5, 1, 7],
        highest=[0, 24, 0, 27],
        corrupt=[2],
        refused={3: "no"},
        rare={1: CommandSend(producer_id=2, sequence_id=20)},
        unsealed=[0, 3],
        transactions=[OfTransaction(0, 2, TransactionId(0, 7)), OfTransaction(3, 4, TransactionId(0, 8))],
    )


def test_a_part_of_a_run_has_its_own_bytes_and_all_that_is_said_of_its_rows() -> None:
    part = run().pick([1, 3])
    assert [bytes(part.data[o : o + n]) for o, n in zip(part.offsets, part.lengths, strict=True)] == [b"bb", b"d"]
    assert len(part.data) == 3
    assert (part.producer_ids, part.sequence_ids) == ([2, 2], [20, 21])
    assert (part.message_counts, part.highest) == ([5, 7], [24, 27])
    assert (part.corrupt, part.refused, part.unsealed, list(part.rare)) == ([], {1: "no"}, [1], [0])
    assert part.transaction_rows() == {0: TransactionId(0, 7), 1: TransactionId(0, 8)}


def test_two_parts_are_charged_no_more_than_the_whole() -> None:
    whole = run()
    parts = [whole.pick(rows) for rows in ([0, 2], [1, 3])]
    assert sum(len(part.data) for part in parts) <= len(whole.data)
    assert [bytes(part.data) for part in parts] == [b"aaacccc", b"bbd"]

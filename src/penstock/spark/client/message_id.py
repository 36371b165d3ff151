# SPDX-License-Identifier: Apache-2.0
"""Where a message is: ledger, entry, and its place in the entry's batch.

Why not `core.Position`: a broker knows entries; who reads messages has to be able to stop in the middle of a batch.
Where: readers start at one and stop at another; the offsets of Spark's checkpoints are made of them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from penstock.wire.codec import MessageIdData


class MessageId(NamedTuple):
    """A place in a topic; orders as its tuple does. A message outside a batch has index 0."""

    ledger_id: int
    entry_id: int
    batch_index: int = 0

    def __str__(self) -> str:
        index = f":{self.batch_index}" if self.batch_index else ""
        return f"{self.ledger_id}:{self.entry_id}{index}"


# Before whatever there is: where an empty topic begins and ends.
EARLIEST: Final = MessageId(-1, -1, 0)


def signed(number: int) -> int:
    """A number from a field without a sign that holds one with a sign."""
    return number - 2**64 if number >= 2**63 else number


def message_id_of(serialized: bytes) -> MessageId:
    """Return the message id that a client has serialized. Raises ValueError if it is none."""
    found = MessageIdData()
    try:
        found.ParseFromString(serialized)
    except DecodeError as error:
        raise ValueError(f"{serialized!r} is no message id: {error}") from None
    return MessageId(signed(found.ledgerId), signed(found.entryId), max(0, found.batch_index))

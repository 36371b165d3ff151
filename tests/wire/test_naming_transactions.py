# SPDX-License-Identifier: Apache-2.0
"""Entries of a transaction that do not name it in their metadata are found, whatever those before them looked like."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.checksum import seal_of
from penstock.core.transaction_id import TransactionId
from penstock.wire import metadata
from penstock.wire.client import entries
from penstock.wire.codec import MessageMetadata
from penstock.wire.errors import ProtocolError

OURS = TransactionId(3, 70_000)
OTHERS = (TransactionId(3, 70_001), TransactionId(2, 70_000), None)

numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**63))
said = st.fixed_dictionaries(
    {"producer_name": st.sampled_from(["p", "standalone-0-7"]), "sequence_id": numbers, "publish_time": numbers},
    optional={"partition_key": st.sampled_from(["a", "b", "(\xb0\x01"]), "num_messages_in_batch": st.integers(1, 300)},
)
named = st.sampled_from([OURS, OURS, OURS, *OTHERS])


def entry_of(fields: dict[str, Any], transaction: TransactionId | None) -> bytes:
    about = MessageMetadata(**fields)
    if transaction is not None:
        about.txnid_most_bits, about.txnid_least_bits = transaction
    return entries.entry(about, b"payload")


def corrected(stored: list[bytes]) -> dict[int, bytes | None]:
    lengths = [len(one) for one in stored]
    offsets = list(accumulate(lengths, initial=0))[:-1]
    return dict(metadata.naming_transaction(b"".join(stored), offsets, lengths, OURS))


@given(sent=st.lists(st.tuples(said, named), max_size=12))
def test_each_entry_names_its_transaction_afterwards(sent: list[tuple[dict[str, Any], TransactionId | None]]) -> None:
    found = corrected([entry_of(*one) for one in sent])
    assert list(found) == [row for row, (_, transaction) in enumerate(sent) if transaction != OURS]
    for row, corrected_entry in found.items():
        assert corrected_entry is not None
        assert corrected_entry[:6] == seal_of(corrected_entry[6:])
        assert corrected_entry.endswith(b"payload")
        about = metadata.decode(corrected_entry)
        assert metadata.transaction_of(about) == OURS
        assert (about.producer_name, about.sequence_id) == (sent[row][0]["producer_name"], sent[row][0]["sequence_id"])


@given(sent=st.lists(said, min_size=1, max_size=3), noise=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255))))
def test_metadata_that_looks_alike_is_read(sent: list[dict[str, Any]], noise: list[tuple[int, int]]) -> None:
    """One byte of it after the other is another one: what protobuf reads decides."""
    stored = [entry_of(one, OURS) for one in sent for _ in range(2)]
    for place, value in noise:
        stored.append(other := bytearray(stored[0]))  # type: ignore[arg-type]
        other[10 + place % (len(other) - 17)] = value
        other[:6] = seal_of(bytes(other[6:]))
    found = corrected([bytes(one) for one in stored])
    for row, one in enumerate(stored):
        try:
            names_it = metadata.transaction_of(metadata.decode(bytes(one))) == OURS
        except ProtocolError:
            assert found[row] is None
        else:
            assert (row not in found) is names_it

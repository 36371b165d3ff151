# SPDX-License-Identifier: Apache-2.0
"""Checks how many messages a SEND claims that its entry holds.

Why: permits, rates, backlogs and batch indexes count messages, and consumers use the number in the entry's metadata. If
a producer's SEND has another number, consumers lose permits that are never returned. A number of two thousand million
would make a walk over batch indexes take minutes. Where: `runs`, for entries that claim several messages; all others
are taken for one message each, unless their number is limited (`counts_in`): reading the metadata of each entry
costs as much as storing it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from penstock.core.checksum import SEAL_BYTES, SEAL_MAGIC
from penstock.core.units import KIB
from penstock.wire.bounds import count_fields
from penstock.wire.codec import MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.checksum import Buffer

# A message in a batch takes at least 4 bytes for the size of its metadata, and 2 for metadata with the payload size.
MEMBER_BYTES_MIN: Final = 6
# Up to this number is accepted unchecked: it does no harm, because a client's FLOW is at least as large.
ANYWAY: Final = 1_024
# More than a batch of the default maxMessageSize can hold uncompressed. Its ack set has 16,384 words, which is their
# bound in a command (`bounds`).
MESSAGES_MAX: Final = 1 << 20
# The highest compression ratio: zstd on identical bytes reaches about 30,000.
COMPRESSION_MAX: Final = 32 * KIB
# Metadata is read field by field where keys or delays matter; if it is longer than this, its fields are counted first.
METADATA_WALKED_BYTES_MAX: Final = 64 * KIB
METADATA_FIELDS_MAX: Final = 10_000
# With which num_messages_in_batch begins; it may also be a part of something else.
_COUNT_TAG: Final = bytes((MessageMetadata.DESCRIPTOR.fields_by_name["num_messages_in_batch"].number << 3,))


class Implausible(ValueError):
    """The metadata of an entry cannot be true; the message says why."""


def message_count(metadata: bytes, payload_bytes: int) -> int:
    """Return how many messages an entry holds, according to its metadata.

    Raises:
        Implausible: the metadata cannot be read, or its payload cannot hold so many.
    """
    try:
        said = MessageMetadata.FromString(metadata)
    except DecodeError:
        raise Implausible(f"the metadata of a batch, {len(metadata):,} bytes, cannot be read") from None
    count = said.num_messages_in_batch
    if count <= ANYWAY or count * MEMBER_BYTES_MIN <= payload_bytes:
        return max(count, 1)
    unpacked_bytes = min(said.uncompressed_size, payload_bytes * COMPRESSION_MAX) if said.compression else payload_bytes
    if count > MESSAGES_MAX or count * MEMBER_BYTES_MIN > unpacked_bytes:
        raise Implausible(
            f"num_messages_in_batch is {count:,}: at least {MEMBER_BYTES_MIN} bytes each do not fit into a payload of "
            f"{unpacked_bytes:,} bytes, and {MESSAGES_MAX:,} messages are allowed"
        )
    return count


def counts_in(
    data: Buffer, offsets: Sequence[int], lengths: Sequence[int], counts: Sequence[int] | None
) -> Sequence[int] | None:
    """Return how many messages each entry of `data` holds, also those whose SEND says that they hold one.

    `counts` are those of the SENDs; None: one each.
    """
    # Budget: 1 µs per entry that is no batch.
    found: list[int] | None = None
    view = memoryview(data)
    for row, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        if counts is None or counts[row] <= 1:
            count = _count_in(view[offset : offset + length])
            if count > 1:
                found = found or (list(counts) if counts is not None else [1] * len(offsets))
                found[row] = count
    return counts if found is None else found


def _count_in(entry: memoryview) -> int:
    start = SEAL_BYTES + 4 if bytes(entry[:2]) == SEAL_MAGIC else 4
    stop = start + int.from_bytes(entry[start - 4 : start], "big")
    metadata = bytes(entry[start:stop])
    if _COUNT_TAG not in metadata:
        return 1
    try:
        return message_count(metadata, len(entry) - stop)
    except Implausible:
        return 1  # No client can take it for more.


def check_fields(metadata: bytes) -> None:
    """Check that metadata has at most `METADATA_FIELDS_MAX` fields. Raises Implausible."""
    if count_fields(metadata, METADATA_FIELDS_MAX) > METADATA_FIELDS_MAX:
        raise Implausible(
            f"the metadata of an entry, {len(metadata):,} bytes, has more than {METADATA_FIELDS_MAX:,} fields"
        )

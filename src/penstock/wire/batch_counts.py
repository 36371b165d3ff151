# SPDX-License-Identifier: Apache-2.0
"""What a SEND says of how many messages its entry holds, and whether that can be true.

Why: permits, rates, backlogs and batch indexes count messages, and whoever consumes goes by the number in the entry's
metadata. A producer whose SEND says something else leaves consumers without permits that nobody ever gives back; one
that says two thousand million lets anything that walks through the indexes of a batch walk for minutes.
Where: `runs`, for entries that say that they hold several messages; all others are one message each.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from penstock.core.units import KIB
from penstock.wire.bounds import count_fields
from penstock.wire.codec import MessageMetadata

# A message in a batch takes at least the size of its metadata (4 bytes) and a metadata that says how long it is (2).
MEMBER_BYTES_MIN: Final = 6
# So few do no harm, true or not: as many fit into one FLOW of any client.
ANYWAY: Final = 1_024
# As many as a batch of the default maxMessageSize can hold uncompressed, and some more; an ack set of it has 16,384
# words, which is their bound in a command (`bounds`).
MESSAGES_MAX: Final = 1 << 20
# Whatever a batch of so many messages is compressed with: zstd's best on bytes that are all the same, about 30,000.
COMPRESSION_MAX: Final = 32 * KIB
# Metadata is walked field by field where keys or delays matter; beyond this its fields are counted first.
METADATA_WALKED_BYTES_MAX: Final = 64 * KIB
METADATA_FIELDS_MAX: Final = 10_000


class Implausible(ValueError):
    """What an entry says of itself cannot be; the message says why."""


def message_count(metadata: bytes, payload_bytes: int) -> int:
    """How many messages an entry holds, by its metadata.

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


def check_fields(metadata: bytes) -> None:
    """Return if metadata has no more fields than can be walked. Raises Implausible."""
    if count_fields(metadata, METADATA_FIELDS_MAX) > METADATA_FIELDS_MAX:
        raise Implausible(
            f"the metadata of an entry, {len(metadata):,} bytes, has more than {METADATA_FIELDS_MAX:,} fields"
        )

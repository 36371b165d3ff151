# SPDX-License-Identifier: Apache-2.0
"""What producers, consumers and watchers take of the memory budget, for as long as they are there.

Why: a name may have 4 KiB and metadata 64, and a client may have any number of producers. Each is charged what it is
kept as, to one row of the budget; when that is used up, newcomers are refused in words that say so, and clients try
again later.
Where: `producers`, `consumers` and `discovery` charge whom they let in; the session gives back when it forgets them.

The fixed prices were measured with tracemalloc: 400 to 600 bytes for each of them, and 1.5 KiB more for a subscription
that goes with its consumer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import TooManyRequests
from penstock.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.subscriptions.key_shared import KeySharing
    from penstock.governance.memory_row import MemoryRow

MEMBER_BYTES: Final = KIB
OWN_SUBSCRIPTION_BYTES: Final = 2 * KIB
# A pair of metadata beside its two texts: its place in a dictionary.
PAIR_BYTES: Final = 104
# A range of slots, as it was asked for and as it is looked up.
RANGE_BYTES: Final = 240
# A point of a consistent hash ring: its slot twice, and whose it is.
POINT_BYTES: Final = 12


class Member(Protocol):
    """Whoever is charged."""

    charged_bytes: int


class SessionsFull(TooManyRequests):
    """The memory for producers, consumers and watchers is used up."""

    def __init__(self, who: str, *, nbytes: int, memory: MemoryRow) -> None:
        super().__init__(
            f"{who[:100]} takes {nbytes:,} bytes, and producers, consumers and watchers have {memory.used_bytes:,} of "
            f"{memory.size_bytes:,} in use; try again when others are closed, or raise sessionsMB"
        )


def texts_bytes(*texts: str) -> int:
    """What texts take in memory: one to four bytes a character, and some 50 each."""
    return sum(map(sys.getsizeof, texts))


def pairs_bytes(pairs: Mapping[str, str]) -> int:
    """What metadata or properties take in memory."""
    return sum(sys.getsizeof(key) + sys.getsizeof(value) + PAIR_BYTES for key, value in pairs.items())


def sharing_bytes(sharing: KeySharing, points: int) -> int:
    """What a Key_Shared consumer's part of the keys takes."""
    return RANGE_BYTES * len(sharing.ranges) if sharing.sticky else POINT_BYTES * points


def charge(memory: MemoryRow, member: Member, who: str, nbytes: int) -> None:
    """Charge a member that is about to be let in. Raises SessionsFull."""
    if not memory.try_take(nbytes):
        raise SessionsFull(who, nbytes=nbytes, memory=memory)
    member.charged_bytes += nbytes


def give_back(memory: MemoryRow, member: Member) -> None:
    """It is gone. May be called again."""
    memory.give_back(member.charged_bytes)
    member.charged_bytes = 0

# SPDX-License-Identifier: Apache-2.0
"""Memory charges of producers, consumers and watchers while they exist.

Why: a name may have 4 KiB and metadata 64 KiB, and a client may create any number of producers. Each is charged for
what is kept, to one row of the memory budget. When that is used up, new ones are refused with an explanation, and
clients retry.
Where: `producers`, `consumers` and `discovery` charge; the session releases the charge when it removes them.

The fixed amounts were measured with tracemalloc: 400 to 600 bytes each, and 1.5 KiB more for a subscription that is
removed with its consumer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import TooManyRequests
from penstock.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.subscriptions.key_ranges import KeySharing
    from penstock.governance.budget import Row

OBJECT_BYTES: Final = KIB
OWN_SUBSCRIPTION_BYTES: Final = 2 * KIB
# Overhead of a metadata pair beside its two strings.
PAIR_BYTES: Final = 104
# A hash range, as requested and as looked up.
RANGE_BYTES: Final = 240
# A point of a consistent hash ring.
POINT_BYTES: Final = 12


class Charged(Protocol):
    """An object with a memory charge."""

    charged_bytes: int


def texts_bytes(*texts: str) -> int:
    """Memory of strings: one to four bytes per character, and about 50 each."""
    return sum(map(sys.getsizeof, texts))


def pairs_bytes(pairs: Mapping[str, str]) -> int:
    return sum(sys.getsizeof(key) + sys.getsizeof(value) + PAIR_BYTES for key, value in pairs.items())


def sharing_bytes(sharing: KeySharing, points: int) -> int:
    """Memory of a Key_Shared consumer's hash ranges or ring points."""
    return RANGE_BYTES * len(sharing.ranges) if sharing.sticky else POINT_BYTES * points


def charge(memory: Row, owner: Charged, who: str, nbytes: int) -> None:
    """Charge an owner that is about to be added. Raises TooManyRequests."""
    memory.charge_for(who[:100], nbytes, error=TooManyRequests)
    owner.charged_bytes += nbytes


def release(memory: Row, owner: Charged) -> None:
    """Release an owner's charge. May be called again."""
    memory.release(owner.charged_bytes)
    owner.charged_bytes = 0

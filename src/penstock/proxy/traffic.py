# SPDX-License-Identifier: Apache-2.0
"""Counters of what passes through a proxy, for its metrics.

Where: sessions, lookups and relays count; `snapshot` reads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# Clients that are told apart; refusals of more are counted together.
REFUSED_KEPT_MAX: Final = 1_000


@dataclass(slots=True)
class Traffic:
    """Counters since the start.

    Attributes:
        reads: from clients and brokers, whose bytes were passed on.
        to_brokers_bytes: passed on to brokers.
        to_clients_bytes: passed on to clients.
        relays: connections of clients that are connected to a broker now, or about to be.
        connected: connections of clients to brokers, by what became of them: `made`, `failed` or `refused`.
        asked: requests of lookups, by kind.
        turned_away: of these, those that the proxy refused for lack of memory or connections.
        pending: lookups in progress.
        refused: commands that exceed a bound, by address of the client and type, since they were taken.
    """

    reads: int = 0
    to_brokers_bytes: int = 0
    to_clients_bytes: int = 0
    relays: int = 0
    connected: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    turned_away: Counter[str] = field(default_factory=Counter)
    pending: int = 0
    refused: Counter[tuple[str, int]] = field(default_factory=Counter)

    def refuse(self, address: str, command: int) -> None:
        """Count a command of a client that was refused because it exceeds a bound."""
        key = (address, command)
        if key not in self.refused and len(self.refused) >= REFUSED_KEPT_MAX:
            key = ("", command)
        self.refused[key] += 1

    def take_refused(self) -> Mapping[tuple[str, int], int]:
        """Return how many commands were refused since the last call."""
        refused, self.refused = self.refused, Counter()
        return refused

# SPDX-License-Identifier: Apache-2.0
"""Counters of what passes through a proxy, for its metrics.

Where: sessions, lookups and relays count; `snapshot` reads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


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
    """

    reads: int = 0
    to_brokers_bytes: int = 0
    to_clients_bytes: int = 0
    relays: int = 0
    connected: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    turned_away: Counter[str] = field(default_factory=Counter)
    pending: int = 0

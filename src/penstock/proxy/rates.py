# SPDX-License-Identifier: Apache-2.0
"""Rates of counters that only grow, for who asks now and then.

Where: `proxy_stats` keeps one for each connection to a broker and each topic that it was asked about.
"""

from __future__ import annotations

from typing import Final

from penstock.core.units import NS_PER_MS, NS_PER_S

# Rates are new after a minute, as in Pulsar's proxy.
PERIOD_NS: Final = 60 * NS_PER_S


class Rates:
    """Rates of counters that only grow, over the last whole minute or more."""

    __slots__ = ("_counts", "_per_s", "_since_ns", "_whole")

    def __init__(self, counters: int, since_ns: int) -> None:
        """Args: counters: how many; since_ns: when all of them were 0."""
        self._counts = (0,) * counters
        self._per_s = (0.0,) * counters
        self._since_ns = since_ns
        self._whole = False  # whether a whole minute has been seen

    def per_s(self, counts: tuple[int, ...], now_ns: int) -> tuple[float, ...]:
        """Return the rates per second; `counts` is what the counters are now."""
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns >= PERIOD_NS or not self._whole:
            elapsed_s = max(elapsed_ns, NS_PER_MS) / NS_PER_S
            self._per_s = tuple((now - before) / elapsed_s for now, before in zip(counts, self._counts, strict=True))
        if elapsed_ns >= PERIOD_NS:
            self._counts, self._since_ns, self._whole = counts, now_ns, True
        return self._per_s

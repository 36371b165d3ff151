# SPDX-License-Identifier: Apache-2.0
"""Holds of the delivery of one subscription, each from where dispatch stops until it goes on.

Why episodes: a consumer whose queue is full stops dispatch between two FLOWs, for milliseconds; only if that goes on,
or holds a noticeable part of the time, it is a reason why messages wait.
Where: a subscription has a `DispatchHolds` from its first stop on; `broker.stats.why` reads it.
"""

from __future__ import annotations

from typing import Final

from penstock.governance.holds import Episode, HoldKind

# A gate names its limiters itself.
OF_GATE: Final = frozenset((HoldKind.DISPATCH_RATE, HoldKind.GROUP_QUOTA))
# Limits that are set count from the first moment on.
_AT_ONCE: Final = OF_GATE | {HoldKind.UNACKED, HoldKind.FAILOVER_DELAY, HoldKind.DISPATCH_MEMORY}
# While these hold some keys, others go on.
OF_KEYS: Final = frozenset((HoldKind.KEY_BLOCKED, HoldKind.LOOK_AHEAD))


class DispatchHolds:
    """The hold that stops a subscription's dispatch, and the episodes of each.

    Attributes:
        stopped_by: why nothing is delivered now; None while something is.
        keys: whether entries are set aside for their consumers.
    """

    __slots__ = ("_episodes", "keys", "stopped_by")

    def __init__(self) -> None:
        self.stopped_by: HoldKind | None = None
        self.keys = False
        self._episodes: dict[HoldKind, Episode[None]] = {}

    @property
    def active(self) -> bool:
        """Whether something is held."""
        return self.stopped_by is not None or self.keys

    def stop(self, kind: HoldKind, now_ns: int, got: int) -> None:
        """Dispatch stops, or is still stopped. Args: got: messages delivered so far."""
        if self.stopped_by is not kind:
            self.go_on(now_ns)
            self.stopped_by = kind
            self._begin(kind, now_ns, got)

    def go_on(self, now_ns: int) -> None:
        """Dispatch goes on."""
        if self.stopped_by is not None:
            self._episodes[self.stopped_by].end(now_ns)
            self.stopped_by = None

    def set_aside(self, kind: HoldKind, now_ns: int, got: int) -> None:
        """Some entries wait, while others are delivered."""
        self.keys = True
        self._begin(kind, now_ns, got)

    def take_up(self, now_ns: int, *, all_keys: bool) -> None:
        """The look-ahead has room; with `all_keys`, nothing is set aside any more."""
        for kind in OF_KEYS if all_keys else (HoldKind.LOOK_AHEAD,):
            if kind in self._episodes:
                self._episodes[kind].end(now_ns)
        self.keys = self.keys and not all_keys

    def _begin(self, kind: HoldKind, now_ns: int, got: int) -> None:
        self._episodes[kind] = Episode.begun(self._episodes.get(kind), now_ns, got)

    def episode(self, kind: HoldKind, now_ns: int) -> Episode[None] | None:
        """The episode of a hold, if it slows the subscription now."""
        episode = self._episodes.get(kind)
        return episode if episode is not None and episode.slows(now_ns, at_once=kind in _AT_ONCE) else None

    def of_consumers(self, now_ns: int) -> Episode[None] | None:
        """The episode of a stop whose reason is a consumer, if it slows the subscription now."""
        found = (self.episode(kind, now_ns) for kind in self._episodes.keys() - OF_GATE - OF_KEYS)
        return next((episode for episode in found if episode is not None), None)

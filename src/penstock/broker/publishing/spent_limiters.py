# SPDX-License-Identifier: Apache-2.0
"""Limiters whose topic or subscription is gone, until they are full again.

Why: a limiter that went with its topic would forgive its debt whenever a client has the topic unloaded, or deletes it,
and one that went with its subscription whenever a reader is opened anew. So who comes next takes what was left.
Where: `rates` leaves them here, and asks here before it makes one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from penstock.core.clock import Clock


# The owner of a limiter whose owner will not come back.
NOBODY: Final = ""


class Spent(Protocol):
    """A limiter, and whose it is."""

    owner: str

    def full(self, now_ns: int) -> bool:
        """Whether nothing is left of what was charged."""


LimiterT = TypeVar("LimiterT", bound=Spent)

# Beyond this number of names, those whose limiters are full again are removed. They are after a period, which may be
# long: so the next look is at twice as many as were left.
_NAMES_KEPT: Final = 1_000


class SpentLimiters(Generic[LimiterT]):
    """Limiters by the name of what they limited: each lets pass its rate and one burst."""

    __slots__ = ("_clock", "_left", "_look_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: dict[str, list[LimiterT]] = {}
        self._look_at = _NAMES_KEPT

    def leave(self, name: str, limiter: LimiterT) -> None:
        """Keep a limiter that nobody uses any more."""
        if len(self._left) >= self._look_at:
            for one in list(self._left):
                self._forget_full(one)
            self._look_at = max(_NAMES_KEPT, 2 * len(self._left))
        self._left.setdefault(name, []).append(limiter)
        self._forget_full(name)

    def take(self, name: str, owner: str) -> LimiterT | None:
        """Return what the owner has left under this name and is not full yet, or one that nobody will come back for.

        If owners that come back took those of others, some would be free of debt, and have the rest of all in turn.
        """
        self._forget_full(name)
        left = self._left.get(name, [])
        place = next((place for one in (owner, NOBODY) for place, at in enumerate(left) if at.owner == one), None)
        if place is None:
            return None
        limiter = left.pop(place)
        if not left:
            del self._left[name]
        return limiter

    def orphan(self, name: str) -> None:
        """Let others have what is left under this name: its owners are deleted."""
        for limiter in self._left.get(name, ()):
            limiter.owner = NOBODY

    def _forget_full(self, name: str) -> None:
        now_ns = self._clock.monotonic_ns()
        spent = [one for one in self._left.get(name, ()) if not one.full(now_ns)]
        if spent:
            self._left[name] = spent
        else:
            self._left.pop(name, None)

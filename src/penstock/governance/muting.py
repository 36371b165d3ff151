# SPDX-License-Identifier: Apache-2.0
"""Why a connection is muted, that is, why the broker has stopped reading from it.

Why a set: several mechanisms may stop the same connection at the same time, and so may two topics of one mechanism. If
each of them switched reading on and off, the first to lift its limit would undo the others. So the reasons form a set,
and a connection is muted as long as the set is not empty. Where: a session has one `MuteReasons`. It stops reading when
`add` returns True and reads again when `discard` returns True.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.governance.holds import Episode, HoldKind

# Reasons of one connection whose last mutes are remembered.
EPISODES_MAX: Final = 8


# The kinds of holds for which reading stops, and what ends each.
MUTES: Final = (
    HoldKind.REQUEST_MEMORY,  # queued.max.request.bytes is spent; lifted by RequestMemory.wake()
    HoldKind.REQUEST_COUNT,  # queued.max.requests are unanswered; lifted by RequestMemory.wake()
    HoldKind.STORAGE,  # the journal is stalled or read-only; lifted when it appends again
    HoldKind.COMMANDS,  # too many of its commands wait to be carried out; lifted when enough of them have ended
    HoldKind.OUTBOUND,  # the client does not read its answers; lifted when they have drained
    HoldKind.UPSTREAM,  # a proxy's broker does not take what this client sends; lifted when it has taken half
    HoldKind.STOPPING,  # the proxy passes on what it has read, and then closes the connection
    # Held SENDs that wait for a limit reached their bound; lifted at half of it.
    HoldKind.GROUP_QUOTA,
    HoldKind.ADAPTIVE_RATE,
    HoldKind.PUBLISH_RATE,
)


@dataclass(frozen=True, slots=True)
class Mute:
    """One active reason: its owner (a topic or group; None: the connection itself) and since when.

    Attributes:
        waits: this mute and those shortly before it.
    """

    reason: HoldKind
    owner: str | None
    since_ns: int
    waits: Episode[None] = field(compare=False)


class MuteReasons:
    """The set of (reason, owner) that mutes one connection. Empty means: reading."""

    __slots__ = ("_episodes", "_mutes")

    def __init__(self) -> None:
        self._mutes: dict[tuple[HoldKind, str | None], int] = {}
        # A connection that waits for memory is muted anew for each read.
        self._episodes: dict[tuple[HoldKind, str | None], Episode[None]] = {}

    def __bool__(self) -> bool:
        """Tell whether the connection is muted."""
        return bool(self._mutes)

    def only(self, reason: HoldKind) -> bool:
        """Return whether this reason of the connection itself is the only one."""
        return self._mutes.keys() == {(reason, None)}

    def but_for(self, reason: HoldKind) -> bool:
        """Return whether there are others than this reason."""
        return any(active is not reason for active, _ in self._mutes)

    @property
    def since_ns(self) -> int | None:
        """When the oldest active reason was added; None while reading."""
        return min(self._mutes.values(), default=None)

    def add(self, reason: HoldKind, owner: str | None = None, *, now_ns: int) -> bool:
        """Add a reason; return True if the connection was reading until now, so that the caller must stop it.

        Adding the same reason of the same owner again changes nothing, not even its time.
        """
        was_reading, key = not self._mutes, (reason, owner)
        if key not in self._mutes:
            self._mutes[key] = now_ns
            if len(self._episodes) >= EPISODES_MAX and key not in self._episodes:
                for ended in self._episodes.keys() - self._mutes.keys():
                    del self._episodes[ended]
            self._episodes[key] = Episode.begun(self._episodes.get(key), now_ns)
        return was_reading

    def discard(self, reason: HoldKind, owner: str | None = None, *, now_ns: int) -> bool:
        """Remove a reason; return True if it was the last one, so that the caller must read again.

        A reason that is not active is ignored, so a caller that lifts a limit need not know which connections it had
        muted.
        """
        if self._mutes.pop((reason, owner), None) is None:
            return False
        self._episodes[reason, owner].end(now_ns)
        return not self._mutes

    def snapshot(self) -> tuple[Mute, ...]:
        """Return all active reasons, oldest first."""
        mutes = (Mute(*key, since_ns, self._episodes[key]) for key, since_ns in self._mutes.items())
        return tuple(sorted(mutes, key=lambda mute: mute.since_ns))

# SPDX-License-Identifier: Apache-2.0
"""Which processes share quotas: those that a registry lists, and those whose reports go on when the registry fails.

Why two kinds of evidence: when the registry is away, nobody has left, and quotas must be shared as before. When one
process alone loses the registry, the others are told that it has gone, while it goes on working; if they counted on
that, quotas would be exceeded. All hear each other's reports, so a process that is heard is a member, on both sides.
A process that is neither registered nor heard is gone, also in its own view.
Where: `net.zookeeper` has one. Pure: time is an argument, in nanoseconds of the monotonic clock.

Invariant: a process becomes a member by its registration only. Reports prolong that, and a report counts only if it is
signed, and newer than all before it (`report_senders`). So a report that a client repeats keeps nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Presence:
    """The members, this process included."""

    __slots__ = ("_heard_until_ns", "_listed", "_own")

    def __init__(self, own: str) -> None:
        """Args: own: the name of this process."""
        self._own = own
        self._listed: frozenset[str] = frozenset()
        self._heard_until_ns: dict[str, int] = {}  # of members only

    def set_listed(self, names: Iterable[str], now_ns: int) -> None:
        """Take the names that the registry lists now; the own one only if this process is registered itself."""
        self._listed = frozenset(names)
        self._heard_until_ns = {name: end_ns for name, end_ns in self._heard_until_ns.items() if end_ns > now_ns}

    def lose(self) -> None:
        """Take into account that the registration of this process has ended, or may have."""
        self._listed -= {self._own}

    def give_way(self) -> None:
        """Take into account that another process has registered under the own name: reports with it prove nothing."""
        self.lose()
        self._heard_until_ns.pop(self._own, None)

    def hear(self, name: str, until_ns: int, now_ns: int) -> None:
        """A report of a process arrived; that is evidence until then. Reports of others than members are none."""
        if name in self._listed or self._heard_until_ns.get(name, now_ns) > now_ns:
            self._heard_until_ns[name] = until_ns

    def names(self, now_ns: int) -> frozenset[str]:
        """Return the members."""
        return self._listed.union(name for name, end_ns in self._heard_until_ns.items() if end_ns > now_ns)

    def next_end_ns(self, now_ns: int) -> int | None:
        """Return when the first member is gone that is only heard; None: all members are listed."""
        heard = [end for name, end in self._heard_until_ns.items() if end > now_ns and name not in self._listed]
        return min(heard, default=None)

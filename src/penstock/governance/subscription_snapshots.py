# SPDX-License-Identifier: Apache-2.0
"""Snapshots of replicated subscriptions: which place here corresponds to which places in other clusters.

Why: entries of several clusters are interleaved differently in each of them, so a place of a subscription cannot be
sent as it is. A snapshot says: all entries that the others have up to these positions are here up to this entry. If a
subscription has acknowledged that one, the others may acknowledge up to theirs.
Where: `broker.replication.snapshots` asks the other clusters, and tells them what `KeptSnapshots.passed` returns.

Theory of operation
    A cluster's answer says how far it is, and follows all entries up to there, so these are here when it is. If there
    are several other clusters, entries of one may be at another one before they are here; so all are asked once more,
    and what they answered the first time counts: what one of them had from another one then is here when that one has
    answered twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.core.position import Position


class Snapshot(NamedTuple):
    """All that other clusters have up to `positions` is here up to `entry_id`."""

    entry_id: int
    positions: Mapping[str, Position]


class AskedSnapshot:
    """A snapshot that other clusters are asked for.

    Attributes:
        snapshot_id: the same in all questions and answers.
        missing: clusters that have not answered in this round.
    """

    def __init__(self, snapshot_id: str, clusters: Collection[str]) -> None:
        self.snapshot_id = snapshot_id
        self.missing = set(clusters)
        self._clusters = frozenset(clusters)
        self._positions: dict[str, Position] = {}
        self._rounds = min(len(clusters), 2)

    def answered(self, cluster: str, position: Position) -> bool:
        """Note an answer; returns whether this round is over: ask once more, or `take` the snapshot."""
        if cluster not in self.missing:
            return False
        self._positions.setdefault(cluster, position)
        self.missing.remove(cluster)
        return not self.missing

    def take(self, last_entry_id: int) -> Snapshot | None:
        """Return the snapshot when a round is over; None: ask once more.

        Args:
            last_entry_id: of the topic here, now.
        """
        assert not self.missing, "all have answered"
        self._rounds -= 1
        if self._rounds:
            self.missing = set(self._clusters)
            return None
        return Snapshot(last_entry_id, self._positions)


class KeptSnapshots:
    """Snapshots that one subscription has not passed yet, in order."""

    def __init__(self) -> None:
        self._kept: list[Snapshot] = []

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, snapshot: Snapshot, most: int) -> None:
        """Keep one more; if there are more than `most`, that one goes which leaves the smallest gap.

        So those that are kept are spread over the whole backlog, however long it is. The oldest and the newest stay.
        """
        kept = self._kept
        while kept and kept[-1].entry_id >= snapshot.entry_id:
            kept.pop()  # The newer one says more of the same entries.
        kept.append(snapshot)
        if len(kept) > most:
            gaps = range(1, len(kept) - 1)
            del kept[min(gaps, key=lambda at: kept[at + 1].entry_id - kept[at - 1].entry_id)]

    def passed(self, mark_delete: int) -> Snapshot | None:
        """Return the newest snapshot up to which everything is acknowledged, and forget it and those before."""
        kept = self._kept
        count = next((at for at, one in enumerate(kept) if one.entry_id > mark_delete), len(kept))
        newest = kept[count - 1] if count else None
        del kept[:count]
        return newest

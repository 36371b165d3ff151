# SPDX-License-Identifier: Apache-2.0
"""Replicated subscriptions of one topic: asks other clusters how far they are, and says how far subscriptions are.

Why: see `governance.subscription_snapshots`. Where: `Replication` makes one for a topic that is replicated, if one of
its subscriptions asks for it. Replicators report entries, cursors report that they have moved.

Theory of operation
    A snapshot is begun when entries have passed the replicators since the last one was begun, and not more often than
    the setting says; nothing else sets a timer. One is under way at a time. If it is not answered, it is given up and
    begun again after a pause that grows, so that a cluster that replicates nothing back costs little.
    After a restart one snapshot is taken without new entries, since none is stored.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.broker.replication.replicator import ReplicatorFollower
from penstock.broker.subscriptions.replicating import PlacesElsewhere
from penstock.core.clock import Backoff
from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.subscription_snapshots import AskedSnapshot, KeptSnapshots
from penstock.wire.markers import Request, Update

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from penstock.broker.limits import BrokerLimits
    from penstock.broker.replication.replicator import Replicator
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.governance.subscription_snapshots import Snapshot
    from penstock.wire.markers import Response

log = logging.getLogger(__name__)

# Pauses after snapshots that were not answered.
FIRST_PAUSE_S: Final = 1.0
LAST_PAUSE_S: Final = 600.0
_ASK: Final = "ask"


@dataclass(slots=True, kw_only=True)
class SnapshotServices:
    """Parts that all topics share, and counts of all of them."""

    cluster: str  # this one
    limits: Callable[[], BrokerLimits]
    clock: Clock
    chance: Random
    pending: int = 0  # snapshots that are under way
    timed_out: int = 0


class TopicSnapshots(ReplicatorFollower):
    """Snapshots of one topic. All methods are called on the event loop."""

    def __init__(self, topic: Topic, replicators: list[Replicator], services: SnapshotServices) -> None:
        self._topic = topic
        self._replicators = replicators
        self._services = services
        self._asked: AskedSnapshot | None = None  # under way
        self._began_ns = services.clock.monotonic_ns() - self._every_ns
        self._due = True  # entries have come since the last snapshot was begun
        self._timer: asyncio.TimerHandle | None = None  # to begin one, or to give up the one that is under way
        self._pauses = Backoff(services.chance, first_s=FIRST_PAUSE_S, last_s=LAST_PAUSE_S)
        self._unanswered = False
        self._closed = False
        for replicator in replicators:
            replicator.snapshots = self
        self.subscriptions_changed()
        self.resumed()

    @property
    def _every_ns(self) -> int:
        return self._services.limits().subscription_snapshots_every_ms * NS_PER_MS

    @property
    def _enabled(self) -> bool:
        return self._services.limits().replicated_subscriptions

    def close(self) -> None:
        """Take no more snapshots. Twice does no harm."""
        if self._closed:
            return
        self._closed = True
        self._end_asking()
        self._cancel_timer()
        for replicator in self._replicators:
            replicator.snapshots = None
        for subscription in self._topic.subscriptions.values():
            subscription.places = None

    def subscriptions_changed(self) -> None:
        """Begin with subscriptions that are replicated now, and end with those that are not any more."""
        for subscription in self._topic.subscriptions.values():
            if not subscription.replicated:
                subscription.places = None
            elif subscription.places is None:
                subscription.places = _Places(subscription, self)
                self.traffic()

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def traffic(self) -> None:
        """Entries have come."""
        self._due = True
        self.resumed()

    def resumed(self) -> None:
        """A replicator goes on."""
        if self._due and self._timer is None and not self._closed:
            self._wait(self._began_ns + self._every_ns)

    def _wait(self, until_ns: int) -> None:
        self._cancel_timer()
        wait_s = max(0, until_ns - self._services.clock.monotonic_ns()) / NS_PER_S
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        now_ns = self._services.clock.monotonic_ns()
        if self._asked is not None:
            self._give_up(self._asked)
            self._wait(now_ns + int(self._pauses.next_s() * NS_PER_S))
        elif self._due and self._enabled and all(one.is_open for one in self._replicators):
            self._begin(now_ns)  # Otherwise it is resumed when they are open.

    def _begin(self, now_ns: int) -> None:
        self._due = False
        self._began_ns = now_ns
        snapshot_id = f"{self._services.chance.getrandbits(128):032x}"
        self._asked = AskedSnapshot(snapshot_id, [one.cluster for one in self._replicators])
        self._services.pending += 1
        self._wait(now_ns + self._services.limits().subscription_snapshots_timeout_s * NS_PER_S)
        self._ask(self._asked)

    def _ask(self, asked: AskedSnapshot) -> None:
        """Ask behind all that is on its way, so that the answers are about it, too."""
        for replicator in self._replicators:
            on_its_way = min(replicator.subscription.read_entry_id - 1, self._topic.last_entry_id)
            replicator.send_marker(_ASK, Request(asked.snapshot_id, self._services.cluster), behind=on_its_way)

    def _give_up(self, asked: AskedSnapshot) -> None:
        if not self._unanswered:
            self._unanswered = True
            clusters = ", ".join(sorted(asked.missing))
            log.warning(
                "%s: replicated subscriptions keep no places in cluster %s, which does not answer: is the topic "
                "replicated back from there?",
                self._topic.text,
                clusters,
            )
        self._services.timed_out += 1
        self._due = True
        self._end_asking()

    def _end_asking(self) -> None:
        if self._asked is not None:
            self._asked = None
            self._services.pending -= 1
            for replicator in self._replicators:
                replicator.withdraw_marker(_ASK)

    def answered(self, cluster: str, response: Response) -> None:
        """A cluster has answered; all that it had sent before is here."""
        asked = self._asked
        if asked is None or asked.snapshot_id != response.snapshot_id:
            return  # It was given up.
        if not asked.answered(cluster, response.position):
            return
        # With what is on its way to the disk: an entry before the answer may be kept back by a transaction.
        snapshot = asked.take(self._topic.next_entry_id - 1)
        if snapshot is None:
            self._ask(asked)
            return
        self._end_asking()
        self._cancel_timer()
        self._pauses.reset()
        self._unanswered = False
        most = self._services.limits().subscription_snapshots_max
        for subscription in list(self._topic.subscriptions.values()):
            if isinstance(subscription.places, _Places):
                subscription.places.add(snapshot, most)
        self.resumed()

    def tell(self, subscription: Subscription, snapshot: Snapshot) -> None:
        """Tell the other clusters that a subscription has passed a snapshot."""
        if not self._enabled:
            return
        update = Update(subscription.name, snapshot.positions)
        for replicator in self._replicators:
            replicator.send_marker(f"update {subscription.name}", update)


class _Places(PlacesElsewhere):
    """Places of one subscription in other clusters."""

    def __init__(self, subscription: Subscription, snapshots: TopicSnapshots) -> None:
        self._subscription = subscription
        self._snapshots = snapshots
        self._kept = KeptSnapshots()

    def add(self, snapshot: Snapshot, most: int) -> None:
        self._kept.add(snapshot, most)
        self.passed()

    def passed(self) -> None:
        snapshot = self._kept.passed(self._subscription.cursor.mark_delete)
        if snapshot is not None:
            self._snapshots.tell(self._subscription, snapshot)

    def told(self) -> None:
        """Forget what it has passed."""
        self._kept.passed(self._subscription.cursor.mark_delete)

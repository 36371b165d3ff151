# SPDX-License-Identifier: Apache-2.0
"""Checks a history: what was promised to the clients of a run, and was not kept.

    python -m tests.jepsen.checker FILE…

It knows nothing of the run but its file, and nothing of penstock. What must hold:

1. What was stored is received by each subscription of its topic, at the position that the receipt named.
2. A position names one entry, for everybody and for ever.
3. What was acknowledged with an answer is not received by a consumer that subscribes later: of a batch, each message.
4. First deliveries of one producer (of one key, with Key_Shared) come in the order of sending, unless the subscription
   is Shared.
5. Where a topic deduplicates, no entry has two positions. Elsewhere what was sent again may have been stored again.
6. A delayed message is not received before it is due, unless the brokers' clock jumped.
7. In the end no subscription has a backlog.
8. Who reads a compacted topic gets the last message of each key.
9. Where all is retained, a reader gets every entry of the topic, even those acknowledged long ago,
   and the topic's statistics say how many there are, and how large. Where nothing is, all that is acknowledged goes.
10. Between two looks without a fault, a topic counts as many messages as were stored.
11. Each life of a topic that is created and deleted again and again holds what was stored in it, and nothing of another
    one. What is deleted is gone. A partition that is added is there.

12. A transaction is seen in all its topics or in none, once in each, and not before its commit was asked for. One whose
    commit was answered is seen, one whose abort was answered or whose end was never asked for is not. Each job is in
    exactly one of those that are seen.

Subscriptions are named `topic/name/type`, and topics that deduplicate begin with `once`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.jepsen.history import read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.jepsen.history import Event

# Violations that are listed; the rest is counted.
LISTED_MAX = 20
# As in Pulsar, a delayed message may come a tick (a second) early, unless the broker is told to be strict.
EARLY_S = 1.3
# After this fault, brokers have another idea of when a message is due.
CLOCK = "move_the_clock"
GONE = 404


class Entry(NamedTuple):
    """What one SEND carried."""

    topic: str
    producer: str
    first: int
    chunk: int


class Place(NamedTuple):
    """Where it is."""

    topic: str
    ledger: int
    entry: int


@dataclass
class Result:
    """What a history says."""

    messages: int = 0  # acknowledged by the broker
    entries: int = 0
    received: int = 0  # entries
    again: int = 0  # of them not for the first time
    faults: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    transactions: int = 0  # that were committed
    violations: list[str] = field(default_factory=list)


class Transaction:
    """What is known of one."""

    def __init__(self, jobs: list[list[Any]]) -> None:
        self.jobs = [tuple(job) for job in jobs]
        self.asked: str | None = None  # for its commit or abort
        self.answered: str | None = None
        self.seen: defaultdict[str, int] = defaultdict(int)  # how often, in each topic


class Checker:
    """Takes the events of one history, in order."""

    def __init__(self) -> None:
        self.result = Result()
        self._stored: dict[Entry, tuple[Place, int]] = {}  # with its messages
        self._named: dict[Place, Entry] = {}
        self._places: defaultdict[Entry, set[Place]] = defaultdict(set)
        self._keys: dict[Entry, str] = {}
        self._subscriptions: set[str] = set()
        self._received: defaultdict[str, set[Entry]] = defaultdict(set)
        self._opened: dict[int, float] = {}
        # Of a subscription: entry -> since when; and message of a batch -> since when.
        self._acked: defaultdict[str, dict[tuple[int, int], float]] = defaultdict(dict)
        self._acked_indexes: defaultdict[str, dict[tuple[int, int, int], float]] = defaultdict(dict)
        self._acked_up_to: dict[str, tuple[int, int]] = {}
        self._acked_at_open: dict[int, tuple[int, int]] = {}  # of an epoch: what was acknowledged up to here
        self._newest: dict[tuple[str, str], tuple[int, int]] = {}  # of a subscription and key: the last first delivery
        self._due: dict[Entry, float] = {}
        self._early: list[str] = []
        self._last_of_key: dict[tuple[str, str], tuple[int, Entry]] = {}
        self._stored_messages: defaultdict[str, int] = defaultdict(int)
        self._counting: dict[str, tuple[int, int]] = {}  # of a topic: what it counts, and what was stored until then
        self._transactions: dict[str, Transaction] = {}
        self._results: set[str] = set()  # topics of results
        self._lives: defaultdict[tuple[str, int], set[int]] = defaultdict(set)  # what was stored in each

    def take(self, event: Event) -> None:
        """Take the next event."""
        kind, at, *fields = event
        getattr(self, f"_on_{kind}")(at, *fields)

    def finish(self) -> Result:
        """Check what can be said only at the end."""
        for entry, (place, _) in self._stored.items():
            for subscription in self._subscriptions:
                if _topic_of(subscription) == entry.topic and entry not in self._received[subscription]:
                    self._wrong(f"lost: {entry}, stored at {place.ledger}:{place.entry}, {subscription} never got it")
        if self._results:
            self._check_transactions()
        if CLOCK not in self.result.faults:
            self.result.violations += self._early
        return self.result

    def _wrong(self, what: str) -> None:
        self.result.violations.append(what)

    # -- events

    def _on_send(self, _at: float, topic: str, producer: str, first: int, _count: int, key: str, chunk: int) -> None:
        self._keys[Entry(topic, producer, first, chunk)] = key

    def _on_stored(
        self, _at: float, topic: str, producer: str, first: int, count: int, chunk: int, ledger: int, number: int
    ) -> None:
        entry = Entry(topic, producer, first, chunk)
        if entry not in self._keys:
            self._wrong(f"a receipt for {entry}, which was never sent")
        self.result.entries += 1
        self.result.messages += count if chunk <= 0 else 0
        self._stored_messages[topic] += count
        place = Place(topic, ledger, number)
        if number >= 0:  # Of a duplicate the broker may not know the position.
            self._name(place, entry)
        self._stored[entry] = place, count
        key = self._keys.get(entry, "")
        if key and number >= 0:
            self._last_of_key[topic, key] = max(self._last_of_key.get((topic, key), (-1, entry)), (number, entry))

    def _name(self, place: Place, entry: Entry) -> None:
        known = self._named.setdefault(place, entry)
        if known != entry:
            self._wrong(f"{place} is {known} and {entry}")
        self._places[entry].add(place)
        if entry.topic.startswith("once") and len(self._places[entry]) > 1:
            self._wrong(f"stored twice: {entry} is at {sorted(self._places[entry])}")

    def _on_open(self, at: float, subscription: str, epoch: int) -> None:
        self._subscriptions.add(subscription)
        self._opened[epoch] = at
        self._acked_at_open[epoch] = self._acked_up_to.get(subscription, (-1, -1))

    def _on_recv(
        self,
        at: float,
        subscription: str,
        epoch: int,
        producer: str,
        first: int,
        count: int,
        chunk: int,
        ledger: int,
        number: int,
        indexes: list[int] | None,
    ) -> None:
        entry = Entry(_topic_of(subscription), producer, first, chunk)
        if entry not in self._keys:
            self._wrong(f"{subscription} received {entry}, which was never sent there")
        self._name(Place(entry.topic, ledger, number), entry)
        self.result.received += 1
        if entry in self._received[subscription]:
            self.result.again += 1
        else:
            self._received[subscription].add(entry)
            self._check_order(subscription, entry)
        if at < self._due.get(entry, 0.0) - EARLY_S:
            self._early.append(f"early: {entry} was due at {self._due[entry]}, {subscription} got it at {at}")
        self._check_acked(subscription, epoch, ledger, number, range(count) if indexes is None else indexes)

    def _check_order(self, subscription: str, entry: Entry) -> None:
        type_ = subscription.rpartition("/")[2]
        if type_ == "shared":
            return
        key = self._keys.get(entry, "") if type_ == "key_shared" else ""
        line = subscription, f"{entry.producer}/{key}"
        place = entry.first, entry.chunk
        if place < self._newest.get(line, (-1, -1)):
            self._wrong(f"out of order: {subscription} got {entry} after {self._newest[line]}")
        self._newest[line] = place

    def _check_acked(self, subscription: str, epoch: int, ledger: int, number: int, indexes: Iterable[int]) -> None:
        opened = self._opened[epoch]

        def before(since: float | None) -> bool:
            return since is not None and since < opened

        up_to_ledger, up_to = self._acked_at_open[epoch]
        acked = before(self._acked[subscription].get((ledger, number))) or (ledger == up_to_ledger and number <= up_to)
        known = self._acked_indexes[subscription]
        if acked or any(before(known.get((ledger, number, index))) for index in indexes):
            what = f"{ledger}:{number}, which was acknowledged"
            self._wrong(f"again: {subscription} got {what}, in epoch {epoch} from {opened} on")

    def _on_acked(
        self, at: float, subscription: str, ledger: int, number: int, kind: str, indexes: list[int] | None
    ) -> None:
        if kind == "entry":
            self._acked[subscription].setdefault((ledger, number), at)
        elif kind == "up-to":
            self._acked_up_to[subscription] = max(self._acked_up_to.get(subscription, (-1, -1)), (ledger, number))
        else:
            for index in indexes or ():
                self._acked_indexes[subscription].setdefault((ledger, number, index), at)

    def _on_fault(self, _at: float, name: str, _what: str) -> None:
        self.result.faults[name] += 1

    def _on_late(self, _at: float, topic: str, producer: str, first: int, due: float) -> None:
        self._due[Entry(topic, producer, first, -1)] = due

    def _on_backlog(self, _at: float, subscription: str, messages: int) -> None:
        if messages:
            self._wrong(f"a backlog of {messages} messages is left on {subscription}")

    def _on_compacted(self, _at: float, topic: str, found: dict[str, list[object]]) -> None:
        for (of_topic, key), (_, last) in self._last_of_key.items():
            if of_topic == topic and found.get(key) != [last.producer, last.first]:
                self._wrong(f"compacted: the last of {key} on {topic} is {last}, a reader got {found.get(key)}")

    def _on_counting(self, _at: float, topic: str, counters: dict[str, int]) -> None:
        self._counting[topic] = counters["msgInCounter"], self._stored_messages[topic]

    def _on_counted(self, _at: float, topic: str, counters: dict[str, int]) -> None:
        counted, stored = self._counting[topic]
        counted, stored = counters["msgInCounter"] - counted, self._stored_messages[topic] - stored
        if counted != stored:
            self._wrong(f"miscounted: {topic} counts {counted} messages more, {stored} were stored")

    def _on_retained(self, _at: float, topic: str, read: list[list[int]], counters: dict[str, int]) -> None:
        found = [Place(topic, ledger, entry) for ledger, entry, _ in read]
        known = {place for place in self._named if place.topic == topic}
        for place in sorted(known.symmetric_difference(found)):
            self._wrong(f"retained: {place} was {'not read' if place in known else 'never received or answered'}")
        if found != sorted(set(found)):
            self._wrong(f"retained: a reader of {topic} got entries twice, or out of order")
        sizes = {"numberOfEntries": len(found), "storageSize": sum(nbytes for _, _, nbytes in read)}
        wrong = {name: counters[name] for name, size in sizes.items() if counters[name] != size}
        if wrong:
            self._wrong(f"miscounted: {topic} has {sizes}, its statistics say {wrong}")

    def _on_trimmed(self, _at: float, topic: str, entries: int) -> None:
        if entries:
            self._wrong(f"untrimmed: {entries} entries of {topic} are left, and nothing needs them")

    def _on_txn(self, _at: float, name: str, what: str, *more: Any) -> None:  # noqa: ANN401
        if what == "begun":
            self._transactions[name] = Transaction(more[0])
        elif what == "ended":
            self._transactions[name].answered = more[0]
        elif what != "refused":
            self._transactions[name].asked = what

    def _on_seen(self, _at: float, topic: str, name: str) -> None:
        if self._transactions[name].asked != "commit":
            self._wrong(f"not isolated: {name} was seen in {topic}, and its commit was not asked for")

    def _on_results(self, _at: float, topic: str, found: list[tuple[str, int]]) -> None:
        self._results.add(topic)
        for name, _ in found:
            self._transactions[name].seen[topic] += 1

    def _check_transactions(self) -> None:
        taken: defaultdict[tuple[Any, ...], list[str]] = defaultdict(list)
        for name, one in self._transactions.items():
            if one.seen and (one.seen.keys() != self._results or set(one.seen.values()) != {1}):
                self._wrong(f"not atomic: {name} is seen {dict(one.seen)} times, {one.asked} was {one.answered}")
            if one.answered == "commit" and not one.seen:
                self._wrong(f"lost: {name} was committed, and nobody sees it")
            if one.seen and (one.answered == "abort" or one.asked != "commit"):
                self._wrong(f"undone: {name} is seen, though its end was {one.asked}, answered {one.answered}")
            if one.seen:
                self.result.transactions += 1
                for job in one.jobs:
                    taken[job].append(name)
        stored = {tuple(place) for entry, (place, _) in self._stored.items() if entry.topic.startswith("jobs-")}
        for job in sorted(stored | taken.keys()):
            if len(taken[job]) != 1:
                self._wrong(f"job {job} was done by {taken[job] or 'nobody'}")

    def _on_life(self, _at: float, topic: str, life: int, what: str, *found: Any) -> None:  # noqa: ANN401
        if what == "kept":
            self._lives[topic, life].add(found[0])
        elif what == "read":
            others = {of for of, _ in found[0]} - {life}
            if others:
                self._wrong(f"undead: life {life} of {topic} shows entries of lives {sorted(others)}")
            lost = self._lives[topic, life] - {number for _, number in found[0]}
            if lost:
                self._wrong(f"lost: entries {sorted(lost)} of life {life} of {topic}")
        elif what == "deleted" and found[0] != GONE:
            self._wrong(f"undeleted: {topic} is there after the end of life {life}")
        elif what == "grown" and found[0] != found[1]:
            self._wrong(f"not grown: {topic} has {found[1]} partitions in life {life}, {found[0]} were wanted")


def _topic_of(subscription: str) -> str:
    return subscription.partition("/")[0]


def check(events: Iterable[Event]) -> Result:
    """Check a whole history."""
    checker = Checker()
    for event in events:
        checker.take(event)
    return checker.finish()


def main() -> int:
    """Check the files of the command line; the exit status."""
    status = 0
    for name in sys.argv[1:]:
        result = check(read(Path(name)))
        print(f"{name}: {result.messages} messages in {result.entries} entries stored, {result.received} received, "
              f"{result.again} of them again, {len(result.violations)} violations")  # fmt: skip
        for what in result.violations[:LISTED_MAX]:
            print(f"  {what}")
        status = max(status, bool(result.violations))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())

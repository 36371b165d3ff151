# SPDX-License-Identifier: Apache-2.0
"""`penstock rewind`: a range of a topic's messages, delivered to one subscription once more.

Why by a seek and acknowledgements: no command of Pulsar gives back a range. The cursor is moved to the beginning of the
range, and what was acknowledged behind its end is acknowledged again, before anybody else may consume. Other
subscriptions are not touched, and no message is published twice.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.cli import contexts, output
from penstock.cli.consume import add_since, add_until
from penstock.cli.exits import CommandFailed, Exit, wrong

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from penstock.cli.rest import Rest
    from penstock.spark.client.cluster import Cluster
    from penstock.spark.client.subscription import Subscription

_DESCRIPTION: Final = """\
Deliver a range of a topic's messages to a subscription once more, and nothing else that it has
acknowledged. Stop its consumers before. What they have not acknowledged comes as well, as always.
"""
_AT_ONCE: Final = 1_000
_RANGE: Final = re.compile(r"\((\d+):(-?\d+)(?:\.\.|\u2025)(\d+):(-?\d+)\]")


class Place(NamedTuple):
    """An entry of a topic; orders as its tuple does."""

    ledger_id: int
    entry_id: int


class Cursor(NamedTuple):
    """Which entries of a topic are there, and which of them a subscription has acknowledged."""

    ledgers: Sequence[tuple[int, int]]  # of each the number of its entries
    mark: Place  # it and all before it are acknowledged
    ranges: Sequence[tuple[Place, Place]]  # what else is: after the first, up to the second
    is_whole: bool  # whether the broker has told all ranges

    @classmethod
    def of(cls, stats: Mapping[str, Any], name: str) -> Cursor:
        """Take it from the internal statistics of a topic. Raises CommandFailed: there is no such subscription."""
        cursor = stats["cursors"].get(name)
        if cursor is None:
            raise CommandFailed(f"there is no subscription {name!r}", Exit.NOT_FOUND)
        last = _place(stats["lastConfirmedEntry"])
        ledgers = [(int(one["ledgerId"]), int(one["entries"])) for one in stats["ledgers"]]
        # Of the ledger that is written to, Apache Pulsar says no number.
        ledgers = sorted({**dict(ledgers), last.ledger_id: last.entry_id + 1}.items())
        found = _RANGE.findall(cursor["individuallyDeletedMessages"])
        ranges = [(Place(int(a), int(b)), Place(int(c), int(d))) for a, b, c, d in found]
        told = int(cursor.get("totalNonContiguousDeletedMessagesRange", len(ranges)))
        return cls(ledgers, _place(cursor["markDeletePosition"]), ranges, len(ranges) >= told)

    def acknowledged(self, first: Place, end: Place | None = None) -> Iterator[Place]:
        """Yield the acknowledged entries from `first` on, before `end`."""
        for after, last in ((Place(-1, -1), self.mark), *self.ranges):
            for place in self._entries(max(first, Place(after.ledger_id, after.entry_id + 1)), last):
                if end is not None and place >= end:
                    break
                yield place

    def _entries(self, first: Place, last: Place) -> Iterator[Place]:
        """Yield the entries between two, both included."""
        for ledger_id, count in self.ledgers:
            low = first.entry_id if ledger_id == first.ledger_id else 0
            high = min(count - 1, last.entry_id) if ledger_id == last.ledger_id else count - 1
            if first.ledger_id <= ledger_id <= last.ledger_id:
                yield from (Place(ledger_id, entry_id) for entry_id in range(max(0, low), high + 1))


def _place(text: str) -> Place:
    ledger, _, entry = text.partition(":")
    return Place(int(ledger), int(entry))


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(name, description=_DESCRIPTION)
    parser.set_defaults(run=_run)
    parser.add_argument("topic", metavar="TOPIC", help="with all its partitions")
    parser.add_argument("-s", "--subscription", required=True, metavar="NAME")
    add_since(parser, "earliest")
    add_until(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say how many entries would come again")
    contexts.add_options(parser)


def _run(arguments: argparse.Namespace) -> int:
    from penstock.cli.feeds import connected
    from penstock.cli.rest import Rest
    from penstock.cli.values import path_part

    if arguments.since == "latest":
        raise wrong("--from latest: there is nothing behind the last message")
    target = contexts.target(arguments)
    with connected(target) as cluster, Rest(target) as rest:
        topics = cluster.partitions(arguments.topic)
        total = 0
        for topic in topics:
            total += _rewound(cluster, rest, topic, f"/admin/v2/{path_part('TOPIC', topic)}/internalStats", arguments)
    verb = "would come" if arguments.dry_run else "come"
    output.notice(f"{total:,} entries of {arguments.topic} {verb} again to {arguments.subscription}")
    return Exit.OK


def _rewound(cluster: Cluster, rest: Rest, topic: str, path: str, arguments: argparse.Namespace) -> int:
    """Rewind the subscription of one partition; returns how many entries come again."""
    from penstock.cli.feeds import start_of
    from penstock.spark.client.subscription import Subscription

    name, dry_run = arguments.subscription, arguments.dry_run
    first = Place(*start_of(cluster, topic, arguments.since)[:2])
    end = Place(*start_of(cluster, topic, arguments.to)[:2]) if arguments.to else None
    cursor = Cursor.of(rest.get(path), name)
    if dry_run:
        return _count(cursor.acknowledged(first, end))
    # Whoever consumes would be given what is not acknowledged again yet, and is not let in while we are here.
    with Subscription.durable(cluster, topic, name) as subscription:
        cursor = Cursor.of(rest.get(path), name)
        if not cursor.is_whole:
            output.notice(f"{topic}: more than the range may come again, its broker does not tell all acknowledgements")
        count = _count(cursor.acknowledged(first, end))
        if count:
            # Not behind the mark: a seek acknowledges what it passes over.
            to = min(first, Place(cursor.mark.ledger_id, cursor.mark.entry_id + 1))
            kept = [cursor.acknowledged(to, first)] if to < first else []
            kept += [cursor.acknowledged(max(to, end))] if end is not None else []
            _move(subscription, to, kept)
    return count


def _count(places: Iterable[Place]) -> int:
    return sum(1 for _ in places)


def _move(subscription: Subscription, to: Place, kept: Sequence[Iterator[Place]]) -> None:
    """Move a cursor, and acknowledge entries behind it. Raises ClientError."""
    from penstock.core.position import Position
    from penstock.wire import codec

    connection, consumer = subscription.connection, subscription.consumer
    what = f"moving the subscription of {subscription.topic} to {to.ledger_id}:{to.entry_id}"
    seek = codec.CommandSeek(consumer_id=consumer.consumer_id, request_id=0)
    seek.message_id.ledgerId, seek.message_id.entryId = to.ledger_id % 2**64, to.entry_id % 2**64
    connection.request(seek, what=what)
    connection.subscribe(consumer, what)  # A seek ends the consumer; the subscription stays.
    for places in kept:
        while some := [Position(*one) for one in islice(places, _AT_ONCE)]:
            connection.acknowledge_each(consumer, some)
    subscription.last_id()  # Its answer comes after the acknowledgements have been taken.

# SPDX-License-Identifier: Apache-2.0
"""How many entries ranges have that begin in one ledger and end in another.

Why asked: in Apache Pulsar a topic is a chain of ledgers, and ids say nothing about the length of any but the last. But
a broker tells of each consumer how many entries lie before it, over all ledgers, and it costs no data.
Where: planning, for limits, lag and tasks. Brokers of penstock have one ledger for a topic, and count messages.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from penstock.spark.client.cluster import AT_ONCE_MAX, parts_of
from penstock.spark.client.errors import ClientError, Refused
from penstock.spark.client.message_id import MessageId
from penstock.spark.client.subscription import following_ids, reading_body
from penstock.spark.offsets import Segment
from penstock.wire import codec
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.lookup import Owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.spark.client.cluster import Cluster
    from penstock.spark.offsets import TopicRange

    Place = tuple[str, MessageId]

# Behind the last entry of any ledger.
_BEHIND: Final = 2**48
# Ledgers of a range that are looked for: each costs a consumer. Those behind count as one.
LEDGERS_MAX: Final = 256


def entries_in(cluster: Cluster, ranges: Sequence[TopicRange]) -> dict[str, int]:
    """Return how many entries ranges have, by their topics; without those of which brokers did not tell."""
    ahead = _entries_ahead(cluster, [(one.topic, place) for one in ranges for place in (one.start, one.end)])
    found = {}
    for one in ranges:
        first, last = ahead.get((one.topic, one.start)), ahead.get((one.topic, one.end))
        if first is not None and last is not None:
            found[one.topic] = max(1, first - last + bool(one.end.batch_index))
    return found


def segments_of(cluster: Cluster, one: TopicRange) -> list[Segment] | None:
    """Return the parts of a range that lie in one ledger each; None if brokers did not tell. Raises ClientError."""
    first = one.start if one.start.ledger_id >= 0 else following_ids(cluster, one.topic, [one.start])[one.start]
    firsts = [first]
    while firsts[-1].ledger_id < one.end.ledger_id and len(firsts) < LEDGERS_MAX:
        behind = MessageId(firsts[-1].ledger_id, _BEHIND)
        following = following_ids(cluster, one.topic, [behind])[behind]
        if following >= one.end:
            break
        firsts.append(following)
    ahead = _entries_ahead(cluster, [(one.topic, place) for place in (*firsts, one.end)])
    counts = [ahead.get((one.topic, place), -1) for place in (*firsts, one.end)]
    if -1 in counts:
        return None
    pairs = zip(firsts, pairwise(counts), strict=True)
    return [Segment(place, max(0, here - there)) for place, (here, there) in pairs]


def _entries_ahead(cluster: Cluster, places: Iterable[Place]) -> dict[Place, int]:
    """Return how many entries there are from these places on to the ends of their topics."""
    found: dict[Place, int] = {}
    for names in parts_of(dict.fromkeys(places), AT_ONCE_MAX):  # type: ignore[arg-type]  # pairs are names, too
        part: list[Place] = names  # type: ignore[assignment]
        by_owner: dict[Owner, list[Place]] = {}
        owners = cluster.owners({topic for topic, _ in part})
        for topic, place in part:
            if isinstance(owner := owners[topic], Owner):
                by_owner.setdefault(owner, []).append((topic, place))
        for owner, mine in by_owner.items():
            try:
                found |= _asked(cluster, owner, mine)
            except ClientError:
                continue  # It is not known, then.
    return found


def _asked(cluster: Cluster, owner: Owner, places: Sequence[Place]) -> Mapping[Place, int]:
    with cluster.connection_to(owner) as connection:
        opening = {}
        for topic, place in places:
            number = connection.new_consumer_id()
            consumer = Consumer(reading_body(topic, place, consumer_id=number))
            opening[connection.begin_subscribe(consumer, f"reading {topic}")] = number, (topic, place)
        opened, _ = connection.answers(opening, f"our wish to read {len(opening)} topics")
        asked = {}
        for request_id, (number, asked_of) in opening.items():
            if not isinstance(opened[request_id], Refused):
                body = codec.CommandConsumerStats(consumer_id=number, request_id=0)
                asked[connection.begin(body, "asking for the backlog of a reader")] = asked_of
        answers, _ = connection.answers(asked, f"asking for the backlogs of {len(asked)} readers")
        return {
            place: answer.msgBacklog
            for request_id, place in asked.items()
            if not isinstance(answer := answers[request_id], Refused)
        }

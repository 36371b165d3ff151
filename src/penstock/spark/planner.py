# SPDX-License-Identifier: Apache-2.0
"""Planning on the driver: which partitions there are, where they begin and end, how far a batch of a stream goes.

A micro-batch that is limited to some messages must end at a message id. Brokers of penstock count messages; against
others the entries are read (`counting_meter`, `reading_meter`). `budgets` divides the limit.
Where: the batch reader plans once; the stream reader keeps one planner, with its connections, for all micro-batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.names import NamespaceName, TopicName
from penstock.net.clock import SystemClock
from penstock.spark.budgets import spend, spend_on_oldest
from penstock.spark.client import admin
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.errors import Refused
from penstock.spark.client.ledgers import entries_in, segments_of
from penstock.spark.client.message_id import EARLIEST as BEGINNING
from penstock.spark.client.message_id import MessageId
from penstock.spark.client.subscription import Subscription, earliest_id
from penstock.spark.client.watch import Watch
from penstock.spark.counting_meter import UNKNOWN_PACE, CountingMeter
from penstock.spark.lag import Lag
from penstock.spark.offsets import Offsets, TopicRange, entries_between, is_counted
from penstock.spark.options import EARLIEST, LATEST
from penstock.spark.reading_meter import ReadingMeter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.core.clock import Clock
    from penstock.spark.counting_meter import Pace, Published
    from penstock.spark.offsets import Segment
    from penstock.spark.options import Place, ReadSettings
    from penstock.spark.topic_patterns import TopicsPattern


# What fewer entries hold is guessed: they make no task by themselves, whatever it is.
SAMPLED_ENTRIES_MIN: Final = 50


class Planner:
    """Asks brokers for partitions and message ids. For one thread; close it."""

    def __init__(self, settings: ReadSettings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.cluster = Cluster(settings.endpoint)
        self.watch = Watch(self.cluster, compacted=settings.reading.compacted)
        self.paces: dict[str, Pace] = {}
        self._published: dict[str, Published] = {}
        self._reading: ReadingMeter | None = None
        self._clock = clock or SystemClock()

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()
        self.watch.close()
        self.cluster.close()

    # -- where -------------------------------------------------------------------------------------------------------

    def partitions(self) -> list[str]:
        """Return the full names of all partitions to read. Raises Refused, TOPIC_NOT_FOUND, for a missing topic."""
        if self.settings.pattern is not None:
            return self._matching(self.settings.pattern)
        found: list[str] = []
        for partitions in self.cluster.partitions_of_all(self.settings.topics).values():
            if not isinstance(partitions, Refused):
                found += partitions
            elif not partitions.is_missing_topic or self.settings.reading.fail_on_data_loss:
                raise partitions
        return found

    def ends(self, topics: Iterable[str]) -> Offsets:
        """Return the id after the last message of each topic; the beginning if there is none."""
        seen = self.watch.ask(dict.fromkeys(topics))
        # A partition without any message yet, or one that was just deleted, is not there.
        return {topic: BEGINNING if one is None else one.end for topic, one in seen.items()}

    def resolved(self, place: Place, topics: Iterable[str]) -> Offsets:
        """Return a position in each of the topics.

        Raises:
            ValueError: `place` has ids for some topics, and not for this one.
        """
        topics = list(topics)
        ends = self.ends(topics) if _mentions_latest(place) else {}
        return {topic: self._resolved(place, topic, ends) for topic in topics}

    def beginnings(self, topics: Iterable[str]) -> Offsets:
        """Return the id of the first message of each topic that has messages."""
        found = {topic: earliest_id(self.cluster, topic) for topic in topics}
        return {topic: place for topic, place in found.items() if place is not None}

    def _matching(self, pattern: TopicsPattern) -> list[str]:
        if pattern.has_one_namespace:
            return pattern.topics(self.cluster.topics(str(NamespaceName(pattern.tenant, pattern.namespace))))
        endpoint, url = self.settings.endpoint, self.settings.admin_url
        names = self.cluster.insist(lambda: admin.namespaces(endpoint, url, pattern.tenant))
        return pattern.topics(self.cluster.topics_of_all(pattern.namespaces(names)))

    def _resolved(self, place: Place | MessageId, topic: str, ends: Offsets) -> MessageId:
        if isinstance(place, MessageId):
            return place
        if isinstance(place, dict):
            parent = str(TopicName.parse(topic).parent)
            if topic not in place and parent not in place:
                raise ValueError(f"offsets are given for {', '.join(sorted(place))}, and none for {topic}")
            return self._resolved(place.get(topic, place.get(parent, EARLIEST)), topic, ends)
        if isinstance(place, int):
            with Subscription.reading(self.cluster, topic, BEGINNING) as subscription:
                return subscription.id_at(place)
        return ends[topic] if place == LATEST else BEGINNING

    # -- how far -----------------------------------------------------------------------------------------------------

    def limited(self, start: Offsets, end: Offsets, messages_max: int | None, bytes_max: int | None) -> Offsets:
        """Return how far a micro-batch goes from `start` towards `end` within its budgets."""
        meter = self._meter(start, end, messages_max)
        # Without counts, a part in proportion to what waits is no more than a guess: then publish times decide.
        divide = spend_on_oldest if self.settings.align_partitions or not meter.is_counted else spend
        divide(meter, messages_max, bytes_max)
        return {**start, **meter.reached()}

    def _meter(self, start: Offsets, end: Offsets, messages_max: int | None) -> CountingMeter | ReadingMeter:
        if not self.settings.reading.compacted and self.watch.counts:
            meter = CountingMeter(self.watch, start, end, self.paces, self._published)
            if meter.sample():
                return meter
        if self._reading is None:
            self._reading = ReadingMeter(self.cluster, self.settings.reading, self.paces)
        self._reading.begin(start, end, messages_max, self._entries(start, end))
        return self._reading

    def waiting(self, start: Offsets, end: Offsets) -> dict[str, int | None]:
        """Return about how many messages each range has, by what is known of the partitions.

        Brokers are asked about ranges with several ledgers; None if they do not tell.
        """
        entries = self._entries(start, end)
        return {
            topic: None
            if count is None
            # Of the first entry a part may have been read.
            else max(
                0, self.paces.get(topic, UNKNOWN_PACE).messages_in(count) - start.get(topic, BEGINNING).batch_index
            )
            for topic, count in entries.items()
        }

    def segments(self, ranges: Iterable[TopicRange]) -> dict[str, list[Segment]]:
        """Return the segments of ranges with several ledgers, as far as brokers tell."""
        chained = [] if self._is_penstock else [one for one in ranges if not is_counted(one.start, one.end)]
        found = {one.topic: segments_of(self.cluster, one) for one in chained}
        return {topic: segments for topic, segments in found.items() if segments}

    @property
    def _is_penstock(self) -> bool:
        """Whether brokers have counted messages: then they have one ledger for a topic."""
        return self.watch.is_known_to_count

    def _entries(self, start: Offsets, end: Offsets) -> dict[str, int | None]:
        """Return how many entries each range has."""
        ranges = [TopicRange(topic, start.get(topic, BEGINNING), stop) for topic, stop in end.items()]
        chained = [] if self._is_penstock else [one for one in ranges if not is_counted(one.start, one.end)]
        asked = entries_in(self.cluster, chained) if chained else {}
        unknown = {one.topic for one in chained} - asked.keys()
        return {
            one.topic: None if one.topic in unknown else asked.get(one.topic, entries_between(one.start, one.end))
            for one in ranges
        }

    def sample(self, start: Offsets, end: Offsets) -> None:
        """Ask how many messages entries hold, where brokers tell and it matters, for `waiting`."""
        if not self.settings.reading.compacted and self.watch.counts:
            many = {
                topic: stop
                for topic, stop in end.items()
                if entries_between(start.get(topic, BEGINNING), stop) >= SAMPLED_ENTRIES_MIN
            }
            CountingMeter(self.watch, start, many, self.paces, self._published).sample()

    def lag(self, reached: Offsets, end: Offsets) -> Lag:
        """Return how far `reached` is behind `end`, in messages, and in seconds since the next one was published."""
        behind = {topic: stop for topic, stop in end.items() if reached.get(topic, BEGINNING) < stop}
        messages = self.waiting(reached, behind)
        heads: dict[str, int] = {}
        if self._reading is not None:
            heads = self._reading.heads(topic for topic in behind if topic in self._reading.measured)
        elif behind and not self.settings.reading.compacted:
            places = {topic: reached.get(topic, BEGINNING) for topic in behind}
            heads = CountingMeter(self.watch, places, behind, self.paces, self._published).heads(behind)
        now_ms = self._clock.wall_ms()
        return Lag(
            {
                topic: (messages[topic], max(0, now_ms - heads[topic]) / 1_000 if heads.get(topic) else None)
                for topic in behind
            }
        )

    # -- what was committed ------------------------------------------------------------------------------------------

    def acknowledge(self, offsets: Offsets) -> None:
        """Move the durable subscriptions to these offsets; create missing ones."""
        for topic, offset in offsets.items():
            name = self.settings.subscription_of(topic)
            with Subscription.durable(self.cluster, topic, name) as subscription:
                subscription.acknowledge_before(offset)


def _mentions_latest(place: Place) -> bool:
    return place == LATEST or (isinstance(place, dict) and LATEST in place.values())

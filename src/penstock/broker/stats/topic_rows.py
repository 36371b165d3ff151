# SPDX-License-Identifier: Apache-2.0
"""A few numbers of every topic, read into columns: what a list of a hundred thousand topics shows.

Why not a snapshot: that has forty numbers of each subscription, and takes the loop ten times as long. Here a topic and
its subscription take 2 to 7 µs together; most of a broker's topics have no traffic, and take the least.
Where: the web console asks for it, and shows pages of it (`admin.topic_table`).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.stats.reading import Pace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.stats.message_rates import MessageRates
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.storage.catalog import Catalog

# Topics and subscriptions read in one turn of the loop: one or two milliseconds.
ROWS_PER_TURN: Final = 400
# Records looked at in one turn: half a millisecond.
RECORDS_PER_TURN: Final = 1_000

WHOLE: Final = ("msgBacklog", "publishers", "consumers", "subscriptions")
RATES: Final = ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut")
# Of all loaded topics in sum, since they were loaded.
COUNTED: Final = ("messagesIn", "bytesIn", "messagesOut", "bytesOut", "unacked", "delayed")


def _columns() -> dict[str, array[Any]]:
    return {**{name: array("q") for name in WHOLE}, **{name: array("d") for name in RATES}}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicColumns:
    """All topics of one broker at (nearly) one moment; `columns[name][row]` belongs to `names[row]`.

    Attributes:
        loaded: how many of them are loaded. They come first; the others have zeros.
    """

    taken_at_ms: int
    names: list[str] = field(default_factory=list)
    columns: Mapping[str, array[Any]] = field(default_factory=_columns)
    counted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    loaded: int = 0

    @property
    def size_bytes(self) -> int:
        """Memory of the columns. The names are those of the topics themselves."""
        return 8 * len(self.names) + sum(column.itemsize * len(column) for column in self.columns.values())


class TopicRows:
    """Reads the columns. All methods are called on the broker's loop."""

    def __init__(self, topics: TopicDirectory, catalog: Catalog, rates: MessageRates, clock: Clock) -> None:
        self._topics = topics
        self._catalog = catalog
        self._rates = rates
        self._clock = clock

    async def read(self) -> TopicColumns:
        """Read all topics that this broker serves, in portions, so that the loop continues in between."""
        taken_at_ms = self._clock.wall_ms()
        columns = _columns()
        counted = dict.fromkeys(COUNTED, 0)
        appends = [column.append for column in columns.values()]
        names: dict[str, None] = {}  # in the order of the rows
        pace = Pace(ROWS_PER_TURN)
        for topic in self._topics.loaded():
            names[topic.text] = None
            for append, number in zip(appends, await self._row(topic, counted, pace), strict=True):
                append(number)
        loaded = len(names)
        await self._add_not_loaded(names)
        for column in columns.values():
            column.frombytes(bytes(column.itemsize * (len(names) - loaded)))
        return TopicColumns(taken_at_ms=taken_at_ms, names=list(names), columns=columns, counted=counted, loaded=loaded)

    async def _add_not_loaded(self, names: dict[str, None]) -> None:
        """Add the topics that nobody has used since the start."""
        pace = Pace(RECORDS_PER_TURN)
        for record in [*self._catalog.topics()]:
            if self._catalog.is_own(record):
                names[record.name] = None  # Nothing changes for those that are loaded.
            await pace.rows(1)

    async def _row(self, topic: Topic, counted: dict[str, int], pace: Pace) -> tuple[float, ...]:
        """Return the numbers of a topic, in the order of the columns, and count what is counted."""
        await pace.rows(1)
        rates = self._rates
        backlog = consumers = 0
        out = bytes_out = 0.0
        for subscription in list(topic.subscriptions.values()):
            await pace.rows(1)
            backlog += subscription.backlog
            consumers += len(subscription.consumers)
            counted["unacked"] += subscription.unacked
            counted["delayed"] += subscription.delayed
            if subscription.messages_out:
                rate_out = rates.rates_out(subscription)
                out += rate_out.messages
                bytes_out += rate_out.bytes
                counted["messagesOut"] += subscription.messages_out
                counted["bytesOut"] += subscription.bytes_out
        counted["messagesOut"] += topic.messages_out_before
        counted["bytesOut"] += topic.bytes_out_before
        rate_in = rates.rates_in(topic)
        counted["messagesIn"] += topic.messages_in
        counted["bytesIn"] += topic.bytes_in
        whole = (backlog, len(topic.producers), consumers, len(topic.subscriptions))
        return (*whole, rate_in.messages, rate_in.bytes, out, bytes_out)

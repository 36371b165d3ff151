# SPDX-License-Identifier: Apache-2.0
"""Producers of one client of the proxy, and the limits of groups and of throttling on them.

SENDs of a limit in debt are held, as in the broker, and all others of the connection go on. A producer whose
CLOSE_PRODUCER waits behind held SENDs is closed after them. A PRODUCER with the id of one that still holds SENDs is the
same producer again, after its broker has closed it: the client sends again what was not acknowledged, so the held SENDs
are dropped.
Where: each `relay` has one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import ServiceNotReady
from penstock.core.names import TopicName
from penstock.groups.group import set_groups
from penstock.groups.held_sends import HeldProducer, HeldSends
from penstock.proxy.usage import RelayedUsage
from penstock.wire.relayed import pick_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.governance.holds import Episode
    from penstock.governance.memory_pool import Lease
    from penstock.groups.group import Group
    from penstock.groups.limit import PublishLimit
    from penstock.net.connection import Connection
    from penstock.proxy.proxy import Services
    from penstock.proxy.throttling import PublishedTopic
    from penstock.wire import codec
    from penstock.wire.events import PublishRun

# Memory of one producer, besides the name of its topic, and of what counts its receipts if usage is recorded (measured
# with tracemalloc: 510 to 620, and 930).
PRODUCER_BYTES: Final = 640
_COUNTED_BYTES: Final = 960


class RelayedTopic:
    """A topic that a client publishes to, with its limits here.

    Attributes:
        all_producers: the topic with the producers of all clients; None without adaptive throttling.
    """

    __slots__ = ("all_producers", "name", "publish_limited_times", "publish_lines", "resource_groups")

    def __init__(self, name: TopicName) -> None:
        self.name = name
        self.publish_limited_times = 0
        self.resource_groups: tuple[Group, ...] = ()
        self.publish_lines: tuple[PublishLimit, ...] = ()
        self.all_producers: PublishedTopic | None = None

    def held(self, messages: int, nbytes: int) -> None:
        """See `LimitedTopic`."""
        if self.all_producers is not None:
            self.all_producers.waiting = self.all_producers.waiting.plus(messages, nbytes)

    def limit(self, groups: tuple[Group, ...]) -> None:
        """Set the groups that limit it."""
        set_groups(self, groups)
        if self.all_producers is not None:
            self.all_producers.resource_groups = groups
        self.set_lines()

    def set_lines(self) -> None:
        """Set the lines in which its producers wait."""
        throttles = self.all_producers.lines() if self.all_producers is not None else ()
        self.publish_lines = (*(group.publish for group in self.resource_groups), *throttles)


@dataclass(eq=False, slots=True)
class RelayedProducer:
    """A producer of a client, as far as the proxy must know it."""

    producer_id: int
    topic: RelayedTopic
    charged_bytes: int
    messages_in: int = 0
    bytes_in: int = 0
    waits: Episode[PublishLimit] | None = None


class RelayedSends:
    """All producers of one client."""

    def __init__(
        self, connection: Connection, services: Services, forward: Callable[[bytes | memoryview, Lease | None], None]
    ) -> None:
        """Args: forward: sends frames to the broker, and releases the lease when it has taken them."""
        self.connection = connection
        self.producers: dict[int, RelayedProducer] = {}
        self._services = services
        self._forward = forward
        self._held: HeldSends | None = None  # made for the first producer with a group
        self.usage = RelayedUsage(services.usage) if services.usage is not None else None

    # -- producers ----------------------------------------------------------------------------------------------------

    def opened(self, body: codec.CommandProducer) -> None:
        """A PRODUCER is passed on.

        Raises:
            InvalidTopicName: the payer of this name is unknown, even if the broker accepts the name.
            ServiceNotReady: there is no memory for one more.
        """
        self.forget(body.producer_id)
        topic = RelayedTopic(TopicName.parse(body.topic))
        nbytes = PRODUCER_BYTES + 2 * len(body.topic) + (_COUNTED_BYTES if self.usage is not None else 0)
        memory = self._services.sessions_memory
        memory.charge_for(f"a producer of {body.topic[:100]}", nbytes)
        producer = RelayedProducer(body.producer_id, topic, nbytes)
        if self._services.published is not None:
            changed = partial(self._lines_changed, producer)
            try:
                topic.all_producers = self._services.published.opened(topic.name, producer, changed)
            except ServiceNotReady:
                memory.release(nbytes)
                raise
        topic.limit(self._services.groups.of_topic(topic.name))
        self.producers[body.producer_id] = producer
        self._hold_if_limited(producer)
        if self._held is not None:
            self._held.added(producer)
        if self.usage is not None:
            self.usage.opened(body.producer_id, topic)

    def closed(self, producer_id: int, pass_on: Callable[[], None]) -> None:
        """A CLOSE_PRODUCER came: pass it on when all that is held of the producer has been sent."""

        def close() -> None:
            self.forget(producer_id)
            pass_on()

        if self._held is not None and self._held.holds(producer_id):
            self._held.after(producer_id, close)
        else:
            close()

    def drop_held(self) -> int:
        """Drop all SENDs that wait; a CLOSE_PRODUCER behind them is passed on. Returns how many were dropped.

        The client is not read any more, so no later SEND can pass before them. It sends them again elsewhere.
        """
        dropped = 0
        for producer_id in list(self.producers):
            waiting = self.waiting_of(producer_id)
            if waiting is not None and waiting.rows:
                dropped += waiting.rows
                self.forget(producer_id)
        return dropped

    def forget(self, producer_id: int) -> None:
        """A producer is gone: drop what is held of it."""
        producer = self.producers.pop(producer_id, None)
        if producer is None:
            return
        if self._held is not None:
            self._held.forget(producer_id)
        if producer.topic.all_producers is not None and self._services.published is not None:
            self._services.published.closed(producer.topic.all_producers, producer)
            producer.topic.all_producers = None
        producer.topic.limit(())
        if self.usage is not None:
            self.usage.forget(producer_id)
        self._services.sessions_memory.release(producer.charged_bytes)

    def close(self) -> None:
        """The client is gone."""
        for producer_id in list(self.producers):
            self.forget(producer_id)
        if self.usage is not None:
            self.usage.close()

    def waiting_of(self, producer_id: int) -> HeldProducer | None:
        """Return the held SENDs of a producer; None without any."""
        return self._held.waiting_of(producer_id) if self._held is not None else None

    def looks(self) -> Iterator[None]:
        """Definitions of groups have changed: look at one producer after another."""
        for producer in list(self.producers.values()):
            yield
            if self.producers.get(producer.producer_id) is not producer:
                continue  # It was closed meanwhile.
            groups = self._services.groups.of_topic(producer.topic.name)
            if groups != producer.topic.resource_groups:
                producer.topic.limit(groups)
                self._lines_changed(producer)

    def _lines_changed(self, producer: RelayedProducer) -> None:
        """A producer has other limits."""
        producer.topic.set_lines()
        self._hold_if_limited(producer)
        if self._held is not None:
            self._held.look_again(producer)

    def _hold_if_limited(self, producer: RelayedProducer) -> None:
        if producer.topic.publish_lines and self._held is None:
            self._held = HeldSends(
                self,
                self._services.held,
                submit=self._submit,
                release=self._services.release,
                pick=pick_frames,
                mislabelled=self._refuse_mislabelled,
            )

    def _refuse_mislabelled(self) -> None:
        """The broker would store a batch as one message, and send it for one permit: no limit here could count it."""
        self.connection.close("a SEND says that it holds fewer messages than its batch does")

    # -- SENDs --------------------------------------------------------------------------------------------------------

    def pass_on(self, run: PublishRun, lease: Lease) -> PublishRun | None:
        """Charge a run; return what may go on, None if all of it waits.

        `lease` is charged for all runs of the read; the parts for what waits are taken from it.
        """
        if self._held is None:
            if self._services.published is not None:
                self._charge(run)
            elif self.usage is not None:
                self.usage.passed(run)
            return run
        passed = self._held.keep_back(run, lease)
        if passed is not None:
            self._charge(passed)
        return passed

    def _submit(self, run: PublishRun, lease: Lease, _since_ns: int) -> None:
        self._charge(run)
        self._forward(run.data, lease)

    def _charge(self, run: PublishRun) -> None:
        """Charge the groups of each producer for its rows."""
        if self.usage is not None:
            self.usage.passed(run)
        first = run.producer_ids[0]
        if run.producer_ids.count(first) == len(run.producer_ids):
            messages = len(run.offsets) if run.message_counts is None else sum(run.message_counts)
            self._charge_one(first, messages, sum(run.lengths), len(run.offsets))
            return
        amounts: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        for row, producer_id in enumerate(run.producer_ids):
            amount = amounts[producer_id]
            amount[0] += 1 if run.message_counts is None else run.message_counts[row]
            amount[1] += run.lengths[row]
            amount[2] += 1
        for producer_id, (messages, nbytes, entries) in amounts.items():
            self._charge_one(producer_id, messages, nbytes, entries)

    def _charge_one(self, producer_id: int, messages: int, nbytes: int, entries: int) -> None:
        producer = self.producers.get(producer_id)
        if producer is None:
            return
        producer.messages_in += messages
        producer.bytes_in += nbytes
        if producer.topic.all_producers is not None:
            producer.topic.all_producers.messages_in += messages
            producer.topic.all_producers.bytes_in += nbytes
        for line in producer.topic.publish_lines:
            line.accepted(messages, nbytes, entries)

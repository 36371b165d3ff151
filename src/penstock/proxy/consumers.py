# SPDX-License-Identifier: Apache-2.0
"""Consumers of one client of the proxy, and the dispatch limits of resource groups on them.

FLOWs of a consumer with a group are not passed on as they come: `groups.held_permits` adds them up, and passes on as
many permits as the group allows. Its messages are counted where they pass, and only on connections with such consumers.
A SUBSCRIBE with the id of a consumer is the same consumer again, after a seek or after its broker has closed it.
Where: each `relay` has one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.names import TopicName
from penstock.governance.budget import Charge
from penstock.groups.group import set_groups
from penstock.groups.held_permits import Permits
from penstock.wire.relayed import HEAD_BYTES_MAX, MessageCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.groups.group import Group
    from penstock.proxy.proxy import Services
    from penstock.proxy.response_stream import ResponseStream
    from penstock.proxy.usage import RelayedUsage
    from penstock.wire import codec
    from penstock.wire.relayed import Delivered

# Memory of one consumer with its permits, besides the name of its topic (measured with tracemalloc: 440, with permits
# that are counted 880).
CONSUMER_BYTES: Final = 960
# Consumers that have sent UNSUBSCRIBE and may go on, because it failed. Others of them are forgotten.
UNSUBSCRIBING_MAX: Final = 16


class RelayedConsumer:
    """A consumer of a client, as far as the proxy must know it."""

    __slots__ = ("charged_bytes", "consumer_id", "permits", "resource_groups", "topic")

    def __init__(self, consumer_id: int, topic: TopicName, charged_bytes: int) -> None:
        self.consumer_id = consumer_id
        self.topic = topic
        self.charged_bytes = charged_bytes
        self.resource_groups: tuple[Group, ...] = ()
        self.permits: Permits | None = None  # while it has groups, or while nobody knows whether it has


class RelayedConsumers:
    """All consumers of one client."""

    def __init__(
        self,
        services: Services,
        stream: ResponseStream,
        send_flow: Callable[[int, int], None],
        usage: RelayedUsage | None = None,
    ) -> None:
        """Receive what this uses.

        Args:
            services: of the proxy.
            stream: of the broker's frames.
            send_flow: sends the broker permits of a consumer.
            usage: counts what is delivered; None: usage is not recorded.
        """
        self.consumers: dict[int, RelayedConsumer] = {}
        self._services = services
        self._stream = stream
        self._send_flow = send_flow
        self._limited = 0  # consumers whose permits are counted
        self._counting = Charge(services.sessions_memory)
        self._unsubscribing: dict[int, None] = {}
        self._usage = usage
        self._count_if_wanted()

    # -- commands of the client ---------------------------------------------------------------------------------------

    def opened(self, body: codec.CommandSubscribe) -> None:
        """A SUBSCRIBE is passed on.

        Raises:
            InvalidTopicName: the payer of this name is unknown, even if the broker accepts the name.
            ServiceNotReady: there is no memory for one more.
        """
        self.forget(body.consumer_id)
        topic = TopicName.parse(body.topic)
        nbytes = CONSUMER_BYTES + 2 * len(body.topic)
        self._services.sessions_memory.charge_for(f"a consumer of {body.topic[:100]}", nbytes)
        consumer = self.consumers[body.consumer_id] = RelayedConsumer(body.consumer_id, topic, nbytes)
        groups = self._services.groups
        self._limit(consumer, groups.of_topic(topic), exact=True, known=groups.is_known(topic))

    def flow(self, body: codec.CommandFlow) -> bool:
        """A FLOW came. Returns whether it is passed on as it is."""
        consumer = self.consumers.get(body.consumer_id)
        if consumer is None:
            return False  # Brokers ignore it as well. It may belong to one that was forgotten here.
        self._unsubscribing.pop(body.consumer_id, None)
        if consumer.permits is None:
            return True
        consumer.permits.flow(body.messagePermits)
        return False

    def unsubscribed(self, consumer_id: int) -> None:
        """An UNSUBSCRIBE is passed on. If it fails, the consumer goes on; nobody says when it has succeeded."""
        if consumer_id not in self.consumers:
            return
        self._unsubscribing[consumer_id] = None
        if len(self._unsubscribing) > UNSUBSCRIBING_MAX:
            self.forget(next(iter(self._unsubscribing)))

    def forget(self, consumer_id: int) -> None:
        """A consumer is gone, with what waits of its permits."""
        consumer = self.consumers.pop(consumer_id, None)
        self._unsubscribing.pop(consumer_id, None)
        if consumer is None:
            return
        self._limit(consumer, (), exact=True)
        self._services.sessions_memory.release(consumer.charged_bytes)

    def close(self) -> None:
        """The client is gone."""
        for consumer_id in list(self.consumers):
            self.forget(consumer_id)
        self._usage = None
        self._count_if_wanted()

    def looks(self) -> Iterator[None]:
        """Definitions of groups have changed: look at one consumer after another."""
        all_groups = self._services.groups
        for consumer in list(self.consumers.values()):
            yield
            if self.consumers.get(consumer.consumer_id) is not consumer:
                continue
            groups, known = all_groups.of_topic(consumer.topic), all_groups.is_known(consumer.topic)
            permits = consumer.permits
            if groups != consumer.resource_groups or (permits is None) is not (known and not groups):
                self._limit(consumer, groups, exact=False, known=known)
                if permits is not None and not groups:
                    permits.limit(())  # What waits passes.

    # -- what the broker sends ----------------------------------------------------------------------------------------

    def delivered(self, counts: Mapping[int, Delivered]) -> None:
        """Messages have been sent on to the client."""
        for consumer_id, seen in counts.items():
            consumer = self.consumers.get(consumer_id)
            if consumer is None:
                continue
            if self._usage is not None:
                self._usage.delivered(consumer.topic, seen)
            if consumer.permits is not None:
                consumer.permits.delivered(seen.messages, seen.bytes, unread=seen.unread)

    # -- limits -------------------------------------------------------------------------------------------------------

    def _limit(self, consumer: RelayedConsumer, groups: tuple[Group, ...], *, exact: bool, known: bool = True) -> None:
        """Set the groups that limit a consumer. Until they are known, its permits are counted, and none is held."""
        set_groups(consumer, groups)
        lines = [group.dispatch for group in groups]
        if known and not groups:
            if consumer.permits is not None:
                consumer.permits.leave()
                consumer.permits = None
                self._limited -= 1
        elif consumer.permits is not None:
            consumer.permits.limit(lines)
        else:
            send = partial(self._send_flow, consumer.consumer_id)
            consumer.permits = Permits(self._services.permit_steps, send, exact=exact)
            consumer.permits.limit(lines)
            self._limited += 1
        self._count_if_wanted()

    def _count_if_wanted(self) -> None:
        """Count messages while a consumer has a group, or while usage is recorded."""
        wanted = self._limited or self._usage is not None
        if wanted and self._stream.counter is None:
            self._stream.counter = MessageCounter(answers=self._usage is not None)
            self._counting.recharge(HEAD_BYTES_MAX)
        elif not wanted and self._counting.charged_bytes:
            self._stream.counter = None
            self._counting.release()

# SPDX-License-Identifier: Apache-2.0
"""Usage of clients, by namespace, role and subscription: counters of this run, for bills by principal.

Producers and consumers count what they do anyway. Each cycle adds what is new in them; a client that leaves is added
when it leaves, so nothing is missed between cycles, and the hot path is unchanged.

Bounds: at most COUNTS_MAX names are counted one by one; of what does not fit, only the tenant is known. Counters
without clients that were recorded IDLE_CYCLES_MAX cycles ago are forgotten, and begin anew with another `since_ms`.

Where: `usage`, which records them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.accounting.totals import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# About 0.6 KiB each.
COUNTS_MAX: Final = 10_000
IDLE_CYCLES_MAX: Final = 5


class Principal(NamedTuple):
    """The payer of usage. `subscription` is empty for producers; of what does not fit, all but the tenant is empty."""

    tenant: str = ""
    namespace: str = ""
    role: str = ""
    subscription: str = ""


class Session(Protocol):
    """The client's connection."""

    @property
    def payer_role(self) -> str | None: ...


class Client(Protocol):
    """A producer or a consumer."""

    connected_at_ms: int
    seen: Seen

    @property
    def session(self) -> Session: ...


class ProducerClient(Client, Protocol):
    """A producer."""

    messages_in: int
    bytes_in: int


class ConsumerClient(Client, Protocol):
    """A consumer."""

    messages_out: int
    bytes_out: int


class ClientSubscription(Protocol):
    """A subscription."""

    name: str

    @property
    def consumers(self) -> Sequence[ConsumerClient]: ...


class ClientTopic(Protocol):
    """A loaded topic."""

    @property
    def text(self) -> str: ...
    @property
    def producers(self) -> Mapping[str, ProducerClient]: ...
    @property
    def subscriptions(self) -> Mapping[str, ClientSubscription]: ...


class ClientCount:
    """The counters of one principal.

    Attributes:
        since_ms: when they were 0.
        connections: producers and consumers that were there in the last cycle.
        connected_ms: for how long they were, added up.
    """

    __slots__ = (
        "bytes_in", "bytes_out", "connected_ms", "connections", "idle_cycles", "messages_in", "messages_out",
        "recorded", "since_ms",
    )  # fmt: skip

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.connections = 0
        self.connected_ms = 0
        self.messages_in = self.bytes_in = self.messages_out = self.bytes_out = 0
        self.recorded: tuple[int, ...] = ()
        self.idle_cycles = 0

    @property
    def counters(self) -> tuple[int, ...]:
        return self.messages_in, self.bytes_in, self.messages_out, self.bytes_out, self.connected_ms


class ClientUsage:
    """Counts what clients use. All methods are called on the event loop."""

    def __init__(self, new_since_ms: Callable[[], int], wall_ms: Callable[[], int]) -> None:
        """Args: new_since_ms: returns unique times; wall_ms: ms since 1970."""
        self._new_since_ms = new_since_ms
        self._wall_ms = wall_ms
        self._counts: dict[Principal, ClientCount] = {}

    def begin(self) -> None:
        """A cycle begins: count connections anew."""
        for count in self._counts.values():
            count.connections = 0

    def add(self, topic: ClientTopic) -> None:
        """Add what the clients of a topic have done since the last cycle."""
        for producer in topic.producers.values():
            self._published(topic.text, producer).connections += 1
        for subscription in topic.subscriptions.values():
            for consumer in subscription.consumers:
                self._consumed(topic.text, subscription.name, consumer).connections += 1

    def producer_left(self, topic: str, producer: ProducerClient) -> None:
        self._published(topic, producer)

    def consumer_left(self, topic: str, subscription: str, consumer: ConsumerClient) -> None:
        self._consumed(topic, subscription, consumer)

    def _published(self, topic: str, producer: ProducerClient) -> ClientCount:
        count = self._count_of(topic, producer, "")
        now = self._seen(producer, producer.messages_in, producer.bytes_in, count)
        count.messages_in += now.messages - producer.seen.messages
        count.bytes_in += now.bytes - producer.seen.bytes
        producer.seen = now
        return count

    def _consumed(self, topic: str, subscription: str, consumer: ConsumerClient) -> ClientCount:
        count = self._count_of(topic, consumer, subscription)
        now = self._seen(consumer, consumer.messages_out, consumer.bytes_out, count)
        count.messages_out += now.messages - consumer.seen.messages
        count.bytes_out += now.bytes - consumer.seen.bytes
        consumer.seen = now
        return count

    def _seen(self, client: Client, messages: int, nbytes: int, count: ClientCount) -> Seen:
        before_ms = client.seen.until_ms or client.connected_at_ms
        now_ms = max(before_ms, self._wall_ms())  # The clock may have been set back.
        count.connected_ms += now_ms - before_ms
        return Seen(messages, nbytes, now_ms)

    def _count_of(self, topic: str, client: Client, subscription: str) -> ClientCount:
        tenant, namespace, _ = topic.partition("://")[2].split("/", 2)
        who = Principal(tenant, f"{tenant}/{namespace}", client.session.payer_role or "", subscription)
        count = self._counts.get(who)
        if count is None:
            if len(self._counts) >= COUNTS_MAX:
                who = Principal(tenant)  # Who has many names still pays.
            count = self._counts.setdefault(who, ClientCount(self._new_since_ms()))
        return count

    def changed(self) -> Iterator[tuple[Principal, ClientCount]]:
        """Yield the counters that were not recorded like this; `recorded` says that they are."""
        for who, count in list(self._counts.items()):
            if count.counters != count.recorded:
                count.idle_cycles = 0
                yield who, count
            else:
                count.idle_cycles += 1
                if count.idle_cycles > IDLE_CYCLES_MAX and not count.connections:
                    del self._counts[who]

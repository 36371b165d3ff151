# SPDX-License-Identifier: Apache-2.0
"""What publishing needs of the parts above it: topics and the clients of producers, each as narrow as its use.

Where: `Topic`, `Session` and `DelayedIndex` satisfy these as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.broker.policies.policy_table import EffectivePolicies
    from penstock.broker.publishing.access_modes import WriteAccess
    from penstock.broker.publishing.deduplication import TopicDeduplication
    from penstock.broker.publishing.limiters import DispatchLimiter, PublishLimiter
    from penstock.broker.publishing.producer import Producer
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.subscriptions.tail import Tail
    from penstock.core.checksum import Buffer
    from penstock.core.names import TopicName
    from penstock.net.connection import Connection
    from penstock.storage.entry_log import Batch


class DelayedEntries(Protocol):
    """The delayed messages of a topic."""

    def published(self, first_entry_id: int, data: Buffer, offsets: Sequence[int], lengths: Sequence[int]) -> None:
        """Entries with consecutive ids are durable. Called before anybody may read them."""
        ...


class PublishedTopic(Protocol):
    """A topic that is published to."""

    ledger_id: int
    first_entry_id: int
    next_entry_id: int  # that the next entry gets
    messages_in: int
    bytes_in: int
    entries_in: int
    publish_limited_times: int  # how often a rate stopped one of its producers
    publish_limiters: tuple[PublishLimiter, ...]
    dispatch_limiter: DispatchLimiter | None
    deduplication: TopicDeduplication | None

    @property
    def name(self) -> TopicName: ...
    @property
    def text(self) -> str: ...  # the name as text
    @property
    def persistent(self) -> bool: ...
    @property
    def policies(self) -> EffectivePolicies: ...
    @property
    def bounds_messages(self) -> bool: ...  # whether it takes smaller messages only than the broker does
    @property
    def terminated(self) -> bool: ...
    @property
    def fenced(self) -> bool: ...  # being unloaded or deleted
    @property
    def closed(self) -> bool: ...  # not this broker's any more
    @property
    def last_entry_id(self) -> int: ...  # the last that is durable
    @property
    def producers(self) -> dict[str, Producer]: ...
    @property
    def write_access(self) -> WriteAccess: ...
    @property
    def subscriptions(self) -> Mapping[str, Subscription]: ...
    @property
    def delayed(self) -> DelayedEntries | None: ...
    @property
    def tail(self) -> Tail: ...

    def check_publishable(self) -> None:
        """Raises TopicTerminated, or ServiceNotReady while it is being unloaded or deleted."""
        ...

    def appended(self, last_entry_id: int) -> None:
        """Entries up to this one are durable."""
        ...

    def wants_tail(self) -> bool:
        """Whether caching new entries pays."""
        ...

    def pass_through(self, batch: Batch) -> None:
        """Hand entries of a non-persistent topic to whoever has permits now."""
        ...


class ProducerClient(Protocol):
    """The client's session, which attached a producer."""

    @property
    def connection(self) -> Connection: ...
    @property
    def producers(self) -> dict[int, Producer]: ...  # of this connection, by their ids
    @property
    def client_version(self) -> str: ...

    def sent_by_unknown_producer(self, producer_id: int) -> None:
        """Somebody sends who is not attached."""
        ...

    def disconnect_producer(self, producer: Producer) -> None:
        """Detach a producer and tell its client to connect it again."""
        ...

    def forget_producer(self, producer: Producer) -> None:
        """Detach a producer."""
        ...

    def remember_closed(self, producer_id: int) -> None:
        """Swallow SENDs of a producer that were on their way when it was detached."""
        ...

    def reply(self, frame: bytes) -> None:
        """Write one command."""
        ...

    async def probe(self) -> bool:
        """Whether the client still answers; it is closed if it does not."""
        ...

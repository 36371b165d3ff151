# SPDX-License-Identifier: Apache-2.0
"""Topics, sessions and delayed indexes, as publishing uses them.

Where: `Topic`, `Session` and `DelayedIndex` satisfy these protocols as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.broker.subscriptions.consumer import ConsumerCounts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.broker.access import Action
    from penstock.broker.access.authorization import Resource
    from penstock.broker.policies.policy_table import EffectivePolicies
    from penstock.broker.publishing.checks import WriteAccess
    from penstock.broker.publishing.deduplication import TopicDeduplication
    from penstock.broker.publishing.limiters import DispatchRate
    from penstock.broker.publishing.producer import Producer
    from penstock.broker.publishing.transaction_entries import TransactionEntries
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.subscriptions.tail import Tail
    from penstock.core.checksum import Buffer
    from penstock.core.durations import Durations
    from penstock.core.names import TopicName
    from penstock.governance.resource_group import Amount
    from penstock.groups.adaptive_publish import AdaptivePublish, AdaptiveTopic
    from penstock.groups.group import Group
    from penstock.groups.limit import PublishLimit
    from penstock.net.connection import Connection
    from penstock.storage.entry_log import Batch


class DelayedEntries(Protocol):
    """The delayed messages of a topic."""

    def published(self, first_entry_id: int, data: Buffer, offsets: Sequence[int], lengths: Sequence[int]) -> None:
        """Add durable entries with consecutive ids. Called before any consumer can read them."""


class ClientCounts(ConsumerCounts, Protocol):
    """Counts what clients use."""

    def producer_left(self, topic: str, producer: Producer) -> None:
        """A producer was detached; its counters do not change any more."""


class PublishedTopic(Protocol):
    """A topic that receives messages."""

    ledger_id: int
    first_entry_id: int
    next_entry_id: int  # id of the next entry
    messages_in: int
    bytes_in: int
    entries_in: int
    publish_times: Durations  # from reading entries to their receipts; of its namespace
    chunks_in: int  # chunks that others of their message follow; each is a message in `messages_in`
    publish_limited_times: int  # how often a rate limit stopped one of its producers
    publish_lines: tuple[PublishLimit, ...]  # its limits
    resource_groups: tuple[Group, ...]
    adaptive: AdaptiveTopic | None  # None without adaptive throttling, or while nothing is published
    throttle_lines: tuple[AdaptivePublish, ...]
    counted: Amount
    waiting: Amount
    dispatch_limiter: DispatchRate | None
    clients: ClientCounts | None
    deduplication: TopicDeduplication | None
    transactions: TransactionEntries | None

    @property
    def name(self) -> TopicName: ...
    @property
    def text(self) -> str: ...  # the full name
    @property
    def system(self) -> bool: ...  # whether only brokers publish to it
    @property
    def persistent(self) -> bool: ...
    @property
    def policies(self) -> EffectivePolicies: ...
    @property
    def bounds_messages(self) -> bool: ...  # whether its message size limit is below the broker's
    @property
    def terminated(self) -> bool: ...
    @property
    def fenced(self) -> bool: ...  # being unloaded or deleted
    @property
    def closed(self) -> bool: ...  # not this broker's topic any more
    def held(self, messages: int, nbytes: int) -> None: ...  # of its SENDs more are held, or fewer
    @property
    def last_entry_id(self) -> int: ...  # the last durable entry
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

    def appended(self, last_entry_id: int) -> None:
        """Entries up to this one are durable: wake the subscriptions that wait for new entries."""

    def wants_tail(self) -> bool:
        """Whether caching new entries pays off."""

    def pass_through(self, batch: Batch) -> None:
        """Deliver entries of a non-persistent topic to consumers with permits."""


class WaitingProducer(Protocol):
    """A producer that waits for a resource group, or for a rate of its topic after it has waited for a group."""

    amount: Amount  # held


class HeldSends(Protocol):
    """SENDs of one connection that wait for a resource group."""

    def waiting_of(self, producer_id: int) -> WaitingProducer | None:
        """Return the held SENDs of a producer; None without any."""

    def added(self, producer: Producer) -> None:
        """A producer is new."""

    def look_again(self, producer: Producer) -> None:
        """The lines of a producer's topic have changed."""


class ProducerClient(Protocol):
    """The session of a producer's client."""

    @property
    def connection(self) -> Connection: ...
    @property
    def producers(self) -> dict[int, Producer]: ...  # attached producers of this connection, by id
    @property
    def client_version(self) -> str: ...
    @property
    def payer_role(self) -> str | None: ...  # whose client it is: the proven role, behind a proxy the original one
    @property
    def held(self) -> HeldSends | None: ...  # SENDs that wait for a resource group

    def hold_sends(self) -> HeldSends:
        """`held`, from now on not None."""

    def sent_by_unknown_producer(self, producer_id: int) -> None:
        """Handle a SEND of a producer that is not attached."""

    def disconnect_producer(self, producer: Producer) -> None:
        """Detach a producer and tell its client to reconnect it."""

    def forget_producer(self, producer: Producer) -> None: ...

    def remember_closed(self, producer_id: int) -> None:
        """Ignore SENDs that were in flight when their producer was detached."""

    @property
    def protocol_version(self) -> int: ...

    def reply(self, frame: bytes) -> None: ...

    def require(self, action: Action, resource: Resource, *, subscription: str | None = None) -> None:
        """Raises AuthorizationFailed unless this client may do that."""

    async def probe(self) -> bool:
        """Whether the client still answers; if not, it is closed."""

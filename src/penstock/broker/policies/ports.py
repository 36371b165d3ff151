# SPDX-License-Identifier: Apache-2.0
"""What policies see of topics and subscriptions, which stand above them.

Where: `topics.topic.Topic` and `subscriptions.subscription.Subscription` have all of this; the type checker says so
where `broker` hands them in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sized

    from penstock.broker.policies.policy_table import EffectivePolicies
    from penstock.core.names import TopicName
    from penstock.storage.cursor import Cursor


class SubscribedPort(Protocol):
    """The topic of a subscription, as far as the age of its messages is concerned."""

    @property
    def text(self) -> str:
        """Its full name."""
        ...

    @property
    def ledger_id(self) -> int:
        """The ledger that its entries are in."""
        ...

    @property
    def last_entry_id(self) -> int:
        """The last entry that is durable."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it was unloaded or deleted."""
        ...


class SubscriptionPort(Protocol):
    """A subscription, as far as retention and quotas are concerned."""

    name: str
    durable: bool
    replicated: bool
    cursor: Cursor
    idle_since_ns: int

    @property
    def topic(self) -> SubscribedPort:
        """The topic that it reads."""
        ...

    @property
    def consumers(self) -> Sized:
        """Who reads through it now."""
        ...

    def give_up_through(self, entry_id: int, /) -> int:
        """Acknowledge everything up to this entry; returns how many entries that were."""
        ...

    def expire_through(self, entry_id: int, /) -> int:
        """The same, counted as expired."""
        ...


class ProducerPort(Protocol):
    """A producer, as far as bounds of their number are concerned."""

    name: str

    @property
    def address(self) -> str:
        """Where its client is, as `host:port`."""
        ...


class WritersPort(Protocol):
    """A topic, as far as the number of its producers is concerned."""

    @property
    def text(self) -> str:
        """Its full name."""
        ...

    @property
    def policies(self) -> EffectivePolicies:
        """What is in force for it."""
        ...

    @property
    def producers(self) -> Mapping[str, ProducerPort]:
        """Its producers by their names."""
        ...


class TopicPort(Protocol):
    """A loaded topic, as far as policies are concerned."""

    name: TopicName
    text: str
    persistent: bool
    policies: EffectivePolicies
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    closed: bool

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionPort]:
        """Its subscriptions by their names."""
        ...

    @property
    def producers(self) -> Mapping[str, ProducerPort]:
        """Its producers by their names."""
        ...

    def first_needed(self) -> int | None:
        """The first entry that somebody still needs, whatever retention says; None without a durable subscription."""
        ...

    def policies_changed(self) -> None:
        """`policies` is another value now."""
        ...

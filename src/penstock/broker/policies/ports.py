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
    """What expiry uses of a subscription's topic."""

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
    """What retention and quotas use of a subscription."""

    name: str
    durable: bool
    replicated: bool
    cursor: Cursor
    idle_since_ns: int

    @property
    def topic(self) -> SubscribedPort:
        """The topic of the subscription."""
        ...

    @property
    def consumers(self) -> Sized:
        """The connected consumers."""
        ...

    def acknowledge_through(self, entry_id: int, /) -> int:
        """Acknowledge all entries up to this one; returns the number of entries."""
        ...

    def expire_through(self, entry_id: int, /) -> int:
        """Acknowledge all entries up to this one as expired; returns the number of entries."""
        ...


class ProducerPort(Protocol):
    """What limits of producers use of a producer."""

    name: str

    @property
    def address(self) -> str:
        """Address of its client, as `host:port`."""
        ...


class WritersPort(Protocol):
    """What limits of producers use of a topic."""

    @property
    def text(self) -> str:
        """Its full name."""
        ...

    @property
    def policies(self) -> EffectivePolicies:
        """The policies in force."""
        ...

    @property
    def producers(self) -> Mapping[str, ProducerPort]:
        """Its producers by their names."""
        ...


class TopicPort(Protocol):
    """What policies use of a loaded topic."""

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
        """Return the first entry that a durable subscription needs, regardless of retention; None without one."""
        ...

    def policies_changed(self) -> None:
        """Apply the new value of `policies`."""
        ...

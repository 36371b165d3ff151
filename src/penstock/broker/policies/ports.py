# SPDX-License-Identifier: Apache-2.0
"""What policies use of topics and subscriptions.

Where: `topics.topic.Topic` and `subscriptions.subscription.Subscription` satisfy these protocols; the type checker
verifies it where `broker` passes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sized

    from penstock.broker.policies.policy_table import EffectivePolicies
    from penstock.core.names import TopicName
    from penstock.governance.holds import Refusals
    from penstock.storage.cursor import Cursor


class SubscribedPort(Protocol):
    """What expiry uses of a subscription's topic."""

    @property
    def text(self) -> str: ...

    @property
    def ledger_id(self) -> int: ...

    @property
    def last_entry_id(self) -> int:
        """The last durable entry."""

    @property
    def closed(self) -> bool:
        """Whether it was unloaded or deleted."""


class SubscriptionPort(Protocol):
    """What retention and quotas use of a subscription."""

    name: str
    durable: bool
    cursor: Cursor
    idle_since_ns: int

    @property
    def topic(self) -> SubscribedPort: ...

    @property
    def consumers(self) -> Sized: ...

    def acknowledge_through(self, entry_id: int, /) -> int:
        """Acknowledge all entries up to this one; returns the number of entries."""

    def expire_through(self, entry_id: int, /) -> int:
        """Acknowledge all entries up to this one as expired; returns the number of entries."""


class ProducerPort(Protocol):
    """What limits of producers use of a producer."""

    name: str

    @property
    def address(self) -> str:
        """Address of its client, as `host:port`."""


class WritersPort(Protocol):
    """What limits of producers use of a topic."""

    @property
    def text(self) -> str: ...

    @property
    def policies(self) -> EffectivePolicies: ...

    @property
    def system(self) -> bool: ...  # whether only brokers publish to it

    @property
    def producers(self) -> Mapping[str, ProducerPort]: ...


class TopicPort(Protocol):
    """What policies use of a loaded topic."""

    name: TopicName
    text: str
    persistent: bool
    policies: EffectivePolicies
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    counted_before: int  # entries from here on are needed to count usage after a crash
    closed: bool
    refusals: Refusals | None  # of producers, by its backlog quotas, since one was admitted

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionPort]: ...

    @property
    def producers(self) -> Mapping[str, ProducerPort]: ...

    def first_needed(self) -> int | None:
        """The first entry that a durable subscription needs, regardless of retention; None without one."""

    def policies_changed(self) -> None:
        """Apply the new value of `policies`."""

# SPDX-License-Identifier: Apache-2.0
"""The broker's limits: its part of the configuration, in its own units.

Why one frozen value: configuration can change at run time. The value in `LimitsInForce` is then replaced as a whole, so
no reader sees half of a change; limits are read there each time and never copied.
Where: settings that the broker reads unchanged are rows in `limit_rows`. `settings.limits` fills a `BrokerLimits` by
field name and computes the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.broker.access.rules import AccessRules
from penstock.broker.limit_rows import (
    ClientLimits,
    ConnectionLimits,
    DeduplicationLimits,
    DeliveryLimits,
    FindingLimits,
    MaskingLimits,
    RecordLimits,
    SchemaLimits,
    SharingLimits,
    ThrottlingLimits,
    TopicLimits,
    TransactionLimits,
)
from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.net.listing_memory import TopicListLimits

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits(
    ConnectionLimits,
    TopicLimits,
    FindingLimits,
    ClientLimits,
    DeliveryLimits,
    DeduplicationLimits,
    TransactionLimits,
    SchemaLimits,
    MaskingLimits,
    SharingLimits,
    RecordLimits,
    ThrottlingLimits,
):
    """The broker's limits and switches. For limits (`…_max`), 0 means no limit."""

    cluster_name: str
    message_bytes_max: int
    keep_alive_ns: int
    liveness_check_ns: int
    failover_delay_s: float
    stop_s_max: float = 60.0

    memory_limit_bytes: int  # of the whole process; 0: unknown
    memory_rows: Mapping[str, int]  # of the memory budget, by name

    # Rows of the memory budget, each with one owner.

    # Defaults of policies, intervals of periodic checks, and rates of the whole broker.
    policies: PolicyDefaults = field(default_factory=PolicyDefaults)
    # Privileged roles, and which checks are enabled.
    access: AccessRules = field(default_factory=AccessRules)
    # Memory of topic listings.
    listings: TopicListLimits = field(default_factory=TopicListLimits)

    # Whether brokerDeleteInactiveTopicsMode was set explicitly: only then inactive topics are deleted with their
    # messages.
    delete_inactive_with_messages: bool = False


class LimitsInForce:
    """Returns the current limits when called; `configuration` replaces them at run time."""

    __slots__ = ("now",)

    def __init__(self, limits: BrokerLimits) -> None:
        self.now = limits

    def __call__(self) -> BrokerLimits:
        return self.now

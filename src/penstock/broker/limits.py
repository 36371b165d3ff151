# SPDX-License-Identifier: Apache-2.0
"""What the broker was told: its part of the configuration, in the units it computes with.

Why one frozen value: configuration can change while the broker runs. The value in `LimitsInForce` is then replaced as a
whole, so that nobody sees half of a change; whoever needs a limit reads it from there at that moment and keeps no copy.
Where: settings that the broker reads as they are written are rows in `limit_rows`. `settings.limits` fills a
`BrokerLimits` by the names of its fields, and works out the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.broker.access.rules import AccessRules
from penstock.broker.limit_rows import (
    ClientLimits,
    ConnectionLimits,
    DeduplicationLimits,
    DeliveryLimits,
    FindingLimits,
    SchemaLimits,
    TopicLimits,
)
from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.core.units import MIB
from penstock.net.topic_list_limiter import TopicListLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits(
    ConnectionLimits,
    TopicLimits,
    FindingLimits,
    ClientLimits,
    DeliveryLimits,
    DeduplicationLimits,
    SchemaLimits,
):
    """The broker's limits and switches. For bounds (`…_max`), 0 is none."""

    cluster_name: str
    message_bytes_max: int
    keep_alive_ns: int
    liveness_check_ns: int
    failover_delay_s: float
    stop_s_max: float = 60.0

    # Rows of the memory budget, each with one owner.
    tail_cache_bytes: int
    commands_bytes: int = 64 * MIB  # commands being carried out
    sessions_bytes: int = 64 * MIB  # what clients call their producers, consumers and watchers, and say of them
    metadata_bytes: int = 64 * MIB  # schemas, long names and properties that are stored
    http_bytes: int = 64 * MIB  # requests at the admin port
    dispatch_bytes: int = 64 * MIB  # what consumers owe, and what cursors have above their mark-delete position
    delayed_index_bytes: int = 64 * MIB

    # What namespaces and topics can overrule, how often it is looked after, and rates of the whole broker.
    policies: PolicyDefaults = field(default_factory=PolicyDefaults)
    # Roles, and what is checked of them.
    access: AccessRules = field(default_factory=AccessRules)
    # Memory of topic listings.
    listings: TopicListLimits = field(default_factory=TopicListLimits)

    # Whether brokerDeleteInactiveTopicsMode was set, by anybody: only then topics go with the messages that they hold.
    delete_inactive_with_messages: bool = False

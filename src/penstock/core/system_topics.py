# SPDX-License-Identifier: Apache-2.0
"""The system topics: a closed list of full names in `pulsar/system`, to which only brokers publish.

Why a closed list: what a tenant may name as it likes must not be exempt from a limit. Pulsar keeps some names for
itself in every namespace, such as `__change_events` and `…__transaction_pending_ack`. Here these topics are ordinary.

Why limits do not apply to these topics: their only writers are brokers, which nobody's quota pays for. So the right
belongs to the writer: `commands.producers` refuses all others, whatever they are allowed to do.

Where: `Topic.system` is decided once, when a topic is loaded. Listings, administration and Spark look at names.
"""

from __future__ import annotations

from typing import Final

from penstock.core.names import parent_text

# What brokers record about usage, and about decisions of limiters. Each broker writes a partition of its own.
USAGE_TOPIC: Final = "persistent://pulsar/system/usage"
DECISION_TOPIC: Final = "persistent://pulsar/system/governance"
_RECORD_TOPICS: Final = frozenset((USAGE_TOPIC, DECISION_TOPIC))
# On which brokers report what their resource groups use (PIP-82), unless resourceUsagePublishTopicName says otherwise.
REPORTS_TOPIC: Final = "non-persistent://pulsar/system/resource-usage"
# The same for proxies. To a broker they are clients, so for it this is an ordinary topic.
PROXY_REPORTS_TOPIC: Final = "non-persistent://pulsar/system/proxy-resource-usage"

# What proxies record, unless proxyUsageRecordsTopicName and proxyGovernanceRecordsTopicName say otherwise.
PROXY_USAGE_TOPIC: Final = "persistent://pulsar/system/proxy-usage"
PROXY_DECISION_TOPIC: Final = "persistent://pulsar/system/proxy-governance"

# Clients find transaction coordinators as partitions of this topic, which does not exist: partition i is broker i's.
COORDINATORS: Final = "persistent://pulsar/system/transaction_coordinator_assign"

# Before names are looked at closely: most are of other namespaces.
_RECORDS_START: Final = "persistent://pulsar/system/"


def is_record_topic(topic: str) -> bool:
    """Return whether a full name is that of a topic, or a partition, that brokers write their records to."""
    return topic.startswith(_RECORDS_START) and parent_text(topic) in _RECORD_TOPICS


def is_coordinator(topic: str) -> bool:
    """Return whether a full name is no topic's, but how clients call a transaction coordinator, or all of them.

    Everybody may look them up: what a transaction may do is decided where it does it.
    """
    return topic.startswith(_RECORDS_START) and parent_text(topic) == COORDINATORS


def is_system_topic(topic: str) -> bool:
    """Return whether a full name is that of a system topic, or of a partition of one."""
    return topic == REPORTS_TOPIC or is_record_topic(topic)

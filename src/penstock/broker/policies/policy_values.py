# SPDX-License-Identifier: Apache-2.0
"""Values of policies in force, and the words used to set them.

Where: `policy_table` makes them; the rest of the broker reads them from `Topic.policies`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.governance.resource_group import GroupRate, GroupRates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.catalog import Catalog


# ---------------------------------------------------------------------------------------------------------------------
# Stored quotas of resource groups (PIP-82), and the groups of a namespace and its tenant.
#
# A group is a document with the four members of Pulsar's ResourceGroup. A namespace names its group in its policies, a
# tenant in its own JSON. A name whose group does not exist has no effect. Where: `administration.resource_groups`
# changes these, `publishing.groups` enforces them.

# The kind of documents about clusters: this one, and others that topics may be replicated to.
CLUSTERS: Final = "cluster"

# Members about moving clients to another cluster, of a namespace's JSON and of this cluster's document. The first one
# is Pulsar's; the other one is ours, and is shown by routes of its own only (`topics.migration`).
MIGRATED: Final = "migrated"
MIGRATION: Final = "migration"

# The kind of document.
RESOURCE_GROUP: Final = "resource-group"
# The member of a tenant's JSON that names its group. Pulsar's TenantInfo has none.
OF_TENANT: Final = "resourceGroup"
# The member of a namespace's JSON, as in Pulsar's Policies.
OF_NAMESPACE: Final = "resource_group_name"
UNLIMITED: Final = -1
MEMBERS: Final = ("publishRateInMsgs", "publishRateInBytes", "dispatchRateInMsgs", "dispatchRateInBytes")


def rates_in(stored: Mapping[str, Any]) -> GroupRates:
    """The quota in a stored document. What is missing, null or not positive is no limit."""
    messages_in, bytes_in, messages_out, bytes_out = (_limit(stored.get(member)) for member in MEMBERS)
    return GroupRates(GroupRate(messages_in, bytes_in), GroupRate(messages_out, bytes_out))


def _limit(value: int | None) -> int | None:
    return value if value is not None and value > 0 else None


def tenant_group(catalog: Catalog, tenant: str) -> str:
    """The group of a tenant; empty: none."""
    return catalog.tenants().get(tenant, {}).get(OF_TENANT) or ""


SUBSCRIPTION_TYPES: Final = ("Exclusive", "Shared", "Failover", "Key_Shared")
QUOTA_SIZE: Final = "destination_storage"
QUOTA_AGE: Final = "message_age"
HOLD: Final = "producer_request_hold"
EXCEPTION: Final = "producer_exception"
EVICTION: Final = "consumer_backlog_eviction"
QUOTA_POLICIES: Final = (HOLD, EXCEPTION, EVICTION)
COMPATIBILITIES: Final = (
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)
# Translation of a namespace's older strategy, which is named after auto-update.
AUTO_UPDATE: Final = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}
INACTIVE_MODES: Final = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")


class Rate(NamedTuple):
    """A rate: messages and bytes per period; 0: no limit. `relative`: the current publish rate is added."""

    messages: int = 0
    bytes: int = 0
    period_s: int = 1
    relative: bool = False

    @property
    def limited(self) -> bool:
        return self.messages > 0 or self.bytes > 0


class BacklogQuota(NamedTuple):
    """Maximum size or age of a backlog (bytes or seconds; 0: no limit), and the action when it is exceeded."""

    limit: int = 0
    policy: str = HOLD


class DelayedDelivery(NamedTuple):
    """Whether delayed delivery is enabled, its resolution, and the maximum delay (0: no limit)."""

    active: bool = True
    tick_ms: int = 1000
    max_ms: int = 0


class Inactive(NamedTuple):
    """Whether an inactive topic is deleted, and when it counts as inactive."""

    mode: str = INACTIVE_MODES[0]
    max_inactive_s: int = 60
    delete: bool = True


class RetentionBounds(NamedTuple):
    """How long, and how many MiB of, acknowledged messages are retained; 0: none, -1: without limit."""

    minutes: int = 0
    mb: int = 0


class BacklogQuotas(NamedTuple):
    """Backlog quotas by size and by age."""

    size: BacklogQuota = BacklogQuota()  # bytes
    age: BacklogQuota = BacklogQuota()  # seconds


class AutoTopicCreation(NamedTuple):
    """Whether producers and consumers create a topic that does not exist, and its partitions (0: not partitioned)."""

    allowed: bool = True
    partitions: int = 0

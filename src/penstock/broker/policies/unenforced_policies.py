# SPDX-License-Identifier: Apache-2.0
"""Policies that are stored without effect, and the JSON of a namespace without policies.

Why: administrators' programs set Pulsar's policies and read them back.
Where: the admin API derives routes from these as from `policy_table`; `policies` stores them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from penstock.broker.policies.policy_rows import Level, Stored
from penstock.broker.policies.policy_table import POLICIES
from penstock.broker.policies.policy_values import AUTO_UPDATE
from penstock.broker.policies.shapes import Flag, Member, Object, Whole, Word, Words, text, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.policies.shapes import Json

UNENFORCED: Final = (
    Stored(
        name="persistence",
        namespace=Level("persistence"),
        topic=Level("persistence"),
        shape=Object(
            "persistence",
            "Copies of an entry, in a cluster that makes some. Kept as it is set; an entry log on one disk makes one.",
            {
                "bookkeeperEnsemble": whole(2),
                "bookkeeperWriteQuorum": whole(2),
                "bookkeeperAckQuorum": whole(2),
                "managedLedgerMaxMarkDeleteRate": Member(kind=float, default=0.0),
            },
        ),
        example={
            "bookkeeperEnsemble": 3,
            "bookkeeperWriteQuorum": 2,
            "bookkeeperAckQuorum": 1,
            "managedLedgerMaxMarkDeleteRate": 1.5,
        },
    ),
    Stored(
        name="deduplicationSnapshotInterval",
        namespace=Level("deduplicationSnapshotIntervalSeconds"),
        topic=Level("deduplicationSnapshotIntervalSeconds"),
        shape=Whole("deduplicationSnapshotInterval"),
        example=7,
    ),
    Stored(
        name="schemaAutoUpdateCompatibilityStrategy",
        namespace=Level("schema_auto_update_compatibility_strategy", verb="PUT", removable=False),
        shape=Word("schemaAutoUpdateCompatibilityStrategy", tuple(AUTO_UPDATE)),
        example="Forward",
    ),
    Stored(
        name="subscriptionAuthMode",
        namespace=Level("subscription_auth_mode", removable=False),
        shape=Word("subscriptionAuthMode", ("None", "Prefix")),
        nothing="None",
        example="Prefix",
    ),
    Stored(
        name="dispatcherPauseOnAckStatePersistent",
        namespace=Level("dispatcherPauseOnAckStatePersistentEnabled", unset=False),
        topic=Level("dispatcherPauseOnAckStatePersistentEnabled"),
        shape=Flag("dispatcherPauseOnAckStatePersistent"),
        example=True,
    ),
    Stored(
        name="entryFilters",
        namespace=Level("entryFilters"),
        topic=Level("entryFilters"),
        shape=Object(
            "entryFilters",
            "Filters of another broker's making. Kept as they are set; none is loaded here.",
            {"entryFilterNames": text()},
        ),
        example={"entryFilterNames": "a,b"},
    ),
    Stored(
        name="offloadPolicies",
        namespace=Level("offload_policies"),
        topic=Level("offloadPolicies"),
        shape=Object(
            "offloadPolicies",
            "Where old entries go, in a cluster that offloads. Kept as it is set; nothing is offloaded here.",
            {},
            open=True,
        ),
        example={"managedLedgerOffloadDriver": "filesystem"},
    ),
    Stored(
        name="offloadThreshold",
        namespace=Level("offload_threshold", verb="PUT", removable=False),
        shape=Whole("offloadThreshold", long=True),
        nothing=-1,
        example=7,
    ),
    Stored(
        name="offloadThresholdInSeconds",
        namespace=Level("offload_threshold_in_seconds", verb="PUT", removable=False),
        shape=Whole("offloadThresholdInSeconds", long=True),
        nothing=-1,
        example=7,
    ),
    Stored(
        name="offloadDeletionLagMs",
        namespace=Level("offload_deletion_lag_ms", verb="PUT"),
        shape=Whole("offloadDeletionLagMs", long=True),
        example=7,
    ),
    Stored(
        name="allowedClusters",
        namespace=Level("allowed_clusters", removable=False),
        shape=Words("allowedClusters"),
        nothing=[],
        example=["standalone"],
    ),
    Stored(
        name="shadowTopics",
        topic=Level("shadowTopics", verb="PUT"),
        shape=Words("shadowTopics"),
        example=["persistent://public/default/shadow"],
    ),
    Stored(
        name="resourceGroupName",
        topic=Level("resourceGroupName", routed=False),
        shape=Word("resourceGroupName", ()),
        example="gold",
    ),
)
ALL: Final[tuple[Stored, ...]] = (*POLICIES.values(), *UNENFORCED)  # all policies with a key of their own
# Policies JSON of a namespace where nothing is set.
EMPTY_NAMESPACE: Final[Mapping[str, Json]] = MappingProxyType(
    {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
        "clusterDispatchRate": {},
        "latency_stats_sample_rate": {},
        "deleted": False,
        "properties": {},
        "migrated": False,
        **{one.namespace.key: {} if one.per_cluster else one.nothing for one in ALL if one.namespace is not None},
    }
)
# Policies without effect, by their key in a topic's JSON.
UNENFORCED_OF_TOPICS: Final = {one.topic.key: one for one in UNENFORCED if one.topic is not None}

# SPDX-License-Identifier: Apache-2.0
"""The table of policies: each is a row, and the attribute that the broker reads.

Why one table: a policy has a name in the namespace's JSON, another in a topic's, a third in a path of the admin port, a
broker-wide default under a key of the configuration, a shape and a meaning. Declared in five places these drift apart.
Here a field of `EffectivePolicies` carries all of them, and the admin port's routes and models, the JSON of an empty
namespace, the reference documentation and the tests' examples are derived from it.
Where: `policies` reads rows and stores values; nobody else looks at the JSON. `shapes` says what a value may be,
`policy_values` what comes out, `policy_defaults` what the configuration says. Pure: no broker, no clock.

A value has the shape in which the admin port takes and gives it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.broker.policies.policy_rows import Level, Policy, Stored, row
from penstock.broker.policies.policy_values import (
    AUTO_UPDATE,
    COMPATIBILITIES,
    EVICTION,
    EXCEPTION,
    HOLD,
    INACTIVE_MODES,
    QUOTA_AGE,
    QUOTA_POLICIES,
    QUOTA_SIZE,
    SUBSCRIPTION_TYPES,
    AutoTopicCreation,
    BacklogQuota,
    BacklogQuotas,
    DelayedDelivery,
    Inactive,
    Rate,
    RetentionBounds,
)
from penstock.broker.policies.shapes import Each, Flag, Member, Object, Whole, Word, Words, flag, text, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.broker.policies.policy_defaults import PolicyDefaults
    from penstock.broker.policies.shapes import Json

# -- what several rows share


def _either_both_or_none(policy: dict[str, Json]) -> dict[str, Json]:
    minutes, megabytes = policy["retentionTimeInMinutes"], policy["retentionSizeInMB"]
    if minutes < -1 or megabytes < -1:
        raise ValueError("Invalid retention policy: size or time limit must be >= -1")
    if (minutes == 0) != (megabytes == 0):
        raise ValueError(
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits has "
            "a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To disable retention both "
            "limits must be set to 0."
        )
    return policy


def _one_size(quota: dict[str, Json]) -> dict[str, Json]:
    """`limit` is the older name of `limitSize`."""
    if quota["policy"] not in QUOTA_POLICIES:
        raise ValueError(f"policy of backlogQuota must be one of {', '.join(QUOTA_POLICIES)}, got {quota['policy']!r}")
    size = quota["limit"] if quota["limitSize"] is None else quota["limitSize"]
    quota["limit"] = quota["limitSize"] = -1 if size is None else size
    return quota


def _with_period(rate: dict[str, Json]) -> dict[str, Json]:
    if rate["ratePeriodInSecond"] < 1:
        raise ValueError(f"ratePeriodInSecond must be 1 or more, got {rate['ratePeriodInSecond']}")
    return rate


def _with_partitions(policy: dict[str, Json]) -> dict[str, Json]:
    if policy["allowAutoTopicCreation"]:
        if policy["topicType"] not in {"partitioned", "non-partitioned"}:
            raise ValueError(f"Unknown topic type [{policy['topicType']}]")
        if policy["topicType"] == "partitioned" and (policy["defaultNumPartitions"] or 0) < 1:
            raise ValueError("[defaultNumPartitions] cannot be less than 1 for partition type.")
        if policy["topicType"] == "non-partitioned" and policy["defaultNumPartitions"] is not None:
            raise ValueError("[defaultNumPartitions] is not allowed to be set when the type is non-partition.")
    return policy


def _some_time(policy: dict[str, Json]) -> dict[str, Json]:
    if policy["inactiveTopicDeleteMode"] not in INACTIVE_MODES:
        raise ValueError(f"inactiveTopicDeleteMode must be one of {', '.join(INACTIVE_MODES)}")
    if policy["maxInactiveDurationSeconds"] < 1:
        raise ValueError("maxInactiveDurationSeconds must be 1 or more")
    return policy


def _with_tick(policy: dict[str, Json]) -> dict[str, Json]:
    """Where messages may not be delayed, clients leave the tick at 0."""
    low = int(policy["active"])
    if policy["tickTime"] < low:
        raise ValueError(f"delayedDelivery: tickTime={policy['tickTime']} cannot be: want {low} ms or more")
    return policy


BACKLOG_QUOTA: Final = Object(
    "backlogQuota",
    "How large (bytes) or old (seconds) a backlog may become, and what happens then. `limit` is an older name.",
    {
        "limit": whole(long=True),
        "limitSize": whole(long=True),
        "limitTime": Member(kind=int, default=-1, nullable=True),
        "policy": text(HOLD, *QUOTA_POLICIES),
    },
    _one_size,
)
DISPATCH_RATE: Final = Object(
    "dispatchRate",
    "Messages and bytes that may be delivered in a period; -1: any.",
    {
        "dispatchThrottlingRateInMsg": whole(-1),
        "dispatchThrottlingRateInByte": whole(-1, long=True),
        "relativeToPublishRate": flag(default=False),
        "ratePeriodInSecond": whole(1),
    },
    _with_period,
)
_DISPATCH_EXAMPLE: Final = {
    "dispatchThrottlingRateInMsg": 5,
    "dispatchThrottlingRateInByte": 50,
    "relativeToPublishRate": True,
    "ratePeriodInSecond": 3,
}


class _SubscriptionRates:
    """Dispatch rates by subscription, as `{"name": {"dispatchRate": {…}}}`."""

    def check(self, value: Json) -> Json:
        if not isinstance(value, dict):
            raise ValueError(f"subscriptionPolicies must be a JSON object, got {value!r}")  # noqa: TRY004
        rates = {name: (one or {}).get("dispatchRate") for name, one in value.items()}
        return {name: {"dispatchRate": DISPATCH_RATE.check(rate)} for name, rate in rates.items() if rate is not None}


def _rate(value: Json) -> Rate:
    return Rate(
        max(0, value["dispatchThrottlingRateInMsg"]),
        max(0, value["dispatchThrottlingRateInByte"]),
        max(1, value["ratePeriodInSecond"]),
        bool(value["relativeToPublishRate"]),
    )


def _default_dispatch(of: PolicyDefaults, messages: int, nbytes: int) -> Json:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": nbytes,
        "relativeToPublishRate": of.dispatch_throttling_rate_relative_to_publish_rate and max(messages, nbytes) > 0,
        "ratePeriodInSecond": 1,
    }


def _quota_value(size: int, seconds: int, policy: str) -> Json:
    return {"limit": size, "limitSize": size, "limitTime": seconds, "policy": policy}


def _default_quotas(of: PolicyDefaults) -> Json:
    size, seconds = of.backlog_quota_default_limit_bytes, of.backlog_quota_default_limit_second
    policy = of.backlog_quota_default_retention_policy
    return {QUOTA_SIZE: _quota_value(size, -1, policy), QUOTA_AGE: _quota_value(-1, seconds, policy)}


def _quotas(value: Json) -> BacklogQuotas:
    size, age = value[QUOTA_SIZE], value[QUOTA_AGE]
    return BacklogQuotas(
        BacklogQuota(max(0, size["limitSize"]), size["policy"]), BacklogQuota(max(0, age["limitTime"]), age["policy"])
    )


def _default_auto_topic(of: PolicyDefaults) -> Json:
    allowed, kind, partitions = (
        of.allow_auto_topic_creation,
        of.allow_auto_topic_creation_type,
        of.default_num_partitions,
    )
    return {
        "allowAutoTopicCreation": allowed,
        "topicType": kind,
        "defaultNumPartitions": partitions if kind == "partitioned" else None,
    }


def _auto_topic(value: Json) -> AutoTopicCreation:
    partitioned = value["topicType"] == "partitioned"
    partitions = max(1, value["defaultNumPartitions"] or 1) if partitioned else 0
    return AutoTopicCreation(value["allowAutoTopicCreation"], partitions)


def _default_inactive(of: PolicyDefaults) -> Json:
    return {
        "deleteWhileInactive": of.broker_delete_inactive_topics_enabled,
        "inactiveTopicDeleteMode": of.broker_delete_inactive_topics_mode,
        "maxInactiveDurationSeconds": of.broker_delete_inactive_topics_max_inactive_duration_seconds
        or of.broker_delete_inactive_topics_frequency_seconds,
    }


def _bound(
    name: str,
    text: str,
    default: Callable[[PolicyDefaults], int],
    *,
    namespace: Level | None = None,
    topic: Level | None = None,
    long: bool = False,
    example: int = 7,
) -> Policy[int]:
    """A row of a plain bound: a whole number of which 0 is none."""
    return Policy(
        name=name,
        namespace=namespace,
        topic=topic,
        text=text,
        shape=Whole(name, long=long),
        default=lambda of: max(0, default(of)),
        read=lambda value: max(0, cast("int", value)),
        example=example,
    )


def _switch(
    name: str,
    text: str,
    default: Callable[[PolicyDefaults], bool],
    *,
    namespace: Level | None = None,
    topic: Level | None = None,
    nothing: Json = None,
    example: bool = True,
) -> Policy[bool]:
    """A row that says yes or no."""
    return Policy(
        name=name,
        namespace=namespace,
        topic=topic,
        text=text,
        shape=Flag(name),
        default=default,
        read=bool,
        nothing=nothing,
        example=example,
    )


# -- the table


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePolicies:
    """What holds for one topic: its own policies over its namespace's over the broker's defaults.

    Topics that say nothing of their own share one value. Bounds of 0 are none, but for `retention`.
    """

    retention: RetentionBounds = row(
        Policy(
            name="retention",
            namespace=Level("retention_policies"),
            topic=Level("retentionPolicies"),
            text="How long and how much is kept of what every subscription has acknowledged.",
            shape=Object(
                "retention",
                "How long and how much is kept of what is acknowledged; -1: without bound.",
                {
                    "retentionTimeInMinutes": whole(0, required=True),
                    "retentionSizeInMB": whole(0, long=True, required=True),
                },
                _either_both_or_none,
            ),
            default=lambda of: {
                "retentionTimeInMinutes": of.default_retention_time_in_minutes,
                "retentionSizeInMB": of.default_retention_size_in_mb,
            },
            read=lambda value: RetentionBounds(value["retentionTimeInMinutes"], value["retentionSizeInMB"]),
            example={"retentionTimeInMinutes": 7, "retentionSizeInMB": 8},
        )
    )
    ttl_s: int = row(
        Policy(
            name="messageTTL",
            namespace=Level("message_ttl_in_seconds"),
            topic=Level("messageTTLInSeconds", routed=False),
            text="Seconds after which a message that nobody acknowledged counts as acknowledged.",
            shape=Whole("messageTTL", refusal="Invalid value for message TTL: want seconds, 0 or more"),
            default=lambda of: max(0, of.ttl_duration_default_in_seconds),
            read=lambda value: max(0, cast("int", value)),
            example=7,
        )
    )
    backlog_quota: BacklogQuotas = row(
        Policy(
            name="backlogQuotaMap",
            namespace=Level("backlog_quota_map", routed=False),
            topic=Level("backLogQuotaMap", routed=False),
            text="How large and how old a backlog may become, and what happens then.",
            shape=Each("backlog quotas", BACKLOG_QUOTA, (QUOTA_SIZE, QUOTA_AGE)),
            default=_default_quotas,
            read=_quotas,
            merged=True,
            nothing={},
            example={
                QUOTA_SIZE: _quota_value(1_000, -1, EXCEPTION),
                QUOTA_AGE: _quota_value(-1, 60, EVICTION),
            },
        )
    )
    publish_rate: Rate = row(
        Policy(
            name="publishRate",
            namespace=Level("publishMaxMessageRate"),
            topic=Level("publishRate"),
            per_cluster=True,
            text="Messages and bytes a second that may be published to a topic.",
            shape=Object(
                "publishRate",
                "Messages and bytes a second that may be published; -1: any.",
                {"publishThrottlingRateInMsg": whole(-1), "publishThrottlingRateInByte": whole(-1, long=True)},
            ),
            default=lambda of: {
                "publishThrottlingRateInMsg": of.max_publish_rate_per_topic_in_messages,
                "publishThrottlingRateInByte": of.max_publish_rate_per_topic_in_bytes,
            },
            read=lambda value: Rate(
                max(0, value["publishThrottlingRateInMsg"]), max(0, value["publishThrottlingRateInByte"])
            ),
            example={"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": 50},
        )
    )
    dispatch_rate: Rate = row(
        Policy(
            name="dispatchRate",
            namespace=Level("topicDispatchRate"),
            topic=Level("dispatchRate"),
            per_cluster=True,
            text="Messages and bytes in a period that a topic delivers, over all its subscriptions.",
            shape=DISPATCH_RATE,
            default=lambda of: _default_dispatch(
                of, of.dispatch_throttling_rate_per_topic_in_msg, of.dispatch_throttling_rate_per_topic_in_byte
            ),
            read=_rate,
            example=_DISPATCH_EXAMPLE,
        )
    )
    subscription_dispatch_rate: Rate = row(
        Policy(
            name="subscriptionDispatchRate",
            namespace=Level("subscriptionDispatchRate"),
            topic=Level("subscriptionDispatchRate"),
            per_cluster=True,
            text="Messages and bytes in a period that each subscription delivers.",
            shape=DISPATCH_RATE,
            default=lambda of: _default_dispatch(
                of,
                of.dispatch_throttling_rate_per_subscription_in_msg,
                of.dispatch_throttling_rate_per_subscription_in_byte,
            ),
            read=_rate,
            example=_DISPATCH_EXAMPLE,
        )
    )
    # By the subscription's name.
    subscription_dispatch_rates: Mapping[str, Rate] = row(
        Policy(
            name="subscriptionPolicies",
            topic=Level("subscriptionPolicies", path="{subscription}/dispatchRate", routed=False),
            text="The same for one subscription of the topic.",
            shape=_SubscriptionRates(),
            default=lambda _: {},
            read=lambda value: MappingProxyType({name: _rate(one["dispatchRate"]) for name, one in value.items()}),
            example={"s": {"dispatchRate": _DISPATCH_EXAMPLE}},
        )
    )
    subscribe_rate: Rate = row(
        Policy(
            name="subscribeRate",
            namespace=Level("clusterSubscribeRate"),
            topic=Level("subscribeRate"),
            per_cluster=True,
            text="How often one consumer may subscribe in a period.",
            shape=Object(
                "subscribeRate",
                "How often a consumer may subscribe in a period; -1: as it likes.",
                {"subscribeThrottlingRatePerConsumer": whole(-1), "ratePeriodInSecond": whole(30)},
                _with_period,
            ),
            default=lambda of: {
                "subscribeThrottlingRatePerConsumer": of.subscribe_throttling_rate_per_consumer,
                "ratePeriodInSecond": of.subscribe_rate_period_per_consumer_in_second,
            },
            read=lambda value: Rate(
                max(0, value["subscribeThrottlingRatePerConsumer"]), 0, max(1, value["ratePeriodInSecond"])
            ),
            example={"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 10},
        )
    )
    max_producers: int = row(
        _bound(
            "maxProducersPerTopic",
            "Producers a topic takes at the same time.",
            lambda of: of.max_producers_per_topic,
            namespace=Level("max_producers_per_topic"),
            topic=Level("maxProducerPerTopic", path="maxProducers"),
        )
    )
    max_consumers: int = row(
        _bound(
            "maxConsumersPerTopic",
            "Consumers a topic takes at the same time.",
            lambda of: of.max_consumers_per_topic,
            namespace=Level("max_consumers_per_topic"),
            topic=Level("maxConsumerPerTopic", path="maxConsumers"),
        )
    )
    max_consumers_per_subscription: int = row(
        _bound(
            "maxConsumersPerSubscription",
            "Consumers a subscription takes at the same time.",
            lambda of: of.max_consumers_per_subscription,
            namespace=Level("max_consumers_per_subscription"),
            topic=Level("maxConsumersPerSubscription"),
        )
    )
    max_subscriptions: int = row(
        _bound(
            "maxSubscriptionsPerTopic",
            "Subscriptions a topic takes.",
            lambda of: of.max_subscriptions_per_topic,
            namespace=Level("max_subscriptions_per_topic"),
            topic=Level("maxSubscriptionsPerTopic"),
        )
    )
    max_unacked_per_consumer: int = row(
        _bound(
            "maxUnackedMessagesPerConsumer",
            "Unacknowledged messages at which a Shared or Key_Shared consumer gets no more.",
            lambda of: of.max_unacked_messages_per_consumer,
            namespace=Level("max_unacked_messages_per_consumer"),
            topic=Level("maxUnackedMessagesOnConsumer", path="maxUnackedMessagesOnConsumer"),
        )
    )
    max_unacked_per_subscription: int = row(
        _bound(
            "maxUnackedMessagesPerSubscription",
            "The same over all consumers of such a subscription.",
            lambda of: of.max_unacked_messages_per_subscription,
            namespace=Level("max_unacked_messages_per_subscription"),
            topic=Level("maxUnackedMessagesOnSubscription", path="maxUnackedMessagesOnSubscription"),
        )
    )
    deduplication: bool = row(
        _switch(
            "deduplication",
            "Whether a message that a producer sends again is stored once.",
            lambda of: of.broker_deduplication_enabled,
            namespace=Level("deduplicationEnabled"),
            topic=Level("deduplicationEnabled", path="deduplicationEnabled"),
        )
    )
    compaction_threshold: int = row(
        _bound(
            "compactionThreshold",
            "Bytes not yet compacted at which a topic is compacted.",
            lambda of: of.broker_service_compaction_threshold_in_bytes,
            namespace=Level("compaction_threshold", verb="PUT"),
            topic=Level("compactionThreshold"),
            long=True,
        )
    )
    delayed_delivery: DelayedDelivery = row(
        Policy(
            name="delayedDelivery",
            namespace=Level("delayed_delivery_policies"),
            topic=Level("delayedDelivery"),
            text="Whether messages may be delayed, at which resolution, and for how long at most.",
            shape=Object(
                "delayedDelivery",
                "Whether messages may be delayed, at which resolution and for how long.",
                {
                    "tickTime": whole(1000, long=True),
                    "active": flag(default=True),
                    "maxDeliveryDelayInMillis": whole(0, long=True),
                },
                _with_tick,
            ),
            default=lambda of: {
                "tickTime": of.delayed_delivery_tick_time_millis,
                "active": of.delayed_delivery_enabled,
                "maxDeliveryDelayInMillis": of.delayed_delivery_max_delay_in_millis,
            },
            read=lambda value: DelayedDelivery(
                value["active"], value["tickTime"], max(0, value["maxDeliveryDelayInMillis"])
            ),
            example={"tickTime": 500, "active": True, "maxDeliveryDelayInMillis": 1_000},
        )
    )
    inactive: Inactive = row(
        Policy(
            name="inactiveTopicPolicies",
            namespace=Level("inactive_topic_policies"),
            topic=Level("inactiveTopicPolicies"),
            text="Whether, and after how long without use, a topic is deleted.",
            shape=Object(
                "inactiveTopicPolicies",
                "Whether, and when, topics that nobody uses are deleted.",
                {
                    "inactiveTopicDeleteMode": text(INACTIVE_MODES[0], *INACTIVE_MODES),
                    "maxInactiveDurationSeconds": whole(60),
                    "deleteWhileInactive": flag(default=False),
                },
                _some_time,
            ),
            default=_default_inactive,
            read=lambda value: Inactive(
                value["inactiveTopicDeleteMode"], value["maxInactiveDurationSeconds"], value["deleteWhileInactive"]
            ),
            example={
                "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
                "maxInactiveDurationSeconds": 7_200,
                "deleteWhileInactive": True,
            },
        )
    )
    subscription_types: frozenset[str] = row(
        Policy(
            name="subscriptionTypesEnabled",
            namespace=Level("subscription_types_enabled", unset=[]),
            topic=Level("subscriptionTypesEnabled"),
            text="Types of subscription that consumers may ask for.",
            shape=Words("subscription types", SUBSCRIPTION_TYPES),
            default=lambda of: list(of.subscription_types_enabled),
            read=lambda value: frozenset(cast("list[str]", value)),
            nothing=[],
            example=["Exclusive", "Failover"],
        )
    )
    subscription_expiration_minutes: int = row(
        _bound(
            "subscriptionExpirationTime",
            "Minutes after which a subscription without consumers and acknowledgements is deleted.",
            lambda of: of.subscription_expiration_time_minutes,
            namespace=Level("subscription_expiration_time_minutes"),
        )
    )
    schema_compatibility: str = row(
        Policy(
            name="schemaCompatibilityStrategy",
            namespace=Level("schema_compatibility_strategy", verb="PUT", unset="UNDEFINED"),
            topic=Level("schemaCompatibilityStrategy", verb="PUT"),
            text="What a new schema of a topic must be compatible with.",
            shape=Word("schemaCompatibilityStrategy", COMPATIBILITIES),
            older=("schema_auto_update_compatibility_strategy", AUTO_UPDATE),
            default=lambda of: of.schema_compatibility_strategy,
            read=str,
            nothing="UNDEFINED",
            example="BACKWARD",
        )
    )
    schema_validation_enforced: bool = row(
        _switch(
            "schemaValidationEnforced",
            "Whether producers without a schema are turned away from a topic that has one.",
            lambda of: of.is_schema_validation_enforced,
            namespace=Level("schema_validation_enforced", removable=False, unset=False),
            topic=Level("schemaValidationEnforced", removable=False, unset=False),
            nothing=False,
        )
    )
    allow_auto_update_schema: bool = row(
        _switch(
            "isAllowAutoUpdateSchema",
            "Whether producers may bring a new version of a schema.",
            lambda of: of.is_allow_auto_update_schema_enabled,
            namespace=Level("is_allow_auto_update_schema", removable=False, unset=True),
            example=False,
        )
    )
    encryption_required: bool = row(
        _switch(
            "encryptionRequired",
            "Whether messages that are not encrypted are turned away.",
            lambda of: of.encryption_require_on_producer,
            namespace=Level("encryption_required", removable=False, unset=False),
            nothing=False,
        )
    )
    max_message_bytes: int = row(
        Policy(
            name="maxMessageSize",
            topic=Level("maxMessageSize"),
            text="The largest message, in bytes, that a topic takes.",
            shape=Whole("maxMessageSize"),
            default=lambda of: of.max_message_bytes,
            read=int,
            nothing=0,
            example=7_000,
        )
    )
    auto_topic_creation: AutoTopicCreation = row(
        Policy(
            name="autoTopicCreation",
            namespace=Level("autoTopicCreationOverride"),
            text="Whether producers and consumers create the topics they name, and with how many partitions.",
            shape=Object(
                "autoTopicCreation",
                "Whether topics are created by whoever names them, and of which kind.",
                {
                    "allowAutoTopicCreation": flag(default=True, required=True),
                    "topicType": text("non-partitioned"),
                    "defaultNumPartitions": whole(),
                },
                _with_partitions,
            ),
            default=_default_auto_topic,
            read=_auto_topic,
            example={"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
        )
    )
    allow_auto_subscription_creation: bool = row(
        Policy(
            name="autoSubscriptionCreation",
            namespace=Level("autoSubscriptionCreationOverride"),
            topic=Level("autoSubscriptionCreationOverride"),
            text="Whether consumers create the subscriptions they name.",
            shape=Object(
                "autoSubscriptionCreation",
                "Whether subscriptions are created by whoever names them.",
                {"allowAutoSubscriptionCreation": flag(default=True, required=True)},
            ),
            default=lambda of: {"allowAutoSubscriptionCreation": of.allow_auto_subscription_creation},
            read=lambda value: bool(value["allowAutoSubscriptionCreation"]),
            example={"allowAutoSubscriptionCreation": False},
        )
    )
    max_topics_per_namespace: int = row(
        _bound(
            "maxTopicsPerNamespace",
            "Topics a namespace takes, each partition counted.",
            lambda of: of.max_topics_per_namespace,
            namespace=Level("max_topics_per_namespace", unset=0),
            example=70,
        )
    )


POLICIES: Final[Mapping[str, Policy[Any]]] = {one.name: one.metadata["policy"] for one in fields(EffectivePolicies)}

# -- policies that mean nothing here, and are kept as they are set

KEPT: Final = (
    Stored(
        name="replicatorDispatchRate",
        namespace=Level("replicatorDispatchRate"),
        topic=Level("replicatorDispatchRate"),
        shape=DISPATCH_RATE,
        per_cluster=True,
        example=_DISPATCH_EXAMPLE,
    ),
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
        name="replication",
        namespace=Level("replication_clusters", routed=False),
        topic=Level("replicationClusters"),
        shape=Words("replication"),
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
        name="resourcegroup",
        namespace=Level("resource_group_name", routed=False),
        topic=Level("resourceGroupName", routed=False),
        shape=Word("resourcegroup", ()),
        example="gold",
    ),
)
_STORED: Final[tuple[Stored, ...]] = (*POLICIES.values(), *KEPT)
# What the JSON of a namespace of which nothing is set looks like.
EMPTY_NAMESPACE: Final[Mapping[str, Json]] = MappingProxyType(
    {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
        "clusterDispatchRate": {},
        "latency_stats_sample_rate": {},
        "deleted": False,
        "properties": {},
        "migrated": False,
        **{one.namespace.key: {} if one.per_cluster else one.nothing for one in _STORED if one.namespace is not None},
    }
)
# What is only kept, by its key in a topic's JSON.
KEPT_OF_TOPICS: Final = {one.topic.key: one for one in KEPT if one.topic is not None}

_BY_ANY_NAME: Final = {
    alias: one
    for one in POLICIES.values()
    # The most specific spelling wins where two rows share one.
    for alias in (
        *((one.topic.path, one.topic.key) if one.topic is not None else ()),
        *((one.namespace.key,) if one.namespace is not None else ()),
        one.name,
    )
    if alias
}


def policy(key: str) -> Policy[Any] | None:
    """The row of this key: the name on a path, the key in a namespace's JSON or that in a topic's."""
    return _BY_ANY_NAME.get(key)


def effective(
    *, topic: Mapping[str, Json], namespace: Mapping[str, Json], defaults: PolicyDefaults, cluster: str
) -> EffectivePolicies:
    """What all rows together mean."""
    return EffectivePolicies(
        **{
            attribute: row.read(row.applied(topic=topic, namespace=namespace, defaults=defaults, cluster=cluster))
            for attribute, row in POLICIES.items()
        }
    )

# SPDX-License-Identifier: Apache-2.0
"""Parts of the rows of the policy table: shared shapes, checks, defaults and readers.

Where: `policy_table` and `unenforced_policies` use these. A check raises ValueError with a sentence for the
administrator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from penstock.broker.policies.policy_rows import Level, Policy
from penstock.broker.policies.policy_values import (
    HOLD,
    INACTIVE_MODES,
    QUOTA_AGE,
    QUOTA_POLICIES,
    QUOTA_SIZE,
    AutoTopicCreation,
    BacklogQuota,
    BacklogQuotas,
    Rate,
)
from penstock.broker.policies.shapes import Flag, Member, Object, Whole, flag, text, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.policies.policy_defaults import PolicyDefaults
    from penstock.broker.policies.shapes import Json


def either_both_or_none(policy: dict[str, Json]) -> dict[str, Json]:
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


def one_size(quota: dict[str, Json]) -> dict[str, Json]:
    """`limit` is the older name of `limitSize`."""
    if quota["policy"] not in QUOTA_POLICIES:
        raise ValueError(f"policy of backlogQuota must be one of {', '.join(QUOTA_POLICIES)}, got {quota['policy']!r}")
    size = quota["limit"] if quota["limitSize"] is None else quota["limitSize"]
    quota["limit"] = quota["limitSize"] = -1 if size is None else size
    return quota


def with_period(rate: dict[str, Json]) -> dict[str, Json]:
    if rate["ratePeriodInSecond"] < 1:
        raise ValueError(f"ratePeriodInSecond must be 1 or more, got {rate['ratePeriodInSecond']}")
    return rate


def with_partitions(policy: dict[str, Json]) -> dict[str, Json]:
    if policy["allowAutoTopicCreation"]:
        if policy["topicType"] not in {"partitioned", "non-partitioned"}:
            raise ValueError(f"Unknown topic type [{policy['topicType']}]")
        if policy["topicType"] == "partitioned" and (policy["defaultNumPartitions"] or 0) < 1:
            raise ValueError("[defaultNumPartitions] cannot be less than 1 for partition type.")
        if policy["topicType"] == "non-partitioned" and policy["defaultNumPartitions"] is not None:
            raise ValueError("[defaultNumPartitions] is not allowed to be set when the type is non-partition.")
    return policy


def some_time(policy: dict[str, Json]) -> dict[str, Json]:
    if policy["inactiveTopicDeleteMode"] not in INACTIVE_MODES:
        raise ValueError(f"inactiveTopicDeleteMode must be one of {', '.join(INACTIVE_MODES)}")
    if policy["maxInactiveDurationSeconds"] < 1:
        raise ValueError("maxInactiveDurationSeconds must be 1 or more")
    return policy


def with_tick(policy: dict[str, Json]) -> dict[str, Json]:
    """Check the tick. Clients leave it at 0 when they disable delayed delivery."""
    low = int(policy["active"])
    if policy["tickTime"] < low:
        raise ValueError(f"delayedDelivery: tickTime={policy['tickTime']} cannot be: want {low} ms or more")
    return policy


BACKLOG_QUOTA: Final = Object(
    "backlogQuota",
    "Size (bytes) or age (seconds) that a backlog may have, and what happens when it exceeds it. `limit` is an older "
    "name of `limitSize`.",
    {
        "limit": whole(long=True),
        "limitSize": whole(long=True),
        "limitTime": Member(kind=int, default=-1, nullable=True),
        "policy": text(HOLD, *QUOTA_POLICIES),
    },
    one_size,
)
DISPATCH_RATE: Final = Object(
    "dispatchRate",
    "Messages and bytes that may be delivered per period; -1: no limit.",
    {
        "dispatchThrottlingRateInMsg": whole(-1),
        "dispatchThrottlingRateInByte": whole(-1, long=True),
        "relativeToPublishRate": flag(default=False),
        "ratePeriodInSecond": whole(1),
    },
    with_period,
)
DISPATCH_EXAMPLE: Final = {
    "dispatchThrottlingRateInMsg": 5,
    "dispatchThrottlingRateInByte": 50,
    "relativeToPublishRate": True,
    "ratePeriodInSecond": 3,
}


class SubscriptionRates:
    """Dispatch rates by subscription, as `{"name": {"dispatchRate": {…}}}`."""

    def check(self, value: Json) -> Json:
        if not isinstance(value, dict):
            raise ValueError(f"subscriptionPolicies must be a JSON object, got {value!r}")  # noqa: TRY004
        rates = {name: (one or {}).get("dispatchRate") for name, one in value.items()}
        return {name: {"dispatchRate": DISPATCH_RATE.check(rate)} for name, rate in rates.items() if rate is not None}


def dispatch_rate_of(value: Json) -> Rate:
    return Rate(
        max(0, value["dispatchThrottlingRateInMsg"]),
        max(0, value["dispatchThrottlingRateInByte"]),
        max(1, value["ratePeriodInSecond"]),
        bool(value["relativeToPublishRate"]),
    )


def default_dispatch(of: PolicyDefaults, messages: int, nbytes: int) -> Json:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": nbytes,
        "relativeToPublishRate": of.dispatch_throttling_rate_relative_to_publish_rate and max(messages, nbytes) > 0,
        "ratePeriodInSecond": 1,
    }


def quota_value(size: int, seconds: int, policy: str) -> Json:
    return {"limit": size, "limitSize": size, "limitTime": seconds, "policy": policy}


def default_quotas(of: PolicyDefaults) -> Json:
    size, seconds = of.backlog_quota_default_limit_bytes, of.backlog_quota_default_limit_second
    policy = of.backlog_quota_default_retention_policy
    return {QUOTA_SIZE: quota_value(size, -1, policy), QUOTA_AGE: quota_value(-1, seconds, policy)}


def backlog_quotas_of(value: Json) -> BacklogQuotas:
    size, age = value[QUOTA_SIZE], value[QUOTA_AGE]
    return BacklogQuotas(
        BacklogQuota(max(0, size["limitSize"]), size["policy"]), BacklogQuota(max(0, age["limitTime"]), age["policy"])
    )


def default_auto_topic(of: PolicyDefaults) -> Json:
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


def auto_topic_of(value: Json) -> AutoTopicCreation:
    partitioned = value["topicType"] == "partitioned"
    partitions = max(1, value["defaultNumPartitions"] or 1) if partitioned else 0
    return AutoTopicCreation(value["allowAutoTopicCreation"], partitions)


def default_inactive(of: PolicyDefaults) -> Json:
    return {
        "deleteWhileInactive": of.broker_delete_inactive_topics_enabled,
        "inactiveTopicDeleteMode": of.broker_delete_inactive_topics_mode,
        "maxInactiveDurationSeconds": of.broker_delete_inactive_topics_max_inactive_duration_seconds
        or of.broker_delete_inactive_topics_frequency_seconds,
    }


def bound(
    name: str,
    text: str,
    default: Callable[[PolicyDefaults], int],
    *,
    namespace: Level | None = None,
    topic: Level | None = None,
    long: bool = False,
    example: int = 7,
) -> Policy[int]:
    """Declare a limit: a whole number; 0 means no limit."""
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


def switch(
    name: str,
    text: str,
    default: Callable[[PolicyDefaults], bool],
    *,
    namespace: Level | None = None,
    topic: Level | None = None,
    nothing: Json = None,
    example: bool = True,
) -> Policy[bool]:
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

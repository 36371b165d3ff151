# SPDX-License-Identifier: Apache-2.0
"""What a policy may say: values as the admin port takes them, checked and made complete.

Each check returns the value to store, with every member that it may have; it raises ValueError with a sentence for the
administrator, in Pulsar's words where people know those.
Where: `policy_table` names a check in each of its rows. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.broker.policies.policy_values import (
    HOLD,
    INACTIVE_MODES,
    QUOTA_AGE,
    QUOTA_POLICIES,
    QUOTA_SIZE,
    SUBSCRIPTION_TYPES,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Json: TypeAlias = Any  # what json.loads returns


def number(low: int, what: str) -> Callable[[Json], int]:
    """Check of a whole number."""

    def check(value: Json) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ValueError(f"{what} must be {low} or more, got {value!r}")
        return value

    return check


def message_ttl(value: Json) -> int:
    """Seconds; 0 for none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"Invalid value for message TTL: want seconds, 0 or more, got {value!r}")
    return value


def boolean(what: str) -> Callable[[Json], bool]:
    """Check of true or false."""

    def check(value: Json) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"{what} must be true or false, got {value!r}")  # noqa: TRY004 -- it is a user's value
        return value

    return check


def one_of(what: str, allowed: tuple[str, ...]) -> Callable[[Json], str]:
    """Check of a word."""

    def check(value: Json) -> str:
        if value not in allowed:
            raise ValueError(f"{what} must be one of {', '.join(allowed)}, got {value!r}")
        return str(value)

    return check


def _object(what: str, **members: tuple[type | tuple[type, ...], Json]) -> Callable[[Json], dict[str, Json]]:
    """A JSON object of these members, each with its type and what stands for it when it is left out."""

    def check(value: Json) -> dict[str, Json]:
        if not isinstance(value, dict):
            raise ValueError(f"{what} must be a JSON object, got {value!r}")  # noqa: TRY004
        out: dict[str, Json] = {}
        for name, (kind, default) in members.items():
            member = value.get(name)
            if member is None:
                member = default
            elif not isinstance(member, kind) or (isinstance(member, bool) and kind is int):
                raise ValueError(f"{name} of {what} cannot be {member!r}")
            out[name] = member
        return out

    return check


_retention_object = _object("retention", retentionTimeInMinutes=(int, 0), retentionSizeInMB=(int, 0))


def retention(value: Json) -> Json:
    """Time and size for which acknowledged messages are kept. Either both are 0 or neither."""
    policy = _retention_object(value)
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


_quota_object = _object(
    "backlogQuota", limit=(int, None), limitSize=(int, None), limitTime=(int, -1), policy=(str, HOLD)
)


def backlog_quota(value: Json) -> Json:
    """One backlog quota. `limit` is the older name of `limitSize`. Raises ValueError."""
    quota = _quota_object(value)
    if quota["policy"] not in QUOTA_POLICIES:
        raise ValueError(f"policy of backlogQuota must be one of {', '.join(QUOTA_POLICIES)}, got {quota['policy']!r}")
    size = quota["limit"] if quota["limitSize"] is None else quota["limitSize"]
    quota["limit"] = quota["limitSize"] = -1 if size is None else size
    return quota


def backlog_quotas(value: Json) -> Json:
    """Backlog quotas by their kind."""
    if not isinstance(value, dict) or not value.keys() <= {QUOTA_SIZE, QUOTA_AGE}:
        raise ValueError(f"backlog quotas are {QUOTA_SIZE} and {QUOTA_AGE}, got {value!r}")
    return {kind: backlog_quota(quota) for kind, quota in value.items() if quota is not None}


publish_rate = _object("publishRate", publishThrottlingRateInMsg=(int, -1), publishThrottlingRateInByte=(int, -1))
_dispatch_object = _object(
    "dispatchRate",
    dispatchThrottlingRateInMsg=(int, -1),
    dispatchThrottlingRateInByte=(int, -1),
    relativeToPublishRate=(bool, False),
    ratePeriodInSecond=(int, 1),
)
_subscribe_object = _object("subscribeRate", subscribeThrottlingRatePerConsumer=(int, -1), ratePeriodInSecond=(int, 30))


def _with_period(check: Callable[[Json], dict[str, Json]]) -> Callable[[Json], Json]:
    def checked(value: Json) -> Json:
        rate = check(value)
        if rate["ratePeriodInSecond"] < 1:
            raise ValueError(f"ratePeriodInSecond must be 1 or more, got {rate['ratePeriodInSecond']}")
        return rate

    return checked


def subscription_policies(value: Json) -> Json:
    """Dispatch rates by subscription, as `{"name": {"dispatchRate": {…}}}`."""
    if not isinstance(value, dict):
        raise ValueError(f"subscriptionPolicies must be a JSON object, got {value!r}")  # noqa: TRY004
    rates = {name: (one or {}).get("dispatchRate") for name, one in value.items()}
    return {name: {"dispatchRate": dispatch_rate(rate)} for name, rate in rates.items() if rate is not None}


_auto_topic_object = _object(
    "autoTopicCreation",
    allowAutoTopicCreation=(bool, True),
    topicType=(str, "non-partitioned"),
    defaultNumPartitions=(int, None),
)


def auto_topic_creation(value: Json) -> Json:
    """Whether and how topics come to be on the way."""
    policy = _auto_topic_object(value)
    if policy["allowAutoTopicCreation"]:
        if policy["topicType"] not in {"partitioned", "non-partitioned"}:
            raise ValueError(f"Unknown topic type [{policy['topicType']}]")
        if policy["topicType"] == "partitioned" and (policy["defaultNumPartitions"] or 0) < 1:
            raise ValueError("[defaultNumPartitions] cannot be less than 1 for partition type.")
        if policy["topicType"] == "non-partitioned" and policy["defaultNumPartitions"] is not None:
            raise ValueError("[defaultNumPartitions] is not allowed to be set when the type is non-partition.")
    return policy


_inactive_object = _object(
    "inactiveTopicPolicies",
    inactiveTopicDeleteMode=(str, INACTIVE_MODES[0]),
    maxInactiveDurationSeconds=(int, 60),
    deleteWhileInactive=(bool, True),
)


def inactive_topics(value: Json) -> Json:
    """When topics that nobody uses go."""
    policy = _inactive_object(value)
    if policy["inactiveTopicDeleteMode"] not in INACTIVE_MODES:
        raise ValueError(f"inactiveTopicDeleteMode must be one of {', '.join(INACTIVE_MODES)}")
    if policy["maxInactiveDurationSeconds"] < 1:
        raise ValueError("maxInactiveDurationSeconds must be 1 or more")
    return policy


def subscription_types(value: Json) -> Json:
    """Types of subscription, each once."""
    types = value if isinstance(value, list | tuple) else [value]
    unknown = [one for one in types if one not in SUBSCRIPTION_TYPES]
    if unknown:
        raise ValueError(f"subscription types are {', '.join(SUBSCRIPTION_TYPES)}, got {unknown[0]!r}")
    return list(dict.fromkeys(types))


dispatch_rate = _with_period(_dispatch_object)
_delayed_object = _object(
    "delayedDelivery", tickTime=(int, 1000), active=(bool, True), maxDeliveryDelayInMillis=(int, 0)
)


def delayed_delivery(value: Json) -> Json:
    """Whether messages may be delayed. Where they may not, clients leave the tick at 0."""
    policy = _delayed_object(value)
    low = int(policy["active"])
    if policy["tickTime"] < low:
        raise ValueError(f"delayedDelivery: tickTime={policy['tickTime']} cannot be: want {low} ms or more")
    return policy


subscribe_rate = _with_period(_subscribe_object)
auto_subscription_creation = _object("autoSubscriptionCreation", allowAutoSubscriptionCreation=(bool, True))

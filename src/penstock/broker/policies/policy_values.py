# SPDX-License-Identifier: Apache-2.0
"""Values of policies in force, and the words used to set them.

Where: `policy_table` makes them; the rest of the broker reads them from `Topic.policies`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

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

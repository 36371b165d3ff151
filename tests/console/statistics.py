# SPDX-License-Identifier: Apache-2.0
"""Statistics of a topic in the shape of Apache Pulsar's, and what the console is to tell of them."""

from __future__ import annotations

from typing import Any, TypeAlias

# Reason, effect, and what waits.
Found: TypeAlias = "list[tuple[str, str, str]]"

CONSUMER = {
    "consumerName": "c1", "address": "/10.0.0.7:5000", "availablePermits": 0, "unackedMessages": 7, "msgOutCounter": 40,
    "blockedConsumerOnUnackedMsgs": False,
}  # fmt: skip
SUBSCRIPTION = {
    "msgBacklog": 50, "msgDelayed": 0, "unackedMessages": 0, "blockedSubscriptionOnUnackedMsgs": False,
    "consumers": [CONSUMER], "dispatchThrottledMsgEventsByTopicLimit": 3,
}  # fmt: skip
STATS = {
    "msgRateIn": 5.0, "publishers": [{"producerName": "p"}], "waitingPublishers": 0, "publishRateLimitedTimes": 2,
    "backlogSize": 900, "backlogQuotaLimitSize": -1, "backlogQuotaLimitTime": -1, "oldestBacklogMessageAgeSeconds": 30,
    "replication": {},
}  # fmt: skip


def stats(
    subscription: dict[str, Any] | None = None, consumer: dict[str, Any] | None = None, **of: object
) -> dict[str, Any]:
    consumers = [{**CONSUMER, **(consumer or {})}]
    return {**STATS, "subscriptions": {"s": {**SUBSCRIPTION, "consumers": consumers, **(subscription or {})}}, **of}


THE_CONSUMER = "consumer c1 at 10.0.0.7:5000 of subscription s"
# Of one look.
ONE_LOOK: list[tuple[dict[str, Any], Found]] = [
    (stats(), []),
    (stats({"consumers": []}), [("no-consumer", "slows", "subscription s")]),
    (stats({"consumers": [], "msgBacklog": 0}), []),
    (stats({"msgBacklog": 5, "msgDelayed": 5, "consumers": []}), [("delayed", "waits", "subscription s")]),
    (stats({"blockedSubscriptionOnUnackedMsgs": True}), [("unacked-messages", "slows", "subscription s")]),
    (stats(consumer={"blockedConsumerOnUnackedMsgs": True}), [("unacked-messages", "slows", THE_CONSUMER)]),
    (stats(waitingPublishers=2), [("exclusive-access", "waits", "2 producers")]),
    (stats(backlogQuotaLimitSize=901), []),
    (
        stats(backlogQuotaLimitSize=900),
        [("would-refuse-producers", "would-refuse", "the backlog of the topic")],
    ),
    (
        stats(backlogQuotaLimitTime=30),
        [("would-refuse-producers", "would-refuse", "the backlog of the topic")],
    ),
    (
        stats(replication={"west": {"connected": False, "replicationBacklog": 3, "replicationDelayInSeconds": 9}}),
        [("replication", "slows", "replication to west")],
    ),
    (stats(replication={"west": {"connected": True, "replicationBacklog": 3, "replicationDelayInSeconds": 0}}), []),
]
# Of a look, if this was the one before.
TWO_LOOKS: list[tuple[dict[str, Any], Found]] = [
    (stats(), [("queue-full", "slows", THE_CONSUMER)]),
    (stats(consumer={"msgOutCounter": 39}), []),  # It was sent something in between.
    (stats(consumer={"availablePermits": 1}), []),
    (stats(consumer={"consumerName": "another"}), []),
    (
        stats({"dispatchThrottledMsgEventsByTopicLimit": 2}, {"availablePermits": 1}),
        [("dispatch-rate", "slows", "subscription s")],
    ),
    (
        stats(consumer={"availablePermits": 1}, publishRateLimitedTimes=1),
        [("publish-rate", "slows", "producers of the topic")],
    ),
]

# SPDX-License-Identifier: Apache-2.0
"""The holds of one subscription's delivery, as data: what its dispatch keeps, with the consumers and numbers of now.

Where: explanations and the metric of holds ask for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.publishing.dispatch_gate import gate_of
from penstock.broker.publishing.limiters import DispatchRate
from penstock.broker.topics.topic import subscribed_topic
from penstock.governance.holds import Hold, HoldKind
from penstock.stats.limit_holds import Said, per

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.broker.subscriptions.dispatcher import Dispatcher, HeldConsumer
    from penstock.broker.subscriptions.holds import DispatchHolds
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.stats.limit_holds import LimitHolds

_RAISE: Final = {
    "Subscription": "raise subscriptionDispatchRate of the topic or its namespace",
    "Topic": "raise dispatchRate of the topic or its namespace",
    "Broker": "raise dispatchThrottlingRateInMsg and dispatchThrottlingRateInByte",
}


def holds_of(subscription: Subscription, limits: LimitHolds, now_ns: int) -> Iterator[Hold]:
    """The holds of a subscription's delivery. Only entries that exist can wait."""
    what = f"subscription {subscription.name} of {subscription.topic.text}"
    dispatcher, reading, waiting = subscription.dispatcher, subscription.reading, subscription.waiting
    numbers, holds = {"waiting_entries": waiting}, subscription.holds
    if holds is not None and subscription.has_more:
        yield from _of_gate(subscription, holds, limits, what, now_ns)
    if subscription.topic.persistent and subscription.topic.holds_back:
        yield _of_transaction(subscription, what)
    if not subscription.topic.persistent or not subscription.backlog:
        return
    if dispatcher is None:
        yield Hold(kind=HoldKind.NO_CONSUMER, what=what, since_ns=subscription.idle_since_ns, numbers=numbers)
    elif subscription.fenced:
        yield Hold(kind=HoldKind.RESETTING, what=what, numbers=numbers)
    elif reading.failing_since_ns is not None:
        yield Hold(kind=HoldKind.UNREADABLE, what=what, since_ns=reading.failing_since_ns, numbers=numbers)
    elif holds is not None and subscription.has_more:
        yield from _of_consumers(subscription, dispatcher, holds, what, now_ns)
        yield from _of_keys(dispatcher, holds, what, now_ns)
    delayed = subscription.delayed
    if delayed:
        yield Hold(kind=HoldKind.DELAYED, what=what, numbers={"delayed_entries": delayed, **_next_of(subscription)})


def _of_transaction(subscription: Subscription, what: str) -> Hold:
    """The open transaction that began first, of those that have sent something."""
    topic = subscribed_topic(subscription)
    assert topic.transactions is not None, "nothing else keeps entries back"
    kept_back = topic.durable_entry_id - topic.last_entry_id
    numbers = {"kept_back_entries": kept_back, "open_transactions": len(topic.transactions.open)}
    return Hold(kind=HoldKind.TRANSACTION, what=what, of=str(topic.transactions.oldest), numbers=numbers)


def _next_of(subscription: Subscription) -> dict[str, float]:
    """When the next delayed message of its topic is due."""
    index = subscription.topic.delayed
    next_ms = index.manager.next_delivery_ms() if index is not None else None
    return {"next_in_s": max(0, next_ms - index.now_ms()) / 1_000} if index is not None and next_ms is not None else {}


def _of_gate(
    subscription: Subscription, holds: DispatchHolds, limits: LimitHolds, what: str, now_ns: int
) -> Iterator[Hold]:
    """The limit that stopped dispatch last, while it is in force."""
    gate = gate_of(subscription)
    limit = gate.held_by if gate is not None else None
    episode = holds.episode(limit.hold, now_ns) if limit is not None else None
    if gate is None or limit is None or episode is None or limit not in gate.limits:
        return
    numbers = {"waiting_entries": subscription.waiting, **episode.numbers(now_ns, got=subscription.messages_out)}
    yield limits.of_limit(
        what, limit, episode.since_ns, numbers, _said_of(limit) if isinstance(limit, DispatchRate) else None
    )


def _said_of(limit: DispatchRate) -> Said:
    rate = limit.rate
    numbers = {**per("period", "", rate.messages, rate.bytes), "period_s": rate.period_s}
    return Said(limit.kind.lower(), _RAISE[limit.kind], numbers)


def _of_consumers(
    subscription: Subscription, dispatcher: Dispatcher, holds: DispatchHolds, what: str, now_ns: int
) -> Iterator[Hold]:
    episode = holds.of_consumers(now_ns)
    if episode is None:
        return
    numbers = {"waiting_entries": subscription.waiting, **episode.numbers(now_ns, got=subscription.messages_out)}
    if not subscription.blocked:
        for held in dispatcher.held_consumers():
            yield _of_consumer(held, what, episode.since_ns, numbers)
        return
    unacked_max = subscription.topic.policies.max_unacked_per_subscription
    yield Hold(
        kind=HoldKind.UNACKED,
        what=what,
        since_ns=episode.since_ns,
        lifted_by="maxUnackedMessagesPerSubscription",
        numbers={"unacked": subscription.unacked, "unacked_max": unacked_max, **numbers},
    )


def _of_keys(dispatcher: Dispatcher, holds: DispatchHolds, what: str, now_ns: int) -> Iterator[Hold]:
    """Entries that are set aside for consumers that cannot take them, while others may be delivered."""
    episode = holds.episode(HoldKind.KEY_BLOCKED, now_ns)
    for held in dispatcher.held_keys() if episode is not None else ():
        if episode is not None and (held.holder is not None or holds.of_consumers(now_ns) is None):
            yield _of_consumer(held, what, episode.since_ns, {"waiting_entries": held.entries})
    ahead = holds.episode(HoldKind.LOOK_AHEAD, now_ns)
    if ahead is not None:
        entries, entries_max = dispatcher.look_ahead
        numbers = {"set_aside_entries": entries, "set_aside_entries_max": entries_max, **ahead.numbers(now_ns)}
        yield Hold(kind=HoldKind.LOOK_AHEAD, what=what, since_ns=ahead.since_ns, numbers=numbers)


def _of_consumer(held: HeldConsumer, what: str, since_ns: int, numbers: Mapping[str, float]) -> Hold:
    consumer, holder, topic = held.consumer, held.holder, held.consumer.subscription.topic
    of = lifted_by = ""
    own: dict[str, float] = {"unacked": consumer.unacked}
    if held.kind is HoldKind.UNACKED:
        lifted_by = "maxUnackedMessagesPerConsumer"
        own["unacked_max"] = topic.policies.max_unacked_per_consumer
    elif held.kind is HoldKind.OUTBOUND:
        own = {"unsent_bytes": consumer.outlet.out_bytes}
    elif holder is not None:
        of = f"message {topic.ledger_id}:{held.entry_id} of consumer {holder.name} at {holder.address}"
        own = {"unacked_by_it": holder.unacked}
    return Hold(
        kind=held.kind,
        what=f"consumer {consumer.name} at {consumer.address} of {what}",
        of=of,
        since_ns=since_ns,
        lifted_by=lifted_by,
        numbers={**numbers, **own},
    )

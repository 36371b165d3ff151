# SPDX-License-Identifier: Apache-2.0
"""The holds of one subscription's delivery, as data: what its dispatch keeps, with the consumers and numbers of now.

Where: `why` asks for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.governance.holds import Hold, HoldKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.broker.subscriptions.dispatcher import Dispatcher, HeldConsumer
    from penstock.broker.subscriptions.holds import DispatchHolds
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.governance.holds import Episode


def holds_of(subscription: Subscription, now_ns: int) -> Iterator[Hold]:
    """The holds of a subscription's delivery, without those of its gate. Only entries that exist can wait."""
    what = f"subscription {subscription.name} of {subscription.topic.text}"
    if not subscription.topic.persistent or not subscription.backlog:
        return
    dispatcher, reading, waiting = subscription.dispatcher, subscription.reading, subscription.waiting
    numbers = {"waiting_entries": waiting}
    if dispatcher is None:
        yield Hold(kind=HoldKind.NO_CONSUMER, what=what, since_ns=subscription.idle_since_ns, numbers=numbers)
    elif subscription.fenced:
        yield Hold(kind=HoldKind.RESETTING, what=what, numbers=numbers)
    elif reading.failing_since_ns is not None:
        yield Hold(kind=HoldKind.UNREADABLE, what=what, since_ns=reading.failing_since_ns, numbers=numbers)
    elif subscription.holds is not None and subscription.has_more:
        yield from _of_consumers(subscription, dispatcher, subscription.holds, what, now_ns)
        yield from _of_keys(dispatcher, subscription.holds, what, now_ns)
    delayed = subscription.delayed
    if delayed:
        yield Hold(kind=HoldKind.DELAYED, what=what, numbers={"delayed_entries": delayed, **_next_of(subscription)})


def _next_of(subscription: Subscription) -> dict[str, float]:
    """When the next delayed message of its topic is due."""
    index = subscription.topic.delayed
    next_ms = index.manager.next_delivery_ms() if index is not None else None
    return {"next_in_s": max(0, next_ms - index.now_ms()) / 1_000} if index is not None and next_ms is not None else {}


def _of_consumers(
    subscription: Subscription, dispatcher: Dispatcher, holds: DispatchHolds, what: str, now_ns: int
) -> Iterator[Hold]:
    episode = holds.of_consumers(now_ns)
    if episode is None:
        return
    numbers = {"waiting_entries": subscription.waiting, **episode.numbers(now_ns, got=subscription.messages_out)}
    if subscription.blocked:
        of_it = {
            "unacked": subscription.unacked,
            "unacked_max": subscription.topic.policies.max_unacked_per_subscription,
        }
        setting = "maxUnackedMessagesPerSubscription"
        yield Hold(
            kind=HoldKind.UNACKED, what=what, since_ns=episode.since_ns, lifted_by=setting, numbers={**of_it, **numbers}
        )
        return
    for held in dispatcher.held_consumers():
        yield _of_consumer(held, what, episode, numbers)


def _of_keys(dispatcher: Dispatcher, holds: DispatchHolds, what: str, now_ns: int) -> Iterator[Hold]:
    """Entries that are set aside for consumers that cannot take them, while others may be delivered."""
    episode = holds.episode(HoldKind.KEY_BLOCKED, now_ns)
    if episode is not None:
        for held in dispatcher.held_keys():
            if held.holder is not None or holds.of_consumers(now_ns) is None:
                yield _of_consumer(held, what, episode, {"waiting_entries": held.entries})
    ahead = holds.episode(HoldKind.LOOK_AHEAD, now_ns)
    if ahead is not None:
        entries, entries_max = dispatcher.look_ahead
        numbers = {"set_aside_entries": entries, "set_aside_entries_max": entries_max, **ahead.numbers(now_ns)}
        yield Hold(kind=HoldKind.LOOK_AHEAD, what=what, since_ns=ahead.since_ns, numbers=numbers)


def _of_consumer(held: HeldConsumer, what: str, episode: Episode[None], numbers: dict[str, float]) -> Hold:
    consumer, holder = held.consumer, held.holder
    of = ""
    if held.kind is HoldKind.UNACKED:
        policies = consumer.subscription.topic.policies
        numbers = {"unacked": consumer.unacked, "unacked_max": policies.max_unacked_per_consumer, **numbers}
    elif held.kind is HoldKind.OUTBOUND:
        numbers = {"unsent_bytes": consumer.outlet.out_bytes, **numbers}
    elif holder is not None:
        ledger_id = consumer.subscription.topic.ledger_id
        of = f"message {ledger_id}:{held.entry_id} of consumer {holder.name} at {holder.address}"
        numbers = {**numbers, "unacked_by_it": holder.unacked}
    else:
        numbers = {**numbers, "unacked": consumer.unacked}
    return Hold(
        kind=held.kind,
        what=f"consumer {consumer.name} at {consumer.address} of {what}",
        of=of,
        since_ns=episode.since_ns,
        lifted_by="maxUnackedMessagesPerConsumer" if held.kind is HoldKind.UNACKED else "",
        numbers=numbers,
    )

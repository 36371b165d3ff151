# SPDX-License-Identifier: Apache-2.0
"""Routes of subscriptions: create, reset, expire and delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Body, Path

from penstock.admin.gateway import Ask
from penstock.admin.models import INT_MAX, LONG_MAX, Flag, Properties, ResetPosition
from penstock.admin.routing import NO_CONTENT, READS_ENTRY, TOPIC, Force, Topic, Wall
from penstock.core.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway

SUBSCRIPTION: Final = f"{TOPIC}/subscription/{{subscription:twice}}"
Seconds = Annotated[int, Path(ge=0, le=INT_MAX)]
Messages = Annotated[int, Path(ge=0, le=INT_MAX)]


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under a topic's /subscription."""
    router = APIRouter(tags=["subscriptions"])
    ask = Ask(gateway)
    _add_life(router, ask, needs)
    _add_moves(router, ask, needs)
    _add_expiry(router, ask, needs)
    _add_properties(router, ask, needs)
    return router


def position_of(given: ResetPosition) -> Position:
    """Return the position of a request: Java's admin client sends earliest and latest as numbers."""
    if given.ledger_id == given.entry_id == -1:
        return EARLIEST
    if given.ledger_id == given.entry_id == LONG_MAX:
        return LATEST
    return Position(given.ledger_id, given.entry_id)


def _add_life(router: APIRouter, ask: Ask, needs: Needs) -> None:
    @router.get(f"{TOPIC}/subscriptions", dependencies=[needs.consume])
    async def list_subscriptions(name: Topic) -> list[str]:
        """List the subscriptions of a topic."""
        return await ask(lambda broker: broker.subscriptions.names(name))

    @router.put(SUBSCRIPTION, dependencies=[needs.consume], **NO_CONTENT)
    async def create_subscription(
        name: Topic,
        subscription: str,
        position: Annotated[ResetPosition | None, Body()] = None,
        *,
        replicated: bool = False,
    ) -> None:
        """Create a subscription at a position; without one, after the last message."""
        if position is None:
            await ask(lambda broker: broker.subscriptions.create(name, subscription, replicated=replicated))
            return
        await ask(
            lambda broker: broker.subscriptions.create(
                name,
                subscription,
                position_of(position),
                batch_index=position.batch_index,
                properties=position.properties,
                replicated=replicated,
            )
        )

    @router.delete(SUBSCRIPTION, dependencies=[needs.consume], **NO_CONTENT)
    async def delete_subscription(name: Topic, subscription: str, *, force: Force = False) -> None:
        """Delete a subscription without consumers; with `force`, disconnect its consumers."""
        await ask(lambda broker: broker.subscriptions.delete(name, subscription, force=force))


def _add_moves(router: APIRouter, ask: Ask, needs: Needs) -> None:
    common: dict[str, Any] = {"dependencies": [needs.consume], **NO_CONTENT}

    @router.post(f"{SUBSCRIPTION}/skip_all", **common)
    async def skip_all(name: Topic, subscription: str) -> None:
        """Skip all messages of a subscription."""
        await ask(lambda broker: broker.subscriptions.skip_all(name, subscription))

    @router.post(f"{SUBSCRIPTION}/skip/{{count}}", **common)
    async def skip(name: Topic, subscription: str, count: Messages) -> None:
        """Skip the next entries of a subscription."""
        await ask(lambda broker: broker.subscriptions.skip_messages(name, subscription, count))

    reading = {**common, "dependencies": [*common["dependencies"], READS_ENTRY]}

    @router.post(f"{SUBSCRIPTION}/resetcursor/{{wall_ms}}", **reading)
    async def reset_to_time(name: Topic, subscription: str, wall_ms: Wall) -> None:
        """Reset a subscription to the first message published at this time (ms since 1970) or later."""
        await ask(lambda broker: broker.subscriptions.reset_to_time(name, subscription, wall_ms))

    @router.post(f"{SUBSCRIPTION}/resetcursor", **reading)
    async def reset_to_position(name: Topic, subscription: str, position: ResetPosition) -> None:
        """Reset a subscription to this message; with `excluded`, to the one after it."""
        await ask(
            lambda broker: broker.subscriptions.reset_to_position(
                name,
                subscription,
                position_of(position),
                excluded=position.is_excluded,
                batch_index=position.batch_index,
            )
        )


def _add_expiry(router: APIRouter, ask: Ask, needs: Needs) -> None:
    common: dict[str, Any] = {"dependencies": [needs.consume], **NO_CONTENT}

    @router.post(f"{SUBSCRIPTION}/expireMessages/{{seconds}}", **common)
    async def expire(name: Topic, subscription: str, seconds: Seconds) -> None:
        """Expire messages older than this number of seconds."""
        await ask(lambda broker: broker.subscriptions.expire_older_than(name, subscription, seconds))

    @router.post(f"{SUBSCRIPTION}/expireMessages", **common)
    async def expire_to_position(name: Topic, subscription: str, position: ResetPosition) -> None:
        """Expire messages up to this one; with `excluded`, without it."""
        await ask(
            lambda broker: broker.subscriptions.expire_to_position(
                name, subscription, position_of(position), excluded=position.is_excluded
            )
        )

    @router.post(f"{TOPIC}/all_subscription/expireMessages/{{seconds}}", **common)
    async def expire_everywhere(name: Topic, seconds: Seconds) -> None:
        """Expire messages older than this number of seconds, for every subscription."""
        await ask(lambda broker: broker.subscriptions.expire_all_older_than(name, seconds))


def _add_properties(router: APIRouter, ask: Ask, needs: Needs) -> None:
    @router.get(f"{SUBSCRIPTION}/properties", dependencies=[needs.consume])
    async def get_properties(name: Topic, subscription: str) -> Properties:
        """Read the properties of a subscription."""
        return await ask(lambda broker: broker.subscriptions.get_properties(name, subscription))

    @router.put(f"{SUBSCRIPTION}/properties", dependencies=[needs.consume], **NO_CONTENT)
    async def put_properties(name: Topic, subscription: str, properties: Properties) -> None:
        """Replace the properties of a subscription."""
        await ask(lambda broker: broker.subscriptions.update_properties(name, subscription, properties))

    @router.get(f"{SUBSCRIPTION}/replicatedSubscriptionStatus", dependencies=[needs.consume])
    async def replicated(name: Topic, subscription: str) -> dict[str, bool]:
        """Return whether a subscription has the same place in all clusters of its topic, by topic or partition."""
        return await ask(lambda broker: broker.subscriptions.replicated(name, subscription))

    @router.post(f"{SUBSCRIPTION}/replicatedSubscriptionStatus", dependencies=[needs.consume], **NO_CONTENT)
    async def set_replicated(name: Topic, subscription: str, replicated: Annotated[Flag, Body()]) -> None:
        """Let a subscription have the same place in all clusters of its topic, or no longer."""
        await ask(lambda broker: broker.subscriptions.set_replicated(name, subscription, replicated=replicated))

# SPDX-License-Identifier: Apache-2.0
"""Routes of transactions, as `pulsar-admin transactions` uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Request

from penstock.admin.gateway import Ask
from penstock.admin.routing import NO_CONTENT
from penstock.core.names import TopicName
from penstock.core.transaction_id import TransactionId

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway

_ID: Final = "{coordinator}/{number}"
_TOPIC: Final = "{tenant}/{namespace}/{topic}"
Half = Annotated[int, Path(ge=0, lt=2**64, description="Half of the transaction's id")]


async def _persistent(request: Request) -> TopicName:
    path = request.path_params
    return TopicName("persistent", path["tenant"], path["namespace"], path["topic"])


Topic = Annotated[TopicName, Depends(_persistent)]


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v3/transactions."""
    router = APIRouter(prefix="/admin/v3/transactions", tags=["transactions"], dependencies=[needs.superuser])
    ask = Ask(gateway)

    @router.get("/coordinatorStats")
    async def coordinator_stats(
        coordinator: Annotated[int | None, Query(alias="coordinatorId")] = None,
    ) -> dict[str, Any]:
        """Return how many transactions are open, by the number of their coordinator, or of one."""
        if coordinator is not None:
            return dict(await ask(lambda broker: broker.transactions.coordinator(coordinator)))
        return dict(await ask(lambda broker: broker.transactions.coordinators()))

    @router.get("/slowTransactions/{timeout_ms}")
    async def slow_transactions(timeout_ms: Annotated[int, Path(ge=0)]) -> dict[str, Any]:
        """Return the transactions that have been open for longer than so many ms, with their topics and owners."""
        return dict(await ask(lambda broker: broker.transactions.slow(timeout_ms)))

    @router.get(f"/transactionMetadata/{_ID}")
    async def transaction_metadata(coordinator: Half, number: Half) -> dict[str, Any]:
        """Return an open transaction: its topics and subscriptions, its owner, and its timeout in ms."""
        transaction = TransactionId(coordinator, number)
        return dict(await ask(lambda broker: broker.transactions.metadata(transaction)))

    @router.get(f"/transactionBufferStats/{_TOPIC}")
    async def buffer_stats(topic: Topic) -> dict[str, Any]:
        """Return how many open transactions may send to a topic, and up to which entry it may be read."""
        return dict(await ask(lambda broker: broker.transactions.buffer(topic)))

    @router.get(f"/transactionInBufferStats/{_TOPIC}/{_ID}")
    async def in_buffer(topic: Topic, coordinator: Half, number: Half) -> dict[str, Any]:
        """Return where an open transaction begins in a topic."""
        transaction = TransactionId(coordinator, number)
        return dict(await ask(lambda broker: broker.transactions.in_buffer(topic, transaction)))

    @router.get(f"/pendingAckStats/{_TOPIC}/{{subscription}}")
    async def pending_ack_stats(topic: Topic, subscription: str) -> dict[str, Any]:
        """Return how many open transactions have acknowledged in a subscription."""
        return dict(await ask(lambda broker: broker.transactions.pending_acks(topic, subscription)))

    @router.get(f"/transactionInPendingAckStats/{_TOPIC}/{{subscription}}/{_ID}")
    async def in_pending_ack(topic: Topic, subscription: str, coordinator: Half, number: Half) -> dict[str, Any]:
        """Return up to which entry an open transaction has acknowledged all of a subscription."""
        transaction = TransactionId(coordinator, number)
        return dict(await ask(lambda broker: broker.transactions.in_pending_acks(topic, subscription, transaction)))

    @router.post(f"/abortTransaction/{_ID}", **NO_CONTENT)
    async def abort_transaction(coordinator: Half, number: Half) -> None:
        """Abort a transaction, whoever has opened it."""
        transaction = TransactionId(coordinator, number)
        await ask(lambda broker: broker.transactions.abort(transaction))

    return router

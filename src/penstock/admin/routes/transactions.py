# SPDX-License-Identifier: Apache-2.0
"""Routes of transactions, as `pulsar-admin transactions` uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Path

from penstock.admin.gateway import Ask
from penstock.admin.routing import NO_CONTENT
from penstock.core.transaction_id import TransactionId

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway

_ID: Final = "{coordinator}/{number}"
Half = Annotated[int, Path(ge=0, lt=2**64, description="Half of the transaction's id")]


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v3/transactions."""
    router = APIRouter(prefix="/admin/v3/transactions", tags=["transactions"], dependencies=[needs.superuser])
    ask = Ask(gateway)

    @router.get("/coordinatorStats")
    async def coordinator_stats() -> dict[str, Any]:
        """Return how many transactions are open, by the number of their coordinator."""
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

    @router.post(f"/abortTransaction/{_ID}", **NO_CONTENT)
    async def abort_transaction(coordinator: Half, number: Half) -> None:
        """Abort a transaction, whoever has opened it."""
        transaction = TransactionId(coordinator, number)
        await ask(lambda broker: broker.transactions.abort(transaction))

    return router

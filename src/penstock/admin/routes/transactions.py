# SPDX-License-Identifier: Apache-2.0
"""Routes of transactions, as `pulsar-admin transactions` uses them, and what brokers ask each other about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Request

from penstock.admin.gateway import Ask
from penstock.admin.models import Count, Flag, Long, Model
from penstock.admin.routing import NO_CONTENT
from penstock.broker.transactions.others import End, Wanted
from penstock.core.names import TopicName
from penstock.core.transaction_id import TransactionId
from penstock.storage.transaction_rows import OPEN, StoredTransaction

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


class Joining(Model):
    """A transaction, and what it wants to use of the broker that is asked."""

    owner: str
    startedMs: Long  # noqa: N815 - JSON
    timeoutMs: Count  # noqa: N815 - JSON
    topics: list[str]
    subscriptions: list[tuple[str, str]]


class Ending(Model):
    """How transactions ended: coordinator, number, and whether it was committed."""

    ends: list[tuple[Long, Long, Flag]]


class Numbers(Model):
    """Numbers of transactions of the coordinator that is asked."""

    numbers: list[Long]


def between_brokers(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v3/transactions/parts, for other brokers of this cluster."""
    router = APIRouter(prefix="/admin/v3/transactions/parts", dependencies=[needs.brokers], include_in_schema=False)
    ask = Ask(gateway)

    @router.put(f"/{_ID}")
    async def join(coordinator: Half, number: Half, body: Joining) -> dict[str, Any]:
        """Let a transaction use topics and subscriptions here; returns its parts."""
        transaction = TransactionId(coordinator, number)
        stored = StoredTransaction(transaction, OPEN, body.startedMs, body.timeoutMs, body.owner)
        wanted = Wanted()
        wanted.topics = [TopicName.parse(text) for text in body.topics]
        wanted.subscriptions = [(TopicName.parse(text), name) for text, name in body.subscriptions]
        return {"parts": await ask(lambda broker: broker.transactions.join(stored, wanted))}

    @router.post("/end", **NO_CONTENT)
    async def end(body: Ending) -> None:
        """End transactions here."""
        ends = [End(TransactionId(coordinator, number), commit) for coordinator, number, commit in body.ends]
        await ask(lambda broker: broker.transactions.end_here(ends))

    @router.post("/open")
    async def which_open(body: Numbers) -> dict[str, Any]:
        """Return those of these transactions that are open."""
        found = await ask(lambda broker: broker.transactions.which_open(body.numbers))
        return {
            "open": [
                {
                    "number": one.id.number,
                    "owner": one.owner,
                    "startedMs": one.started_ms,
                    "timeoutMs": one.timeout_ms,
                }
                for one in found
            ]
        }

    return router

# SPDX-License-Identifier: Apache-2.0
"""Commands about transactions: opening one, adding topics and subscriptions to it, and ending it.

Where: called from the session's table of handlers. SENDs and ACKs of a transaction go their usual way, with its id.

Clients find coordinators as partitions of a topic that does not exist, `discovery.COORDINATORS`: they ask how many
there are, and look up each. END_TXN_ON_PARTITION and END_TXN_ON_SUBSCRIPTION are what brokers of Pulsar say to each
other; no client sends them, and they are refused.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.access import Action
from penstock.core.errors import NotAllowed, PenstockError
from penstock.core.names import TopicName
from penstock.core.transaction_id import TransactionId
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from penstock.broker.commands.session import Handler, Session
    from penstock.broker.transactions.coordinator import Coordinator

Type = codec.BaseCommand.Type


class Transactions:
    """Answers commands about transactions. All methods are called on the event loop."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.handlers: Mapping[int, Handler] = {
            Type.TC_CLIENT_CONNECT_REQUEST: self._on_connect,
            Type.NEW_TXN: partial(self._on_request, Type.NEW_TXN, self._open),
            Type.ADD_PARTITION_TO_TXN: partial(self._on_request, Type.ADD_PARTITION_TO_TXN, self._add_topics),
            Type.ADD_SUBSCRIPTION_TO_TXN: partial(
                self._on_request, Type.ADD_SUBSCRIPTION_TO_TXN, self._add_subscriptions
            ),
            Type.END_TXN: partial(self._on_request, Type.END_TXN, self._end),
        }

    def _on_connect(self, session: Session, body: codec.CommandTcClientConnectRequest) -> None:
        kind = Type.TC_CLIENT_CONNECT_REQUEST
        self._coordinator.check_enabled()
        try:
            self._coordinator.check_here(body.tc_id)
        except PenstockError as error:
            refused = codec.transaction_answer(kind, body.request_id, None, error=error.wire_code, message=str(error))
            session.reply(refused)
        else:
            session.reply(codec.transaction_answer(kind, body.request_id, None))

    def _on_request(
        self,
        kind: int,
        carry_out: Callable[[Session, codec.TransactionCommand], Awaitable[TransactionId]],
        session: Session,
        body: codec.TransactionCommand,
    ) -> None:
        self._coordinator.check_enabled()  # Then the answer is ERROR, as Pulsar's; clients wait for no other.
        session.requests.start(body.request_id, partial(self._answer, kind, carry_out, session, body))

    async def _answer(
        self,
        kind: int,
        carry_out: Callable[[Session, codec.TransactionCommand], Awaitable[TransactionId]],
        session: Session,
        body: codec.TransactionCommand,
    ) -> None:
        try:
            if body.scalable:
                raise NotAllowed("scalable topics do not exist here, and their transactions neither")
            transaction = await carry_out(session, body)
        except PenstockError as error:
            named = None if isinstance(body, codec.CommandNewTxn) else _id_of(body)
            answer = codec.transaction_answer(kind, body.request_id, named, error=error.wire_code, message=str(error))
        else:
            answer = codec.transaction_answer(kind, body.request_id, transaction)
        session.reply(answer)

    async def _open(self, session: Session, body: codec.TransactionCommand) -> TransactionId:
        assert isinstance(body, codec.CommandNewTxn)
        # The field says seconds; clients send milliseconds, and Pulsar takes them for that.
        return await self._coordinator.open(body.tc_id, owner_of(session), body.txn_ttl_seconds)

    async def _add_topics(self, session: Session, body: codec.TransactionCommand) -> TransactionId:
        assert isinstance(body, codec.CommandAddPartitionToTxn)
        names = [TopicName.parse(text) for text in body.partitions]
        for name in names:
            session.require(Action.PRODUCE, name)
        transaction = self._known(body)
        await self._coordinator.add_topics(transaction, owner_of(session), names)
        return transaction

    async def _add_subscriptions(self, session: Session, body: codec.TransactionCommand) -> TransactionId:
        assert isinstance(body, codec.CommandAddSubscriptionToTxn)
        named = [(TopicName.parse(one.topic), one.subscription) for one in body.subscription]
        for name, subscription in named:
            session.require(Action.CONSUME, name, subscription=subscription)
        transaction = self._known(body)
        await self._coordinator.add_subscriptions(transaction, owner_of(session), named)
        return transaction

    async def _end(self, session: Session, body: codec.TransactionCommand) -> TransactionId:
        assert isinstance(body, codec.CommandEndTxn)
        transaction = self._known(body)
        await self._coordinator.end(transaction, owner_of(session), commit=body.txn_action == codec.COMMIT)
        return transaction

    def _known(self, body: codec.TransactionCommand) -> TransactionId:
        transaction = _id_of(body)
        self._coordinator.check_here(transaction.coordinator)
        return transaction


def owner_of(session: Session) -> str:
    """Return the owner of a session's transactions: the proven role, behind a proxy the original one."""
    return session.payer_role or ""


def _id_of(body: codec.TransactionCommand) -> TransactionId:
    assert not isinstance(body, codec.CommandNewTxn)
    return TransactionId(body.txnid_most_bits, body.txnid_least_bits)

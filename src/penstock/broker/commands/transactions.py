# SPDX-License-Identifier: Apache-2.0
"""Commands about transactions: opening one, adding topics and subscriptions to it, and ending it.

Where: called from the session's table of handlers. SENDs and ACKs of a transaction go their usual way, with its id.

Clients find coordinators as partitions of a topic that does not exist, `discovery.COORDINATORS`: they ask how many
there are, and look up each. END_TXN_ON_PARTITION and END_TXN_ON_SUBSCRIPTION are what brokers of Pulsar say to each
other; no client sends them, and they are refused.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from penstock.broker.access import Action
from penstock.core.errors import NotAllowed, PenstockError
from penstock.core.names import TopicName
from penstock.core.transaction_id import TransactionId
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from penstock.broker.commands.session import Handler, Session
    from penstock.broker.transactions.coordinator import Coordinator

Type = codec.BaseCommand.Type


class Transactions:
    """Answers commands about transactions. All methods are called on the event loop."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        # Each with how it is carried out at once, and how otherwise.
        requests: Mapping[int, tuple[_AtOnce, _Later]] = {
            Type.NEW_TXN: (self._open_now, self._open),
            Type.ADD_PARTITION_TO_TXN: (self._add_topics_now, self._add_topics),
            Type.ADD_SUBSCRIPTION_TO_TXN: (self._add_subscriptions_now, self._add_subscriptions),
            Type.END_TXN: (self._end_now, self._end),
        }
        self.handlers: Mapping[int, Handler] = {
            Type.TC_CLIENT_CONNECT_REQUEST: self._on_connect,
            **{kind: partial(self._on_request, kind, *how) for kind, how in requests.items()},
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
        self, kind: int, at_once: _AtOnce, later: _Later, session: Session, body: codec.TransactionCommand
    ) -> None:
        """Carry out a request, nearly always without a task: that would take as long as all else that it needs."""
        self._coordinator.check_enabled()  # Then the answer is ERROR, as Pulsar's; clients wait for no other.
        request = _Request(session, kind, body)
        try:
            if body.scalable:
                raise NotAllowed("scalable topics do not exist here, and their transactions neither")
            waits = at_once(request)
        except PenstockError as error:
            request.answer(error)
            return
        if waits:
            request.charged_bytes = session.requests.charge()
        else:
            session.requests.start(body.request_id, partial(self._answer_later, later, request))

    async def _answer_later(self, later: _Later, request: _Request) -> None:
        try:
            await later(request)
        except PenstockError as error:
            request.answer(error)
        else:
            request.answer(None)

    def _open_now(self, request: _Request) -> bool:
        body = request.body
        assert isinstance(body, codec.CommandNewTxn)
        if not self._coordinator.may_open_now:
            return False
        # The field says seconds; clients send milliseconds, and Pulsar takes them for that.
        asked = body.tc_id, owner_of(request.session), body.txn_ttl_seconds
        request.transaction = self._coordinator.open_now(*asked, request.stored)
        return True

    async def _open(self, request: _Request) -> None:
        body = request.body
        assert isinstance(body, codec.CommandNewTxn)
        request.transaction = await self._coordinator.open(body.tc_id, owner_of(request.session), body.txn_ttl_seconds)

    def _add_topics_now(self, request: _Request) -> bool:
        owner, names = owner_of(request.session), self._topics_of(request)
        return self._coordinator.add_now(self._known(request), owner, names, (), request.stored)

    async def _add_topics(self, request: _Request) -> None:
        owner, names = owner_of(request.session), self._topics_of(request)
        await self._coordinator.add_topics(self._known(request), owner, names)

    def _add_subscriptions_now(self, request: _Request) -> bool:
        owner, names = owner_of(request.session), self._subscriptions_of(request)
        return self._coordinator.add_now(self._known(request), owner, (), names, request.stored)

    async def _add_subscriptions(self, request: _Request) -> None:
        owner, names = owner_of(request.session), self._subscriptions_of(request)
        await self._coordinator.add_subscriptions(self._known(request), owner, names)

    def _end_now(self, request: _Request) -> bool:
        owner, commit = owner_of(request.session), _commits(request.body)
        return self._coordinator.end_now(self._known(request), owner, commit=commit, done=request.stored)

    async def _end(self, request: _Request) -> None:
        owner, commit = owner_of(request.session), _commits(request.body)
        await self._coordinator.end(self._known(request), owner, commit=commit)

    def _topics_of(self, request: _Request) -> Sequence[TopicName]:
        """Raises AuthorizationFailed."""
        body = request.body
        assert isinstance(body, codec.CommandAddPartitionToTxn)
        names = [TopicName.parse(text) for text in body.partitions]
        for name in names:
            request.session.require(Action.PRODUCE, name)
        return names

    def _subscriptions_of(self, request: _Request) -> Sequence[tuple[TopicName, str]]:
        """Raises AuthorizationFailed."""
        body = request.body
        assert isinstance(body, codec.CommandAddSubscriptionToTxn)
        named = [(TopicName.parse(one.topic), one.subscription) for one in body.subscription]
        for name, subscription in named:
            request.session.require(Action.CONSUME, name, subscription=subscription)
        return named

    def _known(self, request: _Request) -> TransactionId:
        assert request.transaction is not None, "named by all requests but NEW_TXN"
        self._coordinator.check_here(request.transaction.coordinator)
        return request.transaction


def owner_of(session: Session) -> str:
    """Return the owner of a session's transactions: the proven role, behind a proxy the original one."""
    return session.payer_role or ""


class _Request:
    """One request about a transaction, until it is answered."""

    __slots__ = ("body", "charged_bytes", "kind", "session", "transaction")

    def __init__(self, session: Session, kind: int, body: codec.TransactionCommand) -> None:
        self.session = session
        self.kind = kind
        self.body = body
        self.transaction = None if isinstance(body, codec.CommandNewTxn) else _id_of(body)
        self.charged_bytes = 0

    def stored(self, error: PenstockError | None) -> None:
        """Answer it: the change that it waited for is durable, or has failed."""
        self.session.requests.charge_back(self.charged_bytes)
        self.answer(error)

    def answer(self, error: PenstockError | None) -> None:
        about = self.kind, self.body.request_id
        if error is None:
            answer = codec.transaction_answer(*about, self.transaction)
        else:
            named = None if isinstance(self.body, codec.CommandNewTxn) else self.transaction
            answer = codec.transaction_answer(*about, named, error=error.wire_code, message=str(error))
        self.session.reply(answer)


# Carries out a request and calls its `stored`; or does nothing and returns False, if more than the disk is waited for.
_AtOnce: TypeAlias = "Callable[[_Request], bool]"
# Carries out any request.
_Later: TypeAlias = "Callable[[_Request], Awaitable[None]]"


def _commits(body: codec.TransactionCommand) -> bool:
    assert isinstance(body, codec.CommandEndTxn)
    return body.txn_action == codec.COMMIT


def _id_of(body: codec.TransactionCommand) -> TransactionId:
    assert not isinstance(body, codec.CommandNewTxn)
    return TransactionId(body.txnid_most_bits, body.txnid_least_bits)

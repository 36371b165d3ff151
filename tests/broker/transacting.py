# SPDX-License-Identifier: Apache-2.0
"""A client of the in-process broker that uses transactions, in every way the protocol has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.transaction_id import TransactionId
from penstock.testing.client import Refused
from penstock.wire import codec
from penstock.wire.client import entries
from penstock.wire.client.connection import frame
from tests.broker.consuming import Peer, Received
from tests.net.harness import TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Type = codec.BaseCommand.Type
MINUTE_MS = 60_000
COMMIT, ABORT = 0, 1


class TransactingPeer(Peer):
    """A peer that can do everything in a transaction. Requests that are refused raise `Refused`."""

    _asked = 1_000  # request ids that no other request has

    async def ask(self, kind: int, **fields: Any) -> Any:  # noqa: ANN401 - the answer's body
        """Send a command about transactions and return the body of its answer."""
        self._asked += 1
        self.client.write(frame(kind, request_id=self._asked, **fields))
        command, _ = await self.next(kind + 1, Type.ERROR)
        if command.type == Type.ERROR:
            raise Refused(command.error.error, command.error.message)
        body: Any = codec.body_in(command)
        assert body.request_id == self._asked
        if body.HasField("error"):
            raise Refused(body.error, body.message)
        return body

    async def open(self, timeout_ms: int = MINUTE_MS, coordinator: int = 0) -> TransactionId:
        body = await self.ask(Type.NEW_TXN, txn_ttl_seconds=timeout_ms, tc_id=coordinator)
        return TransactionId(body.txnid_most_bits, body.txnid_least_bits)

    async def add_topics(self, transaction: TransactionId, *names: str) -> None:
        await self.ask(Type.ADD_PARTITION_TO_TXN, **ids(transaction), partitions=names or [TOPIC])

    async def add_subscription(self, transaction: TransactionId, name: str = "s", topic: str = TOPIC) -> None:
        named = [{"topic": topic, "subscription": name}]
        await self.ask(Type.ADD_SUBSCRIPTION_TO_TXN, **ids(transaction), subscription=named)

    async def commit(self, transaction: TransactionId) -> None:
        await self.ask(Type.END_TXN, **ids(transaction), txn_action=COMMIT)

    async def abort(self, transaction: TransactionId) -> None:
        await self.ask(Type.END_TXN, **ids(transaction), txn_action=ABORT)

    # -- in a transaction

    async def send_in(
        self,
        transaction: TransactionId,
        *payloads: bytes,
        producer_id: int = 0,
        named: bool = True,
        again: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Send entries in a transaction; their entry ids. Not `named`: their metadata does not say which one.

        `again`: with the sequence id of the last one.
        """
        self._sequence -= again
        for payload in payloads:
            about = codec.MessageMetadata(
                producer_name="p", sequence_id=self._sequence, publish_time=1, **dict(metadata or {})
            )
            if named:
                about.txnid_most_bits, about.txnid_least_bits = transaction
            command = codec.CommandSend(producer_id=producer_id, sequence_id=self._sequence, **ids(transaction))
            if about.num_messages_in_batch > 1:
                command.num_messages = about.num_messages_in_batch
            self._sequence += 1
            self.client.write(entries.send(command, entries.entry(about, payload)))
        return [await self._receipt() for _ in payloads]

    async def _receipt(self) -> int:
        command, _ = await self.next(Type.SEND_RECEIPT, Type.SEND_ERROR)
        if command.type == Type.SEND_ERROR:
            raise Refused(command.send_error.error, command.send_error.message)
        return command.send_receipt.message_id.entryId

    async def acknowledge_in(
        self,
        transaction: TransactionId,
        *received: Received,
        consumer_id: int = 0,
        cumulative: bool = False,
        words: Sequence[int] = (),
        batch_size: int = 0,
    ) -> None:
        """Acknowledge entries, or with `words` all but these messages of a batch; returns when that is answered."""
        self._asked += 1
        body = codec.CommandAck(
            consumer_id=consumer_id,
            ack_type=codec.CommandAck.Cumulative if cumulative else codec.CommandAck.Individual,
            request_id=self._asked,
            **ids(transaction),
        )
        for one in received:
            message_id = body.message_id.add()
            message_id.ledgerId, message_id.entryId = one.message.message_id.ledgerId, one.entry_id
            message_id.ack_set.extend(words)
            if batch_size:
                message_id.batch_size = batch_size
        self.send(Type.ACK, body)
        command, _ = await self.next(Type.ACK_RESPONSE)
        if command.ackResponse.HasField("error"):
            raise Refused(command.ackResponse.error, command.ackResponse.message)


def ids(transaction: TransactionId) -> dict[str, Any]:
    """The fields that name a transaction."""
    return {"txnid_most_bits": transaction.coordinator, "txnid_least_bits": transaction.number}

# SPDX-License-Identifier: Apache-2.0
"""Messages that are sent in transactions, for Spark to read: the official Python client has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.testing.client import RawClient, Refused, Type
from penstock.wire import codec
from penstock.wire.client import entries

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_MS = 600_000


class Transactions(RawClient):
    """A client that sends to one topic, in transactions and without."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__(port)
        self._topic = topic
        self._sequence = 0
        self.produce(topic)

    def plain(self, *payloads: bytes) -> None:
        """Send without a transaction."""
        self._send({}, payloads)

    def committed(self, *payloads: bytes) -> None:
        self.end(self.open(*payloads), commit=True)

    def aborted(self, *payloads: bytes) -> None:
        self.end(self.open(*payloads), commit=False)

    def open(self, *payloads: bytes) -> dict[str, Any]:
        """Send in a transaction and leave it open; returns its id, as fields of commands."""
        opened = self._asked(Type.NEW_TXN, txn_ttl_seconds=TIMEOUT_MS, tc_id=0)
        ids: dict[str, Any] = {"txnid_most_bits": opened.txnid_most_bits, "txnid_least_bits": opened.txnid_least_bits}
        self._asked(Type.ADD_PARTITION_TO_TXN, **ids, partitions=[self._topic])
        self._send(ids, payloads)
        return ids

    def end(self, ids: dict[str, Any], *, commit: bool) -> None:
        self._asked(Type.END_TXN, **ids, txn_action=0 if commit else 1)

    def _asked(self, kind: int, **fields: Any) -> Any:  # noqa: ANN401 - the answer's body
        answer = self.request(kind, kind + 1, **fields)
        if answer.HasField("error"):
            raise Refused(answer.error, answer.message)
        return answer

    def _send(self, ids: dict[str, Any], payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self._sequence += 1
            about = codec.MessageMetadata(producer_name="p", sequence_id=self._sequence, publish_time=1, **ids)
            command = codec.CommandSend(producer_id=0, sequence_id=self._sequence, **ids)
            self.write(entries.send(command, entries.entry(about, payload)))
        for _ in payloads:
            answer = self.next(Type.SEND_RECEIPT, Type.SEND_ERROR).command
            if answer.type == Type.SEND_ERROR:
                raise Refused(answer.send_error.error, answer.send_error.message)

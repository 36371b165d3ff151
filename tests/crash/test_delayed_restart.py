# SPDX-License-Identifier: Apache-2.0
"""kill -9 while delayed messages wait: a small version of `benchmarks.delayed_delivery --restart`, and of the worst."""

from __future__ import annotations

import random
import struct
import time
from typing import TYPE_CHECKING

from penstock.core.checksum import seal
from penstock.testing.client import RawClient, Type, send
from penstock.testing.process import BrokerProcess
from penstock.wire.pulsar_pb2 import MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TOPIC = "persistent://public/default/delayed"
SHARED = 1
STRICT = "isDelayedDeliveryDeliverAtTimeStrict=true\n"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def publish(client: RawClient, deliver_at_ms: Sequence[int], first: int) -> list[int]:
    """Publish messages that say in their payload when they are due; the ids of those with a receipt."""
    for number, at_ms in enumerate(deliver_at_ms, first):
        said = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        if at_ms:
            said.deliver_at_time = at_ms
        encoded = said.SerializeToString()
        client.write(send(0, number, seal(struct.pack(">I", len(encoded)) + encoded + b"%d" % at_ms)))
    return [client.next(Type.SEND_RECEIPT).command.send_receipt.message_id.entryId for _ in deliver_at_ms]


def test_after_kill_9_no_delayed_message_is_lost_or_early(tmp_path: Path) -> None:
    chance = random.Random(11)
    (tmp_path / "broker.conf").write_text(STRICT)
    with BrokerProcess(tmp_path / "data", ["--config", str(tmp_path / "broker.conf")]).start() as broker:
        due_ms = now_ms() + 1_500
        with RawClient(broker.port) as client:
            client.subscribe(TOPIC, "s", subType=SHARED)
            client.produce(TOPIC)
            stored = publish(client, [due_ms + chance.randrange(500) for _ in range(1_000)], 0)
            stored += publish(client, [0], 1_000)
            now = client.message()
            assert now.payload == b"0"
            client.acknowledge(now, request_id=1)
            client.next(Type.ACK_RESPONSE)
        broker.kill()
        broker.start()
        with RawClient(broker.port) as client:
            client.subscribe(TOPIC, "s", subType=SHARED, permits=5_000)
            client.produce(TOPIC)
            stored += publish(client, [0], 1_001)
            came = []
            for _ in range(1_001):
                message = client.message()
                assert int(message.payload) <= now_ms()
                came.append(message.command.message.message_id.entryId)
    assert sorted(came) == [*stored[:1_000], stored[-1]]

# SPDX-License-Identifier: Apache-2.0
"""kill -9 while usage is counted: afterwards the records say exactly what the log has.

Every round: start the broker, publish and acknowledge on topics whose acknowledged entries are trimmed and on topics
that keep all, and kill it at a random moment; sometimes stop it cleanly. At the end, for each topic: the sum of its
records is the number of its entries, of their messages and of their bytes, whatever was trimmed meanwhile.

    python tests/crash/usage.py --rounds 50 [--seed 1]

Ends with status 1 at a difference, naming the topic and the seed.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import fastavro

from penstock.accounting.records import USAGE
from penstock.core.system_topics import USAGE_TOPIC
from penstock.testing.client import RawClient, Type, frame, send
from penstock.testing.process import BrokerProcess
from penstock.wire import batches, metadata
from penstock.wire.client import entries
from penstock.wire.client.frames import entry_in
from penstock.wire.codec import MessageMetadata

TOPICS = 3
WINDOW = 500
INTERVAL_S = 1
RECORDED_TIMEOUT_S = 120.0  # to count what kills have left; on a busy machine it is read slowly
# All sequence ids have this many digits and bytes, so that all entries of a topic are equally large.
FIRST_SEQUENCE_ID = 1_000_000
PAYLOAD_BYTES = 1_000
MESSAGES = 3  # in each batch
SCHEMA = fastavro.parse_schema(json.loads(USAGE.definition))


class Used(NamedTuple):
    """What a topic's records sum up to, or what its log has."""

    messages: int
    bytes: int


def stored_entry(sequence_id: int) -> bytes:
    about = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1, num_messages_in_batch=MESSAGES)
    return entries.entry(about, bytes(PAYLOAD_BYTES))


def publish_until_killed(port: int, topic: str, first: int) -> None:
    client = RawClient(port)
    try:
        client.produce(topic)
        sent, in_flight = first, 0
        while True:
            burst = []
            while in_flight < WINDOW:
                burst.append(send(0, sent, stored_entry(sent), num_messages=MESSAGES))
                sent += 1
                in_flight += 1
            client.write(b"".join(burst))
            while in_flight > WINDOW // 2:
                client.next(Type.SEND_RECEIPT)
                in_flight -= 1
    except OSError:
        client.close()


def acknowledge_until_killed(port: int, topic: str) -> None:
    client = RawClient(port)
    try:
        client.subscribe(topic, "s", permits=1_000)
        taken = 0
        while True:
            client.acknowledge(client.message())
            taken += 1
            if taken % 500 == 0:
                client.write(frame(Type.FLOW, consumer_id=0, messagePermits=500))
    except OSError:
        client.close()


def run_round(broker: BrokerProcess, topics: list[str], number: int, rng: random.Random) -> None:
    broker.start()
    workers = [
        threading.Thread(target=publish_until_killed, args=(broker.port, topic, FIRST_SEQUENCE_ID + number * 20_000))
        for topic in topics
    ] + [threading.Thread(target=acknowledge_until_killed, args=(broker.port, topic)) for topic in topics]
    for worker in workers:
        worker.start()
    time.sleep(rng.uniform(0.2, 2.5))
    if rng.random() < 0.2:
        broker.stop()
    else:
        broker.kill()
    for worker in workers:
        worker.join()


def in_log(port: int, topic: str) -> Used:
    """What the log has of a topic: all its entries are alike, and their ids count from 0."""
    with RawClient(port) as client:
        client.produce(topic)
        client.write(send(0, FIRST_SEQUENCE_ID, stored_entry(FIRST_SEQUENCE_ID), num_messages=MESSAGES))
        count = client.next(Type.SEND_RECEIPT).command.send_receipt.message_id.entryId + 1
    return Used(count * MESSAGES, count * len(stored_entry(FIRST_SEQUENCE_ID)))


def recorded(port: int) -> list[dict[str, Any]]:
    """All records, once the broker has recorded everything that earlier runs have left.

    A stop does not wait until the log is counted: the next start counts the rest, before its first interval ends. So
    this reads on until an interval of this run has ended.
    """
    records: list[dict[str, Any]] = []
    with RawClient(port) as client:
        client.subscribe(f"{USAGE_TOPIC}-partition-0", "check", permits=1_000_000)
        ask, answer = Type.GET_LAST_MESSAGE_ID, Type.GET_LAST_MESSAGE_ID_RESPONSE
        last = client.request(ask, answer, consumer_id=0).last_message_id.entryId
        while True:
            came = client.message(timeout_s=RECORDED_TIMEOUT_S)
            entry = entry_in(came.entry)
            about = metadata.decode(entry)
            payload = batches.decompressed(entry, about)
            for one in batches.single_messages(payload, about.num_messages_in_batch):
                value = io.BytesIO(payload[one.stop - one.message_bytes : one.stop])
                records.append(fastavro.schemaless_reader(value, SCHEMA))  # type: ignore[arg-type]
            if came.command.message.message_id.entryId > last and records[-1]["scope"] == "broker":
                return records


def summed(records: list[dict[str, Any]], topic: str) -> Used:
    last: dict[tuple[str, int], Used] = {}
    for record in records:
        if record["topic"] == topic:
            key = record["broker"], record["counters_since_ms"]
            used = Used(record["published_messages"], record["published_bytes"])
            if key in last and (used.messages < last[key].messages or used.bytes < last[key].bytes):
                raise AssertionError(f"counters of {topic} went back from {last[key]} to {used}")
            last[key] = used
    return Used(sum(one.messages for one in last.values()), sum(one.bytes for one in last.values()))


def main() -> int:
    """Run the rounds; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    topics = [f"persistent://public/default/used-{index}" for index in range(TOPICS)]
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "broker.conf"
        config.write_text(f"usageRecordsEnabled=true\nusageRecordsIntervalInSeconds={INTERVAL_S}\n", encoding="utf-8")
        broker = BrokerProcess(Path(scratch) / "data", ["--config", str(config)])
        for number in range(arguments.rounds):
            run_round(broker, topics, number, rng)
        broker.start()
        stored = {topic: in_log(broker.port, topic) for topic in topics}
        broker.stop()
        broker.start()
        records = recorded(broker.port)
        broker.stop()
    for topic in topics:
        said = summed(records, topic)
        if said != stored[topic]:
            print(f"--seed {arguments.seed}: {topic} has {stored[topic]}, recorded were {said}", file=sys.stderr)
            return 1
    epochs = len({record["epoch"] for record in records})
    messages = sum(one.messages for one in stored.values())
    print(
        f"{arguments.rounds} kills, seed {arguments.seed}: {len(records)} records of {epochs} runs sum up to the "
        f"{messages:,} messages and {sum(one.bytes for one in stored.values()):,} bytes of the log exactly"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

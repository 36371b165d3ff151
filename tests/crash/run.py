# SPDX-License-Identifier: Apache-2.0
"""kill -9 in the middle of publishing and acknowledging, many times over on one data directory.

Every round: start the broker, publish on several topics and acknowledge on each, kill it at a random moment, start it
again and look:
- every entry with a receipt is there, whole, at the position that the receipt named;
- the entries of each producer are in the order of its SENDs;
- what an ACK_RESPONSE confirmed, and what was acknowledged more than the documented second before the kill, is not
  delivered again;
- in every other round, what `administered` says of topics that deduplicate, are compacted and are deleted.

    python tests/crash/run.py --rounds 200 [--seed 1]

Ends with status 1 at the first violation, naming the round and the seed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from penstock.testing.client import Frame, RawClient, Type, entry, frame, send
from penstock.testing.process import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.crash.administered import Administered, Violation

TOPICS = 4
WINDOW = 200
# Acknowledgements are stored within this long (design: metadata durability); the kill may take younger ones back.
CURSOR_INTERVAL_S = 1.0


@dataclass
class Topic:
    """What the outside world knows of one topic, over all rounds."""

    name: str
    sent: int = 0  # sequence ids given out
    receipts: dict[int, int] = field(default_factory=dict)  # sequence id -> entry id
    confirmed: int = -1  # last entry id whose acknowledgement was answered, or is older than the interval
    acks: list[tuple[float, int]] = field(default_factory=list)  # (when, entry id)


def keep_everything(port: int, topic: Topic) -> None:
    """A subscription that never acknowledges keeps all entries for the checks."""
    with RawClient(port) as client:
        client.subscribe(topic.name, "check", permits=0)


def publish_until_killed(port: int, topic: Topic, rng: random.Random) -> None:
    """Publish with a window until the connection breaks."""
    client = RawClient(port)
    client.produce(topic.name)
    in_flight = 0
    try:
        while True:
            burst = []
            while in_flight < WINDOW:
                body = b"%d:" % topic.sent + rng.randbytes(rng.choice((10, 200, 1000, 20_000)))
                burst.append(send(0, topic.sent, entry(body, sequence_id=topic.sent)))
                topic.sent += 1
                in_flight += 1
            client.write(b"".join(burst))
            while in_flight > WINDOW // 2:
                receipt = client.next(Type.SEND_RECEIPT).command.send_receipt
                topic.receipts[receipt.sequence_id] = receipt.message_id.entryId
                in_flight -= 1
    except OSError:
        client.close()


def acknowledge_until_killed(port: int, topic: Topic, rng: random.Random) -> None:
    """Consume and acknowledge in order, sometimes asking for an answer, until the connection breaks."""
    client = RawClient(port)
    request_id = 0
    asked: dict[int, int] = {}
    try:
        client.subscribe(topic.name, "s", permits=100)
        taken = 0
        while True:
            came = client.next(Type.MESSAGE, Type.ACK_RESPONSE)
            if came.command.type == Type.ACK_RESPONSE:
                topic.confirmed = max(topic.confirmed, asked.pop(came.command.ackResponse.request_id))
                continue
            entry_id = came.command.message.message_id.entryId
            wants_answer = rng.random() < 0.05
            if wants_answer:
                request_id += 1
                asked[request_id] = entry_id
            client.acknowledge(came, request_id=request_id if wants_answer else None)
            topic.acks.append((time.monotonic(), entry_id))
            taken += 1
            if taken % 50 == 0:
                client.write(frame(Type.FLOW, consumer_id=0, messagePermits=50))
    except OSError:
        client.close()


def check_entries(port: int, topic: Topic) -> int:
    """Read the whole topic; every receipt's entry is there, whole and in order. Returns how many there are."""
    if not topic.receipts:
        return 0
    with RawClient(port) as client:
        client.subscribe(topic.name, "check", permits=10_000_000)
        by_sequence = sorted(topic.receipts)
        last_wanted = max(topic.receipts.values())
        found: dict[int, int] = {}
        previous = -1
        while True:
            came = client.message()
            entry_id = came.command.message.message_id.entryId
            sequence_id = int(came.payload.partition(b":")[0])
            if sequence_id <= previous:
                raise Violation(f"{topic.name}: sequence {sequence_id} came after {previous}")
            previous = sequence_id
            found[sequence_id] = entry_id
            if entry_id >= last_wanted:
                break
        for sequence_id in by_sequence:
            if found.get(sequence_id) != topic.receipts[sequence_id]:
                raise Violation(
                    f"{topic.name}: sequence {sequence_id} was acknowledged at entry {topic.receipts[sequence_id]}, "
                    f"found at {found.get(sequence_id)}"
                )
    return len(found)


def check_cursor(port: int, topic: Topic, killed_at: float) -> None:
    """The subscription goes on no earlier than what was confirmed."""
    old = [entry_id for when, entry_id in topic.acks if when < killed_at - CURSOR_INTERVAL_S]
    confirmed = max([topic.confirmed, *old])
    topic.acks.clear()
    topic.confirmed = confirmed
    if not topic.receipts:
        return
    with RawClient(port) as client:
        client.subscribe(topic.name, "s", permits=1)
        try:
            came: Frame = client.message(timeout_s=0.3)
        except TimeoutError:
            return
        entry_id = came.command.message.message_id.entryId
        if entry_id <= confirmed:
            raise Violation(f"{topic.name}: entry {entry_id} came again, {confirmed} was confirmed before the kill")


def run_round(
    broker: BrokerProcess, topics: list[Topic], administered: Administered | None, rng: random.Random
) -> None:
    """Start, load, kill."""
    others = administered.begin(broker, rng) if administered is not None else []
    workers = [
        threading.Thread(target=work, args=(broker.port, topic, random.Random(rng.random())))
        for topic in topics
        for work in (publish_until_killed, acknowledge_until_killed)
    ]
    for worker in workers:
        worker.start()
    time.sleep(rng.uniform(0.05, 0.6) if rng.random() < 0.8 else rng.uniform(1.2, 1.8))
    broker.kill()
    for worker in workers + others:
        worker.join()


def main() -> int:
    """Run the rounds; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    receipts = stored = 0
    with tempfile.TemporaryDirectory() as scratch:
        broker = BrokerProcess(Path(scratch) / "data")
        topics: list[Topic] = []
        administered = Administered(0)
        compactions = deleted = 0
        for number in range(arguments.rounds):
            # New topics every few rounds: creating them is killed too, and a check stays short.
            if number % 5 == 0:
                topics = [Topic(f"persistent://public/default/crash-{number}-{i}") for i in range(TOPICS)]
            if number % 10 == 0:
                compactions, deleted = _counted(administered, compactions, deleted)
                administered = Administered(number)
            broker.start()
            for topic in topics:
                keep_everything(broker.port, topic)
            run_round(broker, topics, administered if number % 2 else None, rng)
            killed_at = time.monotonic()
            broker.start()
            try:
                for topic in topics:
                    stored += check_entries(broker.port, topic)
                    check_cursor(broker.port, topic, killed_at)
                    receipts += len(topic.receipts)
                administered.check(broker)
            except Violation as violation:
                print(f"round {number}, --seed {arguments.seed}: {violation}", file=sys.stderr)
                broker.kill()
                return 1
            if rng.random() < 0.5:
                broker.kill()
            elif broker.stop() != 0:
                print(f"round {number}, --seed {arguments.seed}: unclean stop", file=sys.stderr)
                return 1
            if sys.stderr.isatty() or number % 20 == 19:
                print(f"round {number + 1}/{arguments.rounds}: {receipts} receipts checked", file=sys.stderr)
    print(
        f"{arguments.rounds} kills, seed {arguments.seed}: {receipts} acknowledged entries checked, 0 lost, "
        f"0 out of order, no cursor behind what was confirmed ({stored} entries read)"
    )
    compactions, deleted = _counted(administered, compactions, deleted)
    print(f"meanwhile {compactions} compactions were asked for, and {deleted} topics made and deleted")
    return 0


def _counted(administered: Administered, compactions: int, deleted: int) -> tuple[int, int]:
    return (
        compactions + administered.once.compactions,
        deleted + sum(one.incarnation for one in administered.churned),
    )


if __name__ == "__main__":
    sys.exit(main())

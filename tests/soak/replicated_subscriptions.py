# SPDX-License-Identifier: Apache-2.0
"""A consumer that changes between penstock and another cluster, again and again, while messages are published in both.

    python -m tests.soak.replicated_subscriptions --peer pulsar://127.0.0.1:6650 --peer-admin http://127.0.0.1:8080

Why by hand: as `tests.soak.replication`, whose arguments it takes. At each change the consumer leaves some messages
unacknowledged. It prints how many messages were lost, and how many came again although they had been acknowledged, with
the age of the oldest of these acknowledgements; and fails if one was lost.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pulsar

from tests.soak.replication import NAMESPACE, add_peer, both, kill_now_and_then

if TYPE_CHECKING:
    from tests.soak.replication import Cluster

TOPIC: Final = f"persistent://{NAMESPACE}/both"
TYPES: Final = {"shared": pulsar.ConsumerType.Shared, "failover": pulsar.ConsumerType.Failover}
# Nothing has come for this long: the end.
QUIET_MS: Final = 20_000
# What comes so shortly before a change is not acknowledged.
LEFT_OUT_S: Final = 0.5


def publish(client: pulsar.Client, name: str, messages: int, rate: int) -> None:
    """Publish numbered messages at a rate."""
    producer = client.create_producer(TOPIC, send_timeout_millis=0, block_if_queue_full=True)
    began_s = time.monotonic()
    for number in range(messages):
        producer.send_async(f"{name}:{number}".encode(), lambda _result, _id: None)
        time.sleep(max(0.0, began_s + number / rate - time.monotonic()))
    producer.flush()


class Seen:
    """Messages that came, and when each was acknowledged first."""

    def __init__(self) -> None:
        self.came: set[bytes] = set()
        self.acknowledged_s: dict[bytes, float] = {}
        self.again = 0
        self.oldest_s = 0.0  # before the change, of an acknowledgement
        self.left_s = 0.0

    def take(self, consumer: pulsar.Consumer, until_s: float, wanted: int) -> None:
        """Receive and acknowledge until a time, or until all are acknowledged."""
        while time.monotonic() < until_s and len(self.acknowledged_s) < wanted:
            try:
                message = consumer.receive(max(1, min(QUIET_MS, int(1000 * (until_s - time.monotonic())))))
            except pulsar.Timeout:
                return
            data, now_s = message.data(), time.monotonic()
            if data in self.acknowledged_s:
                self.again += 1
                self.oldest_s = max(self.oldest_s, self.left_s - self.acknowledged_s[data])
            self.came.add(data)
            if now_s < until_s - LEFT_OUT_S:
                consumer.acknowledge(message)
                self.acknowledged_s.setdefault(data, now_s)


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_peer(parser)
    parser.add_argument("--messages", type=int, default=3_000, help="in each cluster")
    parser.add_argument("--rate", type=int, default=50, help="messages a second in each cluster")
    parser.add_argument("--stay", type=float, default=7, help="seconds in one cluster")
    parser.add_argument("--pause", type=float, default=3, help="seconds between two clusters")
    parser.add_argument("--kills", type=int, default=0, help="of penstock, meanwhile")
    parser.add_argument("--type", choices=sorted(TYPES), default="shared")
    given = parser.parse_args()
    with ExitStack() as stack:
        broker, own, peer = stack.enter_context(both(given))
        clusters: tuple[Cluster, Cluster] = (own, peer)
        clients = [cluster.client() for cluster in clusters]
        for client in clients:
            stack.callback(client.close)
        threads = [
            threading.Thread(target=publish, args=(client, cluster.name, given.messages, given.rate))
            for client, cluster in zip(clients, clusters, strict=True)
        ]
        threads.append(threading.Thread(target=kill_now_and_then, args=(broker, own, [TOPIC], given.kills, 7)))
        seen, wanted, changes, quiet = Seen(), 2 * given.messages, 0, 0
        for client in clients:
            subscribe(client, given.type).close()
        for thread in threads:
            thread.start()
        while len(seen.acknowledged_s) < wanted and quiet < 2:
            before = len(seen.came)
            consumer = subscribe(clients[changes % 2], given.type)
            last = not any(thread.is_alive() for thread in threads)
            stay_s = 2 * QUIET_MS / 1000 if last else given.stay
            seen.take(consumer, time.monotonic() + stay_s, wanted)
            seen.left_s = time.monotonic()
            quiet = quiet + 1 if last and len(seen.came) == before else 0
            time.sleep(1)  # for acknowledgements that are on their way
            consumer.close()
            time.sleep(given.pause)
            changes += 1
        for thread in threads:
            thread.join()
        time.sleep(given.pause)
        backlogs = {cluster.name: backlog(cluster) for cluster in clusters}
    lost = wanted - len(seen.came)
    sys.stdout.write(
        f"{changes} changes: {len(seen.came)} of {wanted} messages came, {lost} lost, {seen.again} again, acknowledged "
        f"up to {seen.oldest_s:.1f} s before a change; backlogs at the end: {backlogs}\n"
    )
    return int(lost > 0)


def subscribe(client: pulsar.Client, kind: str) -> pulsar.Consumer:
    """Subscribe from the first message on."""
    return client.subscribe(
        TOPIC,
        "moving",
        consumer_type=TYPES[kind],
        initial_position=pulsar.InitialPosition.Earliest,
        replicate_subscription_state_enabled=True,
        receiver_queue_size=100,
    )


def backlog(cluster: Cluster) -> int:
    """Messages of the subscription that are not acknowledged."""
    stats = cluster.ask("GET", f"{TOPIC.replace('://', '/')}/stats")
    return int(stats["subscriptions"]["moving"]["msgBacklog"])


if __name__ == "__main__":
    sys.exit(main())

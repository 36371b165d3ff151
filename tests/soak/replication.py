# SPDX-License-Identifier: Apache-2.0
"""Messages both ways between penstock and another cluster, while penstock is killed and topics are unloaded.

    python -m tests.soak.replication --peer pulsar://127.0.0.1:6650 --peer-admin http://127.0.0.1:8080

Why by hand: the other cluster is Apache Pulsar, which a test cannot start in little time. Without `--peer` it is a
second penstock. It prints how many messages were lost, and how many arrived twice, and fails unless both are none.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pulsar

from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Another cluster may have been used before: names are those of one run.
MARK: Final = f"{time.time_ns():x}"
NAMESPACE: Final = f"soak-{MARK}/replication"
# Out and in.
TOPICS: Final = (f"persistent://{NAMESPACE}/out", f"persistent://{NAMESPACE}/in")
OWN: Final = f"edge-{MARK}"
WAIT_MS: Final = 60_000


class Cluster(NamedTuple):
    """Where a cluster is."""

    name: str
    url: str
    admin_url: str

    def ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """Ask its admin port."""
        request = urllib.request.Request(
            f"{self.admin_url}/admin/v2/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text.strip()[:1] in {b"{", b"["} else text

    def set_up(self, other: Cluster) -> None:
        """Replicate a namespace to another cluster, and deduplicate what comes from there."""
        both = [self.name, other.name]
        self.ask("PUT", f"clusters/{other.name}", {"serviceUrl": other.admin_url, "brokerServiceUrl": other.url})
        self.ask("PUT", f"tenants/{NAMESPACE.partition('/')[0]}", {"adminRoles": [], "allowedClusters": both})
        self.ask("PUT", f"namespaces/{NAMESPACE}", {"replication_clusters": both})
        self.ask("POST", f"namespaces/{NAMESPACE}/replication", both)
        self.ask("POST", f"namespaces/{NAMESPACE}/deduplication", body=True)

    def client(self) -> pulsar.Client:
        """Connect an official client that waits for a broker that starts again."""
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        return pulsar.Client(self.url, logger=quiet, operation_timeout_seconds=90)


def publish(client: pulsar.Client, topic: str, messages: int, rate: int) -> None:
    """Publish numbers at a rate, and return when all are answered."""
    producer = client.create_producer(topic, send_timeout_millis=0, block_if_queue_full=True)
    began_s = time.monotonic()
    for number in range(messages):
        producer.send_async(b"%d" % number, lambda _result, _id: None)
        if number % 100 == 0:
            time.sleep(max(0.0, began_s + number / rate - time.monotonic()))
    producer.flush()


def arrived(client: pulsar.Client, topic: str, messages: int) -> list[int]:
    """Return the numbers that arrive, in their order."""
    consumer = client.subscribe(topic, "check", initial_position=pulsar.InitialPosition.Earliest)
    numbers: list[int] = []
    while True:
        try:
            message = consumer.receive(WAIT_MS if len(set(numbers)) < messages else 2_000)
        except pulsar.Timeout:
            return numbers
        numbers.append(int(message.data()))
        consumer.acknowledge(message)


def is_ordered(numbers: list[int]) -> bool:
    """Whether each number comes for the first time behind all lower ones."""
    first = list(dict.fromkeys(numbers))
    return first == sorted(first)


def play(
    own: Cluster,
    peer: Cluster,
    messages: int,
    *,
    publish: Callable[[pulsar.Client, str], None],
    arrived: Callable[[pulsar.Client, str], list[int]],
    fail: Callable[[], None],
) -> int:
    """Publish one topic in each direction while things fail, and say what has arrived; returns the exit status."""
    wrong = 0
    with ExitStack() as stack:
        clients = {cluster.name: cluster.client() for cluster in (own, peer)}
        for client in clients.values():
            stack.callback(client.close)
        ways = dict(zip(TOPICS, ((own, peer), (peer, own)), strict=True))
        threads = []
        for topic, (source, target) in ways.items():
            clients[target.name].subscribe(topic, "check").close()
            threads.append(threading.Thread(target=publish, args=(clients[source.name], topic)))
        for thread in threads:
            thread.start()
        fail()
        for thread in threads:
            thread.join()
        for topic, (source, target) in ways.items():
            numbers = arrived(clients[target.name], topic)
            lost, twice = messages - len(set(numbers)), len(numbers) - len(set(numbers))
            wrong += lost + twice
            sys.stdout.write(
                f"{source.name} to {target.name}: {len(set(numbers))} of {messages} messages, {lost} lost, "
                f"{twice} twice, in order: {is_ordered(numbers)}\n"
            )
    return int(wrong > 0)


def kill_now_and_then(broker: BrokerProcess, own: Cluster, topics: list[str], kills: int, seed: int) -> None:
    """Unload the topics and kill the broker, again and again."""
    chance = random.Random(seed)
    for _ in range(kills):
        time.sleep(chance.uniform(1, 3))
        for topic in topics:
            own.ask("PUT", f"{topic.replace('://', '/')}/unload")
        time.sleep(chance.uniform(0.5, 2))
        broker.kill()
        broker.start(port=broker.port, admin_port=broker.admin_port)


def add_peer(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which cluster is the other one."""
    parser.add_argument("--peer", help="service URL of the other cluster")
    parser.add_argument("--peer-admin", help="URL of its admin port")
    parser.add_argument("--peer-name", default="standalone", help="its clusterName")


@contextmanager
def both(given: argparse.Namespace) -> Iterator[tuple[BrokerProcess, Cluster, Cluster]]:
    """Run penstock, and a second one unless the arguments name another cluster; both replicate to each other."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        brokers = []
        for name in (OWN, given.peer_name):
            (home / f"{name}.conf").write_text(f"clusterName={name}\n", encoding="utf-8")
            brokers.append(BrokerProcess(home / name, ["--config", str(home / f"{name}.conf")]))
        broker = stack.enter_context(brokers[0])
        own = Cluster(OWN, broker.url, broker.admin_url)
        if given.peer is None:
            second = stack.enter_context(brokers[1])
            peer = Cluster(given.peer_name, second.url, second.admin_url)
        else:
            peer = Cluster(given.peer_name, given.peer, given.peer_admin)
        own.set_up(peer)
        peer.set_up(own)
        yield broker, own, peer


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_peer(parser)
    parser.add_argument("--messages", type=int, default=20_000, help="in each direction")
    parser.add_argument("--rate", type=int, default=600, help="messages a second")
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    with both(given) as (broker, own, peer):
        return play(
            own,
            peer,
            given.messages,
            publish=lambda client, topic: publish(client, topic, given.messages, given.rate),
            arrived=lambda client, topic: arrived(client, topic, given.messages),
            fail=lambda: kill_now_and_then(broker, own, list(TOPICS), given.kills, given.seed),
        )


if __name__ == "__main__":
    sys.exit(main())

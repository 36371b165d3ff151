# SPDX-License-Identifier: Apache-2.0
"""A move to another cluster under load, while the command is killed, with official clients that go on.

    python -m tests.soak.migration --peer pulsar://127.0.0.1:6650 --peer-admin http://127.0.0.1:8080 --java CLASSPATH

Why by hand: the other cluster is Apache Pulsar, which a test cannot start in little time (`python -m
benchmarks.pulsar_peer` does, and keeps the class path of its client in its cache). Without `--peer` it is a second
penstock. It prints the longest pause of each producer and consumer around the move, how many messages were lost, and
how many came twice, and fails if one was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pulsar

from penstock.testing.process import BrokerProcess
from tests.soak.replication import MARK, Cluster

NAMESPACE: Final = f"move-{MARK}/n"
KINDS: Final = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "failover": pulsar.ConsumerType.Failover,
    "shared": pulsar.ConsumerType.Shared,
    "key-shared": pulsar.ConsumerType.KeyShared,
    "partitioned": pulsar.ConsumerType.Shared,
    "delayed": pulsar.ConsumerType.Shared,
    "backlog": pulsar.ConsumerType.Shared,
}
DELAY_MS: Final = 20_000
SETTLE_S: Final = 60.0
CLIENTS: Final = Path(__file__).with_name("MovingClient.java")


class Load:
    """A producer and a consumer of one topic, and when each had something last."""

    def __init__(self, client: pulsar.Client, kind: str, rate: int) -> None:
        self.kind, self.rate = kind, rate
        topic = f"persistent://{NAMESPACE}/{kind}"
        self.consumer = client.subscribe(
            topic, "s", consumer_type=KINDS[kind], initial_position=pulsar.InitialPosition.Earliest
        )
        self.producer = client.create_producer(
            topic, batching_enabled=kind != "shared", block_if_queue_full=True, send_timeout_millis=0
        )
        self.sent = 0
        self.stored: set[int] = set()
        self.got: Counter[int] = Counter()
        self.longest: dict[str, float] = {"producer": 0.0, "consumer": 0.0}
        self.over = threading.Event()
        self.enough = threading.Event()
        self._last = dict.fromkeys(self.longest, time.monotonic())
        self.threads = [threading.Thread(target=self._publish), threading.Thread(target=self._consume)]

    def _seen(self, who: str) -> None:
        now = time.monotonic()
        self.longest[who] = max(self.longest[who], now - self._last[who])
        self._last[who] = now

    def reset(self) -> None:
        """Count pauses from now on."""
        self.longest = dict.fromkeys(self.longest, 0.0)

    def _publish(self) -> None:
        began = time.monotonic()
        while not self.enough.is_set():
            number = self.sent
            self.sent += 1
            about: dict[str, Any] = {"partition_key": f"{number % 31}"}
            if self.kind == "delayed":
                about["deliver_at"] = round(time.time() * 1000) + DELAY_MS

            def done(result: pulsar.Result, _id: object, number: int = number) -> None:
                if result == pulsar.Result.Ok:
                    self.stored.add(number)
                    self._seen("producer")

            self.producer.send_async(b"%d" % number, done, **about)
            time.sleep(max(0.0, began + self.sent / self.rate - time.monotonic()))
        self.producer.flush()

    def _consume(self) -> None:
        held: list[pulsar.Message] = []
        while not self.over.is_set():
            if self.kind == "backlog" and not self.enough.is_set():
                time.sleep(0.1)
                continue
            try:
                message = self.consumer.receive(200)
            except pulsar.Timeout:
                self._acknowledge(held, 0)
                continue
            self._seen("consumer")
            self.got[int(message.data())] += 1
            held.append(message)
            self._acknowledge(held, 20 if self.kind in {"shared", "key-shared", "partitioned"} else 0)

    def _acknowledge(self, held: list[pulsar.Message], keep: int) -> None:
        """Acknowledge out of order; up to `keep` messages wait."""
        while len(held) > keep:
            with contextlib.suppress(pulsar.PulsarException):
                self.consumer.acknowledge(held.pop(random.randrange(len(held))))

    @property
    def lost(self) -> int:
        return len(self.stored - self.got.keys())

    @property
    def twice(self) -> int:
        return sum(self.got.values()) - len(self.got)


class JavaLoad:
    """The same by the Java client, in a process."""

    def __init__(self, classpath: str, url: str, kind: str, rate: int) -> None:
        words = ["java", "-Xmx256m", "-cp", classpath, str(CLIENTS), url, f"persistent://{NAMESPACE}/java-{kind}"]
        types = {"exclusive": "Exclusive", "failover": "Failover", "shared": "Shared", "key-shared": "Key_Shared"}
        self.kind = kind
        self.process = subprocess.Popen(
            [*words, types[kind], str(rate)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._answer() == "ready"

    def say(self, word: str) -> str:
        """Tell it to do something, and return what it answers."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        """Return its next line that is no line of a log."""
        assert self.process.stdout is not None
        return next((line[2:].strip() for line in self.process.stdout if line.startswith("> ")), "it ended")


def migrate(action: str, own: Cluster, peer: Cluster, *, kill_after_s: float | None = None) -> bool:
    """Run `penstock migrate`; whether it came to its end."""
    command = [sys.executable, "-m", "penstock", "migrate", action, NAMESPACE, "--to", peer.url, "--to-admin"]
    with subprocess.Popen([*command, peer.admin_url, "--url", own.url, "--admin-url", own.admin_url]) as process:
        try:
            status = process.wait(kill_after_s or 600)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            return False
    if status:
        raise SystemExit(f"penstock migrate {action} ended with {status}")
    return True


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="service URL of the other cluster")
    parser.add_argument("--peer-admin", help="URL of its admin port")
    parser.add_argument("--java", metavar="CLASSPATH", help="clients of Java, too: where Pulsar's client is")
    parser.add_argument("--rate", type=int, default=100, help="messages a second of each topic")
    parser.add_argument("--seconds", type=float, default=15, help="of load before and after the move")
    parser.add_argument("--kills", type=int, default=0, help="of the command, at any moment")
    parser.add_argument("--broker-kills", type=int, default=0, help="of the old broker while messages are copied")
    parser.add_argument("--aborts", type=int, default=0, help="first, of a move that has begun")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        brokers = []
        for name in ("old", "new"):
            (home / f"{name}.conf").write_text(f"clusterName={name}-{MARK}\n", encoding="utf-8")
            brokers.append(BrokerProcess(home / name, ["--config", str(home / f"{name}.conf")]))
        broker = stack.enter_context(brokers[0])
        own = Cluster(f"old-{MARK}", broker.url, broker.admin_url)
        if given.peer is None:
            second = stack.enter_context(brokers[1])
            peer = Cluster(f"new-{MARK}", second.url, second.admin_url)
        else:
            peer = Cluster("standalone", given.peer, given.peer_admin)
        own.ask("PUT", f"tenants/{NAMESPACE.partition('/')[0]}", {"adminRoles": [], "allowedClusters": [own.name]})
        own.ask("PUT", f"namespaces/{NAMESPACE}")
        own.ask("PUT", f"persistent/{NAMESPACE}/partitioned/partitions", 3)
        client = own.client()
        stack.callback(client.close)
        loads = [Load(client, kind, given.rate) for kind in KINDS]
        in_java = ("exclusive", "failover", "shared", "key-shared") if given.java else ()
        javas = [JavaLoad(given.java, own.url, kind, given.rate) for kind in in_java]
        for load in loads:
            for thread in load.threads:
                thread.start()
        time.sleep(given.seconds)
        for _ in range(given.aborts):
            migrate("start", own, peer, kill_after_s=chance.uniform(0.5, 2.0))
            if own.ask("GET", f"namespaces/{NAMESPACE}/migration")["moved"]:
                break
            migrate("abort", own, peer)
        for _ in range(given.broker_kills):
            migrate("start", own, peer, kill_after_s=chance.uniform(0.5, 2.0))
            broker.kill()
            broker.start(port=broker.port, admin_port=broker.admin_port)
        for _ in range(given.kills):
            if migrate("start", own, peer, kill_after_s=chance.uniform(0.3, 4.0)):
                break
        for load in loads:
            load.reset()
        for java in javas:
            java.say("reset")
        migrate("start", own, peer)
        time.sleep(given.seconds)
        return finish(loads, javas, own, peer)


def finish(loads: list[Load], javas: list[JavaLoad], own: Cluster, peer: Cluster) -> int:
    """End the load, and print what came of it; returns the exit status."""
    for load in loads:
        load.enough.set()
    reports = [java.say("end") for java in javas]
    until = time.monotonic() + SETTLE_S + DELAY_MS / 1000
    while time.monotonic() < until and any(load.lost or len(load.stored) < load.sent for load in loads):
        time.sleep(0.2)
    time.sleep(5)
    for load in loads:
        load.over.set()
        for thread in load.threads:
            thread.join(SETTLE_S)
    migrate("finish", own, peer)
    for load in loads:
        pauses = ", ".join(f"{who} {pause:.2f} s" for who, pause in load.longest.items())
        sys.stdout.write(
            f"{load.kind}: {load.sent} sent, {load.lost} lost, {load.twice} twice; longest pause: {pauses}\n"
        )
    for java, report in zip(javas, reports, strict=True):
        sys.stdout.write(f"java {java.kind}: {report}\n")
        java.process.wait(SETTLE_S)
    return int(any(load.lost for load in loads) or any(" 0 lost" not in report for report in reports))


if __name__ == "__main__":
    sys.exit(main())

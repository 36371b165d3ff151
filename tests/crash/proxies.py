# SPDX-License-Identifier: Apache-2.0
"""Official clients that publish and consume through two proxies before several brokers, while those come and go.

Every topic is published to through one proxy and consumed through the other. In each round one thing happens: a broker
is killed, a topic is unloaded, a proxy is stopped and started again, or killed. At the end all that was published must
have been received, in the order of publishing, beside what came twice.

Topics of penstock brokers stay with their broker. With `--peer pulsar` the brokers are Apache Pulsar's, on one
ZooKeeper: they are also told to move topics to one another, and a broker that is killed loses its topics to the others.

    python tests/crash/proxies.py --rounds 20 [--brokers 2] [--topics 6] [--seed 1]
    python tests/crash/proxies.py --rounds 20 --peer pulsar [--load-manager extensible]
    python tests/crash/proxies.py --rounds 20 --peer pulsar --account

With `--account`, the proxies record usage, and one more topic is sent large messages in chunks. Proxies are stopped but
not killed, because what they have not recorded is lost then. At the end the records must agree with what is stored.

Ends with status 1 at the first violation.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.pulsar_cluster import CLUSTER as PULSAR_CLUSTER
from benchmarks.pulsar_cluster import LOAD_MANAGERS, PulsarCluster
from penstock.testing.process import ProxyProcess
from tests.crash.proxy_account import Published, Stored, check, recorded_by_proxies, stored_in
from tests.processes.cluster import Cluster, until
from tests.proxy.official import WITHIN_S, Publisher, Receiver, client_of

# Each proxy is told of one broker only: lookups name the others, but a proxy that was restarted knows only its own.
SETTINGS: Final = "brokerProxyAllowedIPAddresses=127.0.0.1\nbrokerProxyAllowedTargetPorts=*\n"
RECEIPTS: Final = 100
PAUSE_S: Final = 0.002
ASK_TIMEOUT_S: Final = 60
KILL_PROXY: Final = "kill proxy"
EVENTS: Final = ("kill broker", "unload", "restart proxy", KILL_PROXY)
# A proxy announces it, so that messages of three chunks are small.
RECORDING: Final = "usageRecordsEnabled=true\nusageRecordsIntervalInSeconds=1\nmaxMessageSize=1048576\n"
CHUNKED_BYTES: Final = 2_500_000
CHUNKED_PAUSE_S: Final = 1.0
FOR_EVER: Final = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
PULSAR: Final = "pulsar"
# Half of the events move topics to another broker.
PULSAR_EVENTS: Final = (*EVENTS, *["move"] * len(EVENTS))


class Story:
    """Brokers, proxies and clients of one run."""

    def __init__(self, stack: ExitStack, scratch: Path, options: argparse.Namespace) -> None:
        self.rng = random.Random(options.seed)
        self.is_pulsar = options.peer == PULSAR
        self.cluster: Cluster | PulsarCluster
        if self.is_pulsar:
            self.cluster = stack.enter_context(PulsarCluster(scratch / "data", options.brokers, options.load_manager))
        else:
            self.cluster = stack.enter_context(Cluster(scratch / "data", options.brokers))
        self.http = stack.enter_context(httpx.Client(trust_env=False, timeout=ASK_TIMEOUT_S, follow_redirects=True))
        self.scratch = scratch
        self.accounts = options.account
        if self.accounts:
            self._prepare_records()
        self.proxies = [stack.enter_context(self._proxy(number, options.brokers)) for number in range(2)]
        clients = [client_of(proxy.url) for proxy in self.proxies]
        for client in clients:
            stack.callback(client.close)
        self.topics = [f"persistent://public/default/moving-{number}" for number in range(options.topics)]
        self.receivers = [Receiver(clients[1 - number % 2], topic) for number, topic in enumerate(self.topics)]
        self.publishers = [
            Publisher(clients[number % 2], topic, pause_s=PAUSE_S) for number, topic in enumerate(self.topics)
        ]
        self.chunked = [
            Publisher(client, f"{self.topics[0]}-chunked", pause_s=CHUNKED_PAUSE_S, message_bytes=CHUNKED_BYTES)
            for client in clients[: int(self.accounts)]
        ]
        self.moves = 0
        self.owners = self._owners()

    def _proxy(self, number: int, brokers: int) -> ProxyProcess:
        config = self.scratch / f"proxy-{number}.conf"
        config.write_text(SETTINGS + (f"{RECORDING}proxyName=front-{number}\n" if self.accounts else ""))
        log = self.scratch / f"proxy-{number}.log"
        return ProxyProcess(self.cluster.url_of(number % brokers), ["--config", str(config)], log_path=log)

    def _prepare_records(self) -> None:
        """Keep all messages, and create the namespace of the proxies' records, which penstock has."""
        wanted: list[tuple[str, str, object]] = [("POST", "namespaces/public/default/retention", FOR_EVER)]
        if isinstance(self.cluster, PulsarCluster):
            wanted += [
                ("PUT", "tenants/pulsar", {"allowedClusters": [PULSAR_CLUSTER]}),
                ("PUT", "namespaces/pulsar/system", {}),
                ("POST", "namespaces/pulsar/system/retention", FOR_EVER),
            ]
        for method, path, value in wanted:
            answer = self.http.request(method, f"{self.cluster.admin_urls[0]}/admin/v2/{path}", json=value)
            assert answer.is_success or answer.status_code == httpx.codes.CONFLICT, f"{path}: {answer.text}"

    def progress(self) -> None:
        """Wait until all topics have receipts again, and count those that have another broker than before."""
        for publisher in self.publishers:
            publisher.wait_for_more(RECEIPTS)
        owners = self._owners()
        self.moves += sum(old != new for old, new in zip(self.owners, owners, strict=True))
        self.owners = owners

    def _owners(self) -> list[str]:
        """The brokers of all topics; of penstock's, which never change, nothing is asked."""
        if not isinstance(self.cluster, PulsarCluster):
            return []
        self.cluster.wait()
        return [self.owner(topic) for topic in self.topics]

    def owner(self, topic: str) -> str:
        """The service URL of the broker that serves a topic, as the brokers say."""
        answer = self.http.get(f"{self.cluster.admin_urls[0]}/lookup/v2/topic/{topic.replace('://', '/')}")
        return str(answer.raise_for_status().json()["brokerUrl"])

    def move(self, topic: str) -> None:
        """Unload the topics of one's bundle to another broker, again until that has them.

        A client that looks its topic up in the middle of it may bring all of them back.
        """
        path, admin_url = topic.replace("://", "/"), self.cluster.admin_urls[0]
        owner = self.owner(topic)
        target = self.rng.choice([one for one in range(self.cluster.brokers) if self.cluster.url_of(one) != owner])
        bundle = self.http.get(f"{admin_url}/lookup/v2/topic/{path}/bundle").raise_for_status().text
        url = f"{admin_url}/admin/v2/namespaces/public/default/{bundle}/unload"
        destination = self.cluster.admin_urls[target].removeprefix("http://")

        def is_moved() -> bool:
            self.http.put(url, params={"destinationBroker": destination}).raise_for_status()
            return self.owner(topic) == self.cluster.url_of(target)

        until(is_moved, WITHIN_S)

    def happen(self) -> str:
        """Do one of the events."""
        events = PULSAR_EVENTS if self.is_pulsar else EVENTS
        event = self.rng.choice([one for one in events if not (self.accounts and one == KILL_PROXY)])
        proxy = self.rng.choice(self.proxies)
        if event == "kill broker":
            self.cluster.kill_broker(self.rng.randrange(self.cluster.brokers))
        elif event == "unload":
            path = self.rng.choice(self.topics).replace("://", "/")
            self.http.put(f"{self.rng.choice(self.cluster.admin_urls)}/admin/v2/{path}/unload").raise_for_status()
        elif event == "move":
            self.move(self.rng.choice(self.topics))
        else:
            port, admin_port = proxy.port, proxy.admin_port
            if event == KILL_PROXY:
                proxy.kill()
            else:
                status = proxy.stop()
                assert status == 0, f"a proxy that was stopped ended with {status}"
            proxy.start(port=port, admin_port=admin_port)
        return event

    def check(self) -> tuple[int, int]:
        """Check all topics; returns how many messages there were, and how many came again."""
        for publisher in (*self.publishers, *self.chunked):
            publisher.stop()
        for publisher, receiver in zip(self.publishers, self.receivers, strict=True):
            receiver.check(publisher.sent)
        return sum(one.sent for one in self.publishers), sum(one.again for one in self.receivers)

    def account(self) -> tuple[Published, Stored]:
        """Stop the proxies, and compare what they have recorded with what is stored; returns both."""
        for proxy in self.proxies:
            assert proxy.stop() == 0
        if isinstance(self.cluster, PulsarCluster):
            self.cluster.wait()
        recorded = recorded_by_proxies(self.cluster.url_of(0), self.scratch / "tables")
        topics = [one.topic for one in (*self.publishers, *self.chunked)]
        return check(recorded, [(topic, stored_in(self.owner(topic), topic)) for topic in topics])


def main() -> int:
    """Run the rounds; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peer", choices=[PULSAR], help="put Apache Pulsar brokers behind the proxies")
    parser.add_argument("--load-manager", choices=LOAD_MANAGERS, default="modular", help="of the Apache Pulsar brokers")
    parser.add_argument("--brokers", type=int, default=2)
    parser.add_argument("--topics", type=int, default=6)
    parser.add_argument("--account", action="store_true", help="compare the proxies' usage records with what is stored")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    events: Counter[str] = Counter()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="proxies-")))
        story = Story(stack, scratch, options)
        try:
            for number in range(options.rounds):
                story.progress()
                event = story.happen()
                events[event] += 1
                print(f"round {number + 1}/{options.rounds}: {event}", file=sys.stderr)
            story.progress()
            sent, again = story.check()
            moves = story.moves
            accounted = story.account() if options.account else None
        except AssertionError as violation:
            print(f"--seed {options.seed}: {violation}", file=sys.stderr)
            return 1
    said = ", ".join(f"{count} × {event}" for event, count in sorted(events.items()))
    print(f"{said}, seed {options.seed}: {sent} messages on {options.topics} topics through two proxies, "
          f"{moves} × a topic came to another broker, 0 lost, 0 out of order, {again} received again")  # fmt: skip
    if accounted is not None:
        recorded, (stored, stored_again) = accounted
        print(f"recorded {recorded.bytes:,} bytes in {recorded.entries:,} entries, stored {stored.bytes:,} "
              f"in {stored.entries:,}, of which {stored_again.bytes:,} in {stored_again.entries:,} again")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Official clients that publish and consume through two proxies before several brokers, while those come and go.

Every topic is published to through one proxy and consumed through the other. In each round one thing happens: a broker
is killed, a topic is unloaded, a proxy is stopped and started again, or killed. At the end all that was published must
have been received, in the order of publishing, beside what came twice.

    python tests/crash/proxies.py --rounds 20 [--brokers 2] [--topics 6] [--seed 1]

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

from penstock.testing.process import ProxyProcess
from tests.processes.cluster import Cluster
from tests.proxy.official import Publisher, Receiver, client_of

# Each proxy is told of one broker only: lookups name the others, but a proxy that was restarted knows only its own.
SETTINGS: Final = "brokerProxyAllowedIPAddresses=127.0.0.1\nbrokerProxyAllowedTargetPorts=*\n"
RECEIPTS: Final = 100
PAUSE_S: Final = 0.002
EVENTS: Final = ("kill broker", "unload", "restart proxy", "kill proxy")


class Story:
    """Brokers, proxies and clients of one run."""

    def __init__(self, stack: ExitStack, scratch: Path, options: argparse.Namespace) -> None:
        self.rng = random.Random(options.seed)
        self.cluster = stack.enter_context(Cluster(scratch / "data", options.brokers))
        config = scratch / "proxy.conf"
        config.write_text(SETTINGS)
        self.proxies = [
            stack.enter_context(
                ProxyProcess(
                    self.cluster.url_of(number % options.brokers),
                    ["--config", str(config)],
                    log_path=scratch / f"proxy-{number}.log",
                )
            )
            for number in range(2)
        ]
        clients = [client_of(proxy.url) for proxy in self.proxies]
        for client in clients:
            stack.callback(client.close)
        self.topics = [f"persistent://public/default/moving-{number}" for number in range(options.topics)]
        self.receivers = [Receiver(clients[1 - number % 2], topic) for number, topic in enumerate(self.topics)]
        self.publishers = [
            Publisher(clients[number % 2], topic, pause_s=PAUSE_S) for number, topic in enumerate(self.topics)
        ]

    def progress(self) -> None:
        """Wait until all topics have receipts again."""
        for publisher in self.publishers:
            publisher.wait_for_more(RECEIPTS)

    def happen(self) -> str:
        """Do one of `EVENTS`."""
        event = self.rng.choice(EVENTS)
        proxy = self.rng.choice(self.proxies)
        if event == "kill broker":
            self.cluster.kill_broker(self.rng.randrange(self.cluster.brokers))
        elif event == "unload":
            path = self.rng.choice(self.topics).replace("://", "/")
            url = f"{self.rng.choice(self.cluster.admin_urls)}/admin/v2/{path}/unload"
            httpx.put(url, trust_env=False, timeout=60).raise_for_status()
        else:
            port, admin_port = proxy.port, proxy.admin_port
            if event == "kill proxy":
                proxy.kill()
            else:
                status = proxy.stop()
                assert status == 0, f"a proxy that was stopped ended with {status}"
            proxy.start(port=port, admin_port=admin_port)
        return event

    def check(self) -> tuple[int, int]:
        """Check all topics; returns how many messages there were, and how many came again."""
        for publisher in self.publishers:
            publisher.stop()
        for publisher, receiver in zip(self.publishers, self.receivers, strict=True):
            receiver.check(publisher.sent)
        return sum(one.sent for one in self.publishers), sum(one.again for one in self.receivers)


def main() -> int:
    """Run the rounds; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--brokers", type=int, default=2)
    parser.add_argument("--topics", type=int, default=6)
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
        except AssertionError as violation:
            print(f"--seed {options.seed}: {violation}", file=sys.stderr)
            return 1
    said = ", ".join(f"{events[event]} × {event}" for event in EVENTS)
    print(f"{said}, seed {options.seed}: {sent} messages on {options.topics} topics through two proxies, 0 lost, "
          f"0 out of order, {again} received again")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())

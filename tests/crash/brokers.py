# SPDX-License-Identifier: Apache-2.0
"""kill -9 of one of several brokers in the middle of publishing and acknowledging, then of all of them.

Every round: start the brokers, publish and acknowledge on topics of each, kill one, and look while the others go on:
- its topics take messages again within the time that clients are promised;
- every entry with a receipt is there, whole and in order, and no cursor went back behind what was confirmed;
- publishers of the other brokers got receipts all the time.
Then the supervisor is killed, and with it all brokers, and after a start all topics are checked in the same way.

    python tests/crash/brokers.py --rounds 20 [--brokers 3] [--seed 1]

Ends with status 1 at the first violation, naming the round and the seed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from penstock.testing.client import RawClient

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.crash.administered import Violation
from tests.crash.run import (
    Topic,
    acknowledge_until_killed,
    check_cursor,
    check_entries,
    keep_everything,
    publish_until_killed,
)
from tests.processes.cluster import Cluster, is_running, until

TOPICS_EACH = 2
# How long a killed broker may take until its topics take messages again. On a machine that is not busy, two seconds.
BACK_WITHIN_S = 20.0


class Round:
    """One start of the cluster, under load."""

    def __init__(self, cluster: Cluster, number: int, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.topics: dict[int, list[Topic]] = {broker: [] for broker in range(cluster.brokers)}
        names = (f"persistent://public/default/crash-{number}-{index}" for index in range(1000))
        while any(len(those) < TOPICS_EACH for those in self.topics.values()):
            name = next(names)
            status, answer = cluster.http(0, "PUT", f"/admin/v2/{name.replace('://', '/')}")
            assert status == 204, answer
            self.topics[cluster.owner(name)].append(Topic(name))
        self.workers: list[threading.Thread] = []

    def load(self) -> None:
        for broker, topics in self.topics.items():
            for topic in topics:
                keep_everything(self.port_of(broker), topic)
                for work in (publish_until_killed, acknowledge_until_killed):
                    chance = random.Random(self.rng.random())
                    worker = threading.Thread(target=work, args=(self.port_of(broker), topic, chance))
                    worker.start()
                    self.workers.append(worker)

    def port_of(self, broker: int) -> int:
        return self.cluster.port + broker

    def kill_one(self) -> float:
        """Kill a broker and check its topics; returns after how many seconds they took messages again."""
        time.sleep(self.rng.uniform(0.1, 0.8))
        victim = self.rng.randrange(self.cluster.brokers)
        others = [topic for broker, topics in self.topics.items() if broker != victim for topic in topics]
        self.cluster.kill_broker(victim)
        killed_at = time.monotonic()
        before = [len(topic.receipts) for topic in others]
        with RawClient(self.port_of(victim)) as client:  # Waits until the broker accepts.
            client.produce(f"{self.topics[victim][0].name}-back")
        back_s = time.monotonic() - killed_at
        if back_s > BACK_WITHIN_S:
            raise Violation(f"broker {victim} was back after {back_s:.1f} s")
        for topic, receipts in zip(others, before, strict=True):
            if len(topic.receipts) <= receipts:
                raise Violation(f"{topic.name}: no receipt in {back_s:.1f} s, though its broker was not killed")
        for topic in self.topics[victim]:
            check_entries(self.port_of(victim), topic)
            check_cursor(self.port_of(victim), topic, killed_at)
        return back_s

    def kill_all(self) -> float:
        """Kill the supervisor; returns when. All brokers end with it."""
        pids = self.cluster.pids().values()
        self.cluster.kill()
        killed_at = time.monotonic()
        until(lambda: not any(map(is_running, pids)))
        for worker in self.workers:
            worker.join()
        return killed_at

    def check_all(self, killed_at: float) -> int:
        """Check all topics; returns how many receipts there were."""
        for broker, topics in self.topics.items():
            for topic in topics:
                check_entries(self.port_of(broker), topic)
                check_cursor(self.port_of(broker), topic, killed_at)
        return sum(len(topic.receipts) for topics in self.topics.values() for topic in topics)


def main() -> int:
    """Run the rounds; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    receipts, back_s = 0, []
    with tempfile.TemporaryDirectory() as scratch:
        cluster = Cluster(Path(scratch) / "data", arguments.brokers)
        for number in range(arguments.rounds):
            cluster.start()
            try:
                story = Round(cluster, number, rng)
                story.load()
                back_s.append(story.kill_one())
                killed_at = story.kill_all()
                cluster.start()
                receipts += story.check_all(killed_at)
            except Violation as violation:
                print(f"round {number}, --seed {arguments.seed}: {violation}", file=sys.stderr)
                return 1
            finally:
                cluster.kill()
            print(f"round {number + 1}/{arguments.rounds}: {receipts} receipts checked", file=sys.stderr)
    print(
        f"{arguments.rounds} kills of one of {arguments.brokers} brokers, then of all, seed {arguments.seed}: "
        f"{receipts} acknowledged entries checked, 0 lost, 0 out of order, no cursor behind what was confirmed; "
        f"the topics of a killed broker were back after {min(back_s):.1f} to {max(back_s):.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

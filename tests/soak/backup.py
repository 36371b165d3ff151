# SPDX-License-Identifier: Apache-2.0
"""Backups of a broker that is published to at 20,000 messages a second, each restored elsewhere and read to its end.

    python -m tests.soak.backup --backups 5 --rate 20000

Why by hand: it needs the processors for itself to reach the rate. `tests/cli/test_backup.py` does the same once, with
fewer messages. It fails if a message that was acknowledged before a backup began is not in it, if one is there twice or
out of order, if a subscription stands before what its broker had confirmed before the backup began, or if nine tenths
of the rate are not reached. Prints what each backup took, and what it had.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import pulsar

from penstock.cli.contexts import Target
from penstock.cli.feeds import connected as connected_raw
from penstock.cli.feeds import subscription_body
from penstock.spark.client.producer import Producer
from penstock.spark.client.subscription import Subscription
from penstock.testing.process import BrokerProcess
from penstock.wire.client.events import Message as Entry
from penstock.wire.codec import SingleMessageMetadata

if TYPE_CHECKING:
    from types import TracebackType

TOPICS: Final = tuple(f"persistent://public/default/backed-up-{number}" for number in range(4))
MESSAGE_BYTES: Final = 100
# The subscription that follows the first topic while it is published to.
FOLLOWING: Final = "follows"
WAIT_MS: Final = 60_000
# Publishers look so often at how many messages are due, and send so many at once.
_TURN_S: Final = 0.01
_BATCH_MAX: Final = 5_000
# Of each message in a batch: its metadata with their size before, which are always the same, and its end.
_SAID: Final = SingleMessageMetadata(payload_size=MESSAGE_BYTES).SerializeToString()
_PREFIX: Final = len(_SAID).to_bytes(4, "big") + _SAID
_REST: Final = bytes(MESSAGE_BYTES - 8)
_ACKNOWLEDGE_EVERY: Final = 20
_WINDOW: Final = 1_000
_EXCLUSIVE: Final = 0


def connected(url: str) -> pulsar.Client:
    """Connect an official client that says only what is wrong."""
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


class Load:
    """Publishes numbered messages to all topics, and consumes those of the first one; knows what was answered."""

    def __init__(self, url: str, rate: int) -> None:
        self.acknowledged = dict.fromkeys(TOPICS, 0)  # messages with a receipt
        self.mark = -1  # entry of the first topic up to which the broker has confirmed acknowledgements
        self._target = Target(url=url, admin_url="")
        self._rate = rate / len(TOPICS)
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._publish, args=(topic,)) for topic in TOPICS]
        self._threads.append(threading.Thread(target=self._consume))

    def _publish(self, topic: str) -> None:
        sent, began_s = 0, time.monotonic()
        with connected_raw(self._target, wait_s=WAIT_MS / 1_000) as cluster, Producer(cluster, topic) as producer:
            while not self._stopping.wait(_TURN_S):
                due = min(round((time.monotonic() - began_s) * self._rate), sent + _BATCH_MAX)
                if due > sent:
                    batch = b"".join(_PREFIX + b"%08d" % number + _REST for number in range(sent, due))
                    producer.send_batch(batch, due - sent, sent)
                    producer.flush()  # returns when the broker has stored it
                    self.acknowledged[topic] = sent = due

    def _consume(self) -> None:
        """Acknowledge with receipts: without, an acknowledgement may be lost with its broker, and with a backup."""
        following = subscription_body(TOPICS[0], FOLLOWING, _EXCLUSIVE, earliest=True)
        with (
            connected_raw(self._target, wait_s=WAIT_MS / 1_000) as cluster,
            Subscription(cluster, following, f"following {TOPICS[0]}") as subscription,
        ):
            subscription.refill(_WINDOW)
            connection, consumer = subscription.connection, subscription.consumer
            count = 0
            while not self._stopping.is_set():
                event = connection.next_event(_TURN_S)
                if not isinstance(event, Entry):
                    continue
                connection.flow(consumer)
                count += 1
                if count % _ACKNOWLEDGE_EVERY == 0:
                    connection.acknowledge(consumer, event.position, f"acknowledging messages of {TOPICS[0]}")
                    self.mark = event.position.entry_id

    def __enter__(self) -> Self:
        for one in self._threads:
            one.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for one in self._threads:
            one.join()


class Taken(NamedTuple):
    """A backup, and what was acknowledged when it began."""

    path: Path
    acknowledged: dict[str, int]
    mark: int  # entry up to which acknowledgements were confirmed
    took_s: float


def number_of(message: pulsar.Message) -> int:
    """Return the number of a message: that of the first one of a topic is 0."""
    return int(message.data()[:8])


def run(*arguments: str) -> str:
    """Run a command of penstock, and return what it printed."""
    done = subprocess.run([sys.executable, "-m", "penstock", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def mark_of(broker: BrokerProcess) -> int:
    """Return the entry up to which the subscription has acknowledged, as its broker says."""
    path = TOPICS[0].replace("://", "/")
    with urllib.request.urlopen(f"{broker.admin_url}/admin/v2/{path}/internalStats", timeout=60) as answer:
        stats = json.load(answer)
    return int(stats["cursors"][FOLLOWING]["markDeletePosition"].partition(":")[2])


def take(broker: BrokerProcess, load: Load, path: Path, previous: Path | None) -> Taken:
    """Take one backup."""
    acknowledged, mark, began_s = dict(load.acknowledged), load.mark, time.monotonic()
    more = ("--previous", str(previous)) if previous is not None else ()
    print(run("backup", str(broker.data_dir), str(path), "--admin-url", broker.admin_url, *more), end="")
    return Taken(path, acknowledged, mark, time.monotonic() - began_s)


def faults(taken: Taken, settings: Path) -> list[str]:
    """Restore a backup and read it, and return what is wrong with it."""
    found = []
    restored = taken.path.with_name(f"{taken.path.name}-restored")
    run("restore", str(taken.path), str(restored))
    with BrokerProcess(restored, ["--config", str(settings)]) as broker:
        client = connected(broker.url)
        try:
            for topic in TOPICS:
                numbers = read(client, topic)
                if numbers != list(range(len(numbers))):
                    found.append(f"{topic}: not every message once, in order")
                if len(numbers) < taken.acknowledged[topic]:
                    found.append(f"{topic}: {len(numbers)} of {taken.acknowledged[topic]} acknowledged messages")
                print(
                    f"  {topic.rpartition('/')[2]}: {taken.acknowledged[topic]:,} acknowledged, {len(numbers):,} there"
                )
        finally:
            client.close()
        if (mark := mark_of(broker)) < taken.mark:
            found.append(f"{FOLLOWING}: it stands at entry {mark}, and stood at {taken.mark} before the backup")
        print(f"  {FOLLOWING}: it stood at entry {taken.mark:,}, and stands at {mark:,}")
    return found


def read(client: pulsar.Client, topic: str) -> list[int]:
    """Return the numbers of a topic's messages."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=10_000)
    found = []
    while reader.has_message_available():
        found.append(number_of(reader.read_next(timeout_millis=WAIT_MS)))
    reader.close()
    return found


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backups", type=int, default=5)
    parser.add_argument("--rate", type=int, default=20_000, help="messages a second, of all topics")
    parser.add_argument("--seconds", type=float, default=10.0, help="between backups")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-backup-") as name:
        scratch = Path(name)
        settings = scratch / "broker.conf"  # What was consumed stays, so that it can be counted.
        settings.write_text("defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n", encoding="utf-8")
        with (
            BrokerProcess(scratch / "data", ["--config", str(settings)]) as broker,
            Load(broker.url, given.rate) as load,
        ):
            began_s = time.monotonic()
            taken: list[Taken] = []
            for number in range(given.backups):
                time.sleep(given.seconds)
                previous = taken[-1].path if taken else None
                taken.append(take(broker, load, scratch / f"backup-{number}", previous))
            rate = sum(load.acknowledged.values()) / (time.monotonic() - began_s)
        wrong = []
        for one in taken:
            print(f"{one.path.name}: {one.took_s:.1f} s")
            wrong += faults(one, settings)
    print(f"{rate:,.0f} messages a second were acknowledged, {given.rate:,} were due")
    if rate < given.rate * 0.9:
        wrong.append("the rate was not reached: nothing is shown")
    print("\n".join(wrong) or f"nothing that was acknowledged before is missing from {len(taken)} backups")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

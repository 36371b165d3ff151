# SPDX-License-Identifier: Apache-2.0
"""`penstock mirror` of a cluster, killed again and again; then every message is compared with its original.

    python -m tests.soak.mirror [--apache] [--messages 100000] [--kills 5]

Why by hand: `--apache` copies from Apache Pulsar, which a test cannot start in little time. Otherwise it is a penstock.
It fails if a message is missing, there twice, or not as it was.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pulsar
from pulsar.schema import JsonSchema, Record, String

from benchmarks.pulsar_peer import PulsarProcess, resolve
from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMESPACE: Final = "public/default"
TOPICS: Final = [f"persistent://{NAMESPACE}/mirrored-{number}" for number in range(4)]
WAIT_MS: Final = 60_000


class Order(Record):  # type: ignore[misc]
    """What is sent."""

    name = String()


class Seen(NamedTuple):
    """A message without its id."""

    data: bytes
    key: str
    ordering_key: str
    properties: dict[str, str]
    event_ms: int
    published_ms: int


def publish(client: pulsar.Client, topic: str, messages: int) -> None:
    """Publish with a schema, in compressed batches and with keys and times."""
    producer = client.create_producer(
        topic, schema=JsonSchema(Order), batching_enabled=True, compression_type=pulsar.CompressionType.ZSTD,
        block_if_queue_full=True,
    )  # fmt: skip
    for number in range(messages):
        producer.send_async(
            Order(name=f"{number}" * 10), lambda _result, _id: None, partition_key=f"k{number % 7}",
            ordering_key=f"o{number}", properties={"n": str(number)}, event_timestamp=number + 1,
        )  # fmt: skip
    producer.flush()
    producer.close()


def messages(url: str, topic: str, count: int) -> Iterator[Seen]:
    """Yield the messages of a topic, and those that are too many."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=JsonSchema(Order))
    found = 0
    try:
        while True:
            one = reader.read_next(WAIT_MS if found < count else 2_000)
            found += 1
            yield Seen(
                one.data(), one.partition_key(), one.ordering_key(), one.properties(), one.event_timestamp(),
                one.publish_timestamp(),
            )  # fmt: skip
    except pulsar.Timeout:
        return
    finally:
        client.close()


def mirror(source: str, home: Path, rate: str) -> tuple[subprocess.Popen[str], str]:
    """Start a mirror; returns it and where it serves."""
    command = [sys.executable, "-u", "-m", "penstock", "mirror", "--from", source, "--data-dir", str(home)]
    process = subprocess.Popen([*command, NAMESPACE, "--rate", rate, "--follow"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().split()[2]


def wait_until_complete(process: subprocess.Popen[str]) -> str:
    """Return what it says when all is copied."""
    assert process.stdout is not None
    for line in process.stdout:
        if "the copy is complete" in line:
            # Later lines must not fill the pipe.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return line
    raise RuntimeError("the mirror has ended")


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apache", action="store_true", help="copy from Apache Pulsar")
    parser.add_argument("--messages", type=int, default=100_000, help="of all topics together")
    parser.add_argument("--kills", type=int, default=5, help="of the mirror while it copies")
    parser.add_argument("--rate", default="1MB/s", help="while it is killed")
    given = parser.parse_args()
    chance, each = random.Random(7), given.messages // len(TOPICS)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if given.apache:
            resolve()
        source: BrokerProcess | PulsarProcess = PulsarProcess(home / "s") if given.apache else BrokerProcess(home / "s")
        stack.enter_context(source)
        client = pulsar.Client(source.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        stack.callback(client.close)
        for topic in TOPICS:
            publish(client, topic, each)
        for _ in range(given.kills):
            process, _ = mirror(source.url, home / "copy", given.rate)
            time.sleep(chance.uniform(0.5, 3))
            process.kill()
            process.communicate()
        began_s = time.monotonic()
        process, url = mirror(source.url, home / "copy", "0")
        stack.callback(process.communicate)
        stack.callback(process.send_signal, signal.SIGTERM)
        sys.stdout.write(wait_until_complete(process))
        sys.stdout.write(f"the last start copied that in {time.monotonic() - began_s:.1f} s\n")
        wrong = 0
        for topic in TOPICS:
            here, there = list(messages(url, topic, each)), list(messages(source.url, topic, each))
            wrong += here != there
            sys.stdout.write(f"{topic}: {len(here)} of {len(there)} messages, the same: {here == there}\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

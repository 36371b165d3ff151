# SPDX-License-Identifier: Apache-2.0
"""What is killed beside publishing and acknowledging: topics that deduplicate, are compacted, and are deleted.

Where: the crash loop runs this in every other round, because the admin port takes a second to come up. What must hold:
- A producer that sends again whatever was not answered leaves each message once, in order, where topics deduplicate.
- A compacted topic ends, key by key, with the same messages as the topic itself.
- A topic whose deletion was answered is gone; one that was not to be deleted has everything, and nothing of the topic
  that had its name before.
"""

from __future__ import annotations

import json
import random
import struct
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.checksum import seal
from penstock.core.errors import WireCode
from penstock.testing.client import RawClient, Refused, Type, send
from penstock.wire.pulsar_pb2 import MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.testing.process import BrokerProcess

NAMESPACE = "public/once"
KEYS = 20
WINDOW = 100
CHURNED = 3
HTTP_S = 30.0


class Violation(AssertionError):
    """The broker broke a promise."""


class Ended(OSError):
    """The broker is not there any more."""


def ask(broker: BrokerProcess, method: str, path: str, body: object = None) -> int:
    """One request to the admin port; the status of its answer. Raises Ended."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{broker.admin_url}/admin/v2/{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=HTTP_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        raise Ended(str(error)) from error


def prepare(broker: BrokerProcess) -> None:
    """Make the namespace in which topics deduplicate."""
    for method, path, body in (
        ("PUT", f"namespaces/{NAMESPACE}", {}),
        ("POST", f"namespaces/{NAMESPACE}/deduplication", True),
    ):
        status = ask(broker, method, path, body)
        if status >= 300 and status != 409:  # It is there since an earlier round.
            raise Violation(f"{method} {path} was answered with {status}")


def keyed(sequence_id: int, rng: random.Random) -> bytes:
    """A SEND whose message has one of a few keys."""
    metadata = MessageMetadata(
        producer_name="p", sequence_id=sequence_id, publish_time=1, partition_key=f"k{rng.randrange(KEYS)}"
    ).SerializeToString()
    payload = b"%d:" % sequence_id + rng.randbytes(rng.choice((10, 200, 5_000)))
    return send(0, sequence_id, seal(struct.pack(">I", len(metadata)) + metadata + payload))


def key_of(entry: bytes) -> str:
    """The key of a stored message."""
    (metadata_bytes,) = struct.unpack_from(">I", entry, 6)
    return MessageMetadata.FromString(entry[10 : 10 + metadata_bytes]).partition_key


@dataclass
class Once:
    """A topic that deduplicates and is compacted, as seen from outside."""

    name: str
    next: int = 0
    unanswered: dict[int, bytes] = field(default_factory=dict)
    compactions: int = 0

    @property
    def path(self) -> str:
        """Of the admin port."""
        return self.name.replace("://", "/")

    def publish(self, broker: BrokerProcess, rng: random.Random) -> None:
        """Send again what was not answered, then go on, until the connection breaks."""
        try:
            with RawClient(broker.port) as client:
                client.produce(self.name, producer_name="p")
                client.write(b"".join(self.unanswered.values()))
                while True:
                    burst = []
                    while len(self.unanswered) < WINDOW:
                        self.unanswered[self.next] = keyed(self.next, rng)
                        burst.append(self.unanswered[self.next])
                        self.next += 1
                    client.write(b"".join(burst))
                    self._take_answers(client, WINDOW // 2)
        except OSError:
            pass

    def _take_answers(self, client: RawClient, left: int) -> None:
        while len(self.unanswered) > left:
            self.unanswered.pop(client.next(Type.SEND_RECEIPT).command.send_receipt.sequence_id, None)

    def compact(self, broker: BrokerProcess, started: threading.Event) -> None:
        """Compact again and again, until the broker is gone."""
        try:
            while True:
                self.compactions += ask(broker, "PUT", f"{self.path}/compaction") < 300
                started.set()
        except Ended:
            started.set()

    def check(self, broker: BrokerProcess) -> None:
        """Raises Violation."""
        with RawClient(broker.port) as client:
            client.produce(self.name, producer_name="p")
            client.write(b"".join(self.unanswered.values()))
            self._take_answers(client, 0)
        if not self.next:
            return
        latest: dict[str, int] = {}
        with RawClient(broker.port) as client:
            client.subscribe(self.name, "check", permits=10_000_000)
            for expected in range(self.next):
                came = client.message()
                sequence_id = int(came.payload.partition(b":")[0])
                if sequence_id != expected:
                    raise Violation(f"{self.name}: sequence {sequence_id} is where {expected} should be")
                latest[key_of(came.entry)] = sequence_id
        seen: dict[str, int] = {}
        with RawClient(broker.port) as client:
            client.subscribe(self.name, "reader", durable=False, read_compacted=True, permits=10_000_000)
            while self.next - 1 not in seen.values():
                came = client.message()
                seen[key_of(came.entry)] = int(came.payload.partition(b":")[0])
        if seen != latest:
            raise Violation(f"{self.name}: compacted it ends with {seen}, in full with {latest}")


@dataclass
class Churned:
    """A name under which topics are made and deleted, in turns."""

    name: str
    incarnation: int = 0
    receipts: int = 0  # of the topic that has the name now
    there: bool | None = False  # None: that it is made or deleted was asked for, and not answered

    @property
    def path(self) -> str:
        """Of the admin port."""
        return self.name.replace("://", "/")

    def churn(self, broker: BrokerProcess, rng: random.Random) -> None:
        """Make, fill and delete it, until the broker is gone."""
        try:
            while True:
                if not self.there:
                    self.incarnation, self.receipts, self.there = self.incarnation + 1, 0, None
                with RawClient(broker.port) as client:
                    client.produce(self.name, producer_name="p")
                    self.there = True
                    for _ in range(rng.randrange(1, 20)):
                        client.publish([b"%d:" % self.incarnation], first=self.receipts)
                        self.receipts += 1
                self.there = None
                status = ask(broker, "DELETE", f"{self.path}?force=true")
                if status >= 300:
                    raise Violation(f"deleting {self.name} was answered with {status}")
                self.there = False
        except OSError:
            pass

    def check(self, broker: BrokerProcess) -> None:
        """Raises Violation."""
        with RawClient(broker.port) as client:
            try:
                client.subscribe(self.name, "reader", durable=False, force_topic_creation=False)
            except Refused as refused:
                if refused.code != WireCode.TOPIC_NOT_FOUND or self.there:
                    raise Violation(f"{self.name}: {refused}") from None
                self.there = False
                return
            if self.there is False and self.incarnation:
                raise Violation(f"{self.name} is there, though its deletion was answered")
            for index in range(self.receipts):
                incarnation = int(client.message().payload.partition(b":")[0])
                if incarnation != self.incarnation:
                    raise Violation(f"{self.name}: message {index} is of topic {incarnation}, not {self.incarnation}")
            self.there = True


class Administered:
    """All of these together, for one round of the crash loop or more."""

    def __init__(self, number: int) -> None:
        self._begun = False
        self._faults: list[BaseException] = []
        self.once = Once(f"persistent://{NAMESPACE}/once-{number}")
        self.churned = [Churned(f"persistent://{NAMESPACE}/churned-{number}-{i}") for i in range(CHURNED)]

    def begin(self, broker: BrokerProcess, rng: random.Random) -> list[threading.Thread]:
        """Start the work; returns, once the admin port is up, who will end with the broker."""
        if not self._begun:
            prepare(broker)
            self._begun = True
        with RawClient(broker.port) as client:
            client.subscribe(self.once.name, "check", permits=0)
        started = threading.Event()

        def doing(work: Callable[..., None], *arguments: object) -> threading.Thread:
            return threading.Thread(target=self._caught, args=(partial(work, broker, *arguments),))

        threads = [
            doing(self.once.publish, random.Random(rng.random())),
            doing(self.once.compact, started),
            *(doing(one.churn, random.Random(rng.random())) for one in self.churned),
        ]
        for thread in threads:
            thread.start()
        started.wait()
        return threads

    def _caught(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (Violation, Refused) as error:
            self._faults.append(error)

    def check(self, broker: BrokerProcess) -> None:
        """Raises Violation."""
        if self._faults:
            raise Violation("; ".join(map(str, self._faults)))
        if not self._begun:
            return
        self.once.check(broker)
        for one in self.churned:
            one.check(broker)

# SPDX-License-Identifier: Apache-2.0
"""What the Python cases share: a client that is quiet, receiving, waiting, and the admin port."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, Self

import httpx
import pulsar
from pulsar.schema import Integer, Record, String

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

TIMEOUT_MS: Final = 10_000
TIMEOUT_S: Final = 30.0
# How long we look whether nothing comes, and between looks.
ABSENCE_MS: Final = 300
POLL_S: Final = 0.02
EARLIEST: Final = pulsar.InitialPosition.Earliest


class Small(Record):  # type: ignore[misc]  # the client has no types
    """A record of one field."""

    a = Integer(required=True)


class Larger(Record):  # type: ignore[misc]  # the client has no types
    """`Small` and a field that need not be there."""

    a = Integer(required=True)
    b = String(required_default=True)


def connect(url: str, **options: Any) -> pulsar.Client:  # noqa: ANN401 - as the client takes them
    """A client that keeps its log to itself."""
    return pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/null"), **options)


def unique(prefix: str) -> str:
    """A name that nothing has yet."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def numbered(count: int) -> list[bytes]:
    """So many payloads that sort as they were made."""
    return [b"%04d" % number for number in range(count)]


def publish(producer: pulsar.Producer, payloads: Iterable[bytes], **options: Any) -> None:  # noqa: ANN401
    """Send all without waiting for each, then wait for all."""
    for payload in payloads:
        producer.send_async(payload, None, **options)
    producer.flush()


def publish_keyed(producer: pulsar.Producer, count: int, *, keys: int) -> None:
    """Send so many numbers, each with one of so many keys in turn, then wait for all."""
    for number in range(count):
        producer.send_async(b"%d" % number, None, partition_key=f"key-{number % keys}")
    producer.flush()


def receive(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """The next so many payloads, acknowledged."""
    received = []
    for _ in range(count):
        message = consumer.receive(TIMEOUT_MS)
        consumer.acknowledge(message)
        received.append(message.data())
    return received


def read(reader: pulsar.Reader, count: int) -> list[bytes]:
    """The next so many payloads."""
    return [reader.read_next(TIMEOUT_MS).data() for _ in range(count)]


def read_to_the_end(reader: pulsar.Reader) -> list[pulsar.Message]:
    """What a reader gets as long as it says that there is more."""
    messages = []
    while reader.has_message_available():
        messages.append(reader.read_next(TIMEOUT_MS))
    return messages


def keep(client: pulsar.Client, topic: str) -> None:
    """Have a subscription hold what is published from now on: without one, a broker that restarts may drop it."""
    client.subscribe(topic, unique("keeps")).close()


def drain(consumers: Sequence[pulsar.Consumer], count: int) -> list[list[pulsar.Message]]:
    """Receive so many messages in all, whoever gets them, and acknowledge each; by consumer."""
    received: list[list[pulsar.Message]] = [[] for _ in consumers]
    deadline = time.monotonic() + TIMEOUT_S
    while sum(map(len, received)) < count and time.monotonic() < deadline:
        for consumer, own in zip(consumers, received, strict=True):
            with contextlib.suppress(pulsar.Timeout):
                while True:
                    message = consumer.receive(20)
                    consumer.acknowledge(message)
                    own.append(message)
    assert sum(map(len, received)) == count
    return received


def has_nothing(consumer: pulsar.Consumer) -> bool:
    """Whether nothing comes for a moment."""
    try:
        consumer.receive(ABSENCE_MS)
    except pulsar.Timeout:
        return True
    return False


def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain {what}"
        time.sleep(POLL_S)


def path_of(topic: str) -> str:
    """A topic's path on the admin port."""
    return topic.replace("://", "/")


class Admin:
    """The admin port: paths below `/admin/v2`, JSON both ways."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=f"{url}/admin/v2", trust_env=False, timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ask(self, method: str, path: str, body: object = None, **parameters: str) -> httpx.Response:
        """The answer, whatever it is."""
        # Pulsar wants the header where there is no body, too.
        headers = {"Content-Type": "application/json"}
        return self._http.request(method, f"/{path}", json=body, params=parameters, headers=headers)

    def refusal(self, method: str, path: str, body: object = None, **parameters: str) -> int:
        """The status of a request that must fail."""
        answer = self.ask(method, path, body, **parameters)
        assert answer.status_code >= 400, (method, path, answer.status_code)
        return answer.status_code

    def get(self, path: str, **parameters: str) -> Any:  # noqa: ANN401 - JSON
        """What is there."""
        return self._succeed("GET", path, None, parameters)

    def put(self, path: str, body: object = None, **parameters: str) -> Any:  # noqa: ANN401 - JSON
        """Make it."""
        return self._succeed("PUT", path, body, parameters)

    def post(self, path: str, body: object = None, **parameters: str) -> Any:  # noqa: ANN401 - JSON
        """Change it."""
        return self._succeed("POST", path, body, parameters)

    def delete(self, path: str, **parameters: str) -> Any:  # noqa: ANN401 - JSON
        """Remove it."""
        return self._succeed("DELETE", path, None, parameters)

    def _succeed(self, method: str, path: str, body: object, parameters: dict[str, str]) -> Any:  # noqa: ANN401
        answer = self.ask(method, path, body, **parameters)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        if not answer.content:
            return None
        is_json = "json" in answer.headers.get("Content-Type", "")
        return answer.json() if is_json else answer.text

    # -- what many cases need

    def create_partitioned(self, local: str, partitions: int, domain: str = "persistent") -> str:
        """A partitioned topic in `public/default`; its full name."""
        self.put(f"{domain}/public/default/{local}/partitions", partitions)
        return f"{domain}://public/default/{local}"

    def create_namespace(self, **policies: object) -> str:
        """A namespace of the tenant `public` with these policies, each by the name of its path."""
        namespace = f"public/{unique('ns')}"
        self.put(f"namespaces/{namespace}")
        for name, value in policies.items():
            self.post(f"namespaces/{namespace}/{name}", value)
        return namespace

    def subscription(self, topic: str, name: str) -> dict[str, Any]:
        """A subscription's statistics."""
        found: dict[str, Any] = self.get(f"{path_of(topic)}/stats")["subscriptions"][name]
        return found

    def backlog(self, topic: str, name: str) -> int:
        """How many messages a subscription has before it."""
        return int(self.subscription(topic, name)["msgBacklog"])

    def compact(self, topic: str) -> None:
        """Compact a topic and wait for the end of it."""
        path = f"{path_of(topic)}/compaction"
        self.put(path)
        until(lambda: self.get(path)["status"] != "RUNNING", "for compaction")
        assert self.get(path)["status"] == "SUCCESS", self.get(path)

# SPDX-License-Identifier: Apache-2.0
"""Official clients that publish and consume numbers without pause, while brokers and proxies are killed."""

from __future__ import annotations

import threading
import time
from typing import Final

import pulsar

WITHIN_S: Final = 90.0
PENDING_MAX: Final = 200
RECEIVE_MS: Final = 200


def client_of(url: str) -> pulsar.Client:
    """A client that says nothing of connections that it loses."""
    return pulsar.Client(
        url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"), operation_timeout_seconds=60
    )


class Publisher:
    """Publishes numbers, and counts receipts. Larger messages are padded with spaces, and sent in chunks."""

    def __init__(self, client: pulsar.Client, topic: str, *, pause_s: float = 0.0, message_bytes: int = 0) -> None:
        self.topic = topic
        self.sent = 0
        self.receipts = 0
        self.failed: list[pulsar.Result] = []
        self._pause_s = pause_s
        self._message_bytes = message_bytes
        self._producer = client.create_producer(
            topic,
            block_if_queue_full=True,
            max_pending_messages=PENDING_MAX,
            send_timeout_millis=0,
            chunking_enabled=bool(message_bytes),
        )
        self._more = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._producer.send_async((b"%d" % self.sent).ljust(self._message_bytes), self._answered)
            self.sent += 1
            if self._pause_s:
                self._stopping.wait(self._pause_s)
        self._producer.flush()

    def _answered(self, result: pulsar.Result, _id: object) -> None:
        with self._more:
            if result != pulsar.Result.Ok:
                self.failed.append(result)
            self.receipts += 1
            self._more.notify_all()

    def wait_for_more(self, count: int) -> None:
        """Wait for so many receipts from now on."""
        with self._more:
            want = self.receipts + count
            assert self._more.wait_for(lambda: self.receipts >= want, WITHIN_S), f"{self.topic}: no more receipts"

    def stop(self) -> None:
        """Publish no more, and wait for all receipts."""
        self._stopping.set()
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), f"{self.topic}: {self.sent - self.receipts} without a receipt"
        assert not self.failed, f"{self.topic}: {self.failed[:3]}"


class Receiver:
    """Receives and acknowledges numbers; what comes again is counted."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.topic = topic
        self.seen: list[int] = []
        self.again = 0
        self._consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        self._want: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        known: set[int] = set()
        deadline: float | None = None
        while self._want is None or len(known) < self._want:
            if self._want is not None and deadline is None:
                deadline = time.monotonic() + WITHIN_S
            if deadline is not None and time.monotonic() > deadline:
                return
            try:
                message = self._consumer.receive(RECEIVE_MS)
            except pulsar.Timeout:
                continue
            self._consumer.acknowledge(message)
            number = int(message.data())
            if number in known:
                self.again += 1
            else:
                known.add(number)
                self.seen.append(number)

    def check(self, sent: int) -> None:
        """Wait for all numbers below this one; they must have come in order, each for the first time."""
        self._want = sent
        self._thread.join(WITHIN_S + RECEIVE_MS / 1000)
        missing = sorted(set(range(sent)) - set(self.seen))
        assert not missing, f"{self.topic}: {len(missing)} of {sent} are lost, the first is {missing[0]}"
        assert self.seen == list(range(sent)), f"{self.topic}: not in order"

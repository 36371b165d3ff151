# SPDX-License-Identifier: Apache-2.0
"""One plain socket to a broker that does not speak Pulsar's protocol: what the clients of NATS and Kafka share.

Why: the raw generator must treat all brokers alike, so their sockets differ only in what is scanned for.
Where: `nats_generator` and `kafka_generator`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from benchmarks.client import TIMEOUT_S, Traffic
from penstock.net.blocking import dial

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.client import Scan

# Holds the largest answer, a fetch of Kafka, and another one; a read has at least the second.
BUFFER_BYTES: Final = 16 * 1024 * 1024
ROOM_BYTES: Final = 1024 * 1024


class PlainClient(Traffic):
    """A connection with one receive buffer, in which scanners find what has come."""

    def __init__(self, port: int) -> None:
        """Connect."""
        self.socket = dial("127.0.0.1", port, TIMEOUT_S)
        self.data = bytearray(BUFFER_BYTES)
        self.begin = self.end = 0

    def receive(self, scan: Scan) -> None:
        """Read what has come, and let `scan` take what is complete; what is none of its business goes to `other`."""
        if not self.read():
            return
        while True:
            others: list[int] = []
            self.begin = scan(self.data, self.begin, self.end, others)
            if not others:
                return
            following = self.other(others[0])
            if following == self.begin:
                return
            self.begin = following

    def other(self, at: int) -> int:
        """Take what no scanner takes; returns where the next thing begins, or `at` if this one is not complete yet.

        Raises:
            UnexpectedFrame: it means trouble.
        """
        raise NotImplementedError

    def read(self) -> int:
        """Read once into the buffer; returns how many bytes came, 0 if none has."""
        if self.begin == self.end:
            self.begin = self.end = 0
        elif BUFFER_BYTES - self.end < ROOM_BYTES:
            held = self.data[self.begin : self.end]
            self.data[: len(held)] = held
            self.begin, self.end = 0, len(held)
        with memoryview(self.data) as view:
            try:
                nbytes = self.socket.recv_into(view[self.end :])
            except BlockingIOError:
                return 0
        if not nbytes:
            raise ConnectionError("the broker closed the connection")
        self.end += nbytes
        return nbytes

    def read_until(self, is_there: Callable[[], bool], what: str) -> None:
        """Read, before the load, until something has come. Raises TimeoutError."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while not is_there():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{what} did not come within {TIMEOUT_S:g} s")
            self.read()

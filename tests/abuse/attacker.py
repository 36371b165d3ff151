# SPDX-License-Identifier: Apache-2.0
"""The process that attacks: opens connections, sends what a case says as fast as it is taken, and reads nothing.

Why a process: what it does to its own interpreter must not look like what it does to the broker.
Where: `subject` writes one line of JSON for each step, and reads one back.
"""

from __future__ import annotations

import json
import resource
import selectors
import socket
import ssl
import sys
import time
from typing import Any, Final

from penstock.testing.client import Type, frame
from tests.abuse.cases import Case
from tests.abuse.commands import SUBSCRIPTION, TOPIC, names_of

# How long an attack may send, at most, and without that the broker takes anything.
SECONDS_MAX: Final = 2.5
STALLED_S: Final = 0.3
CHUNK_BYTES: Final = 256 * 1024
RECEIVE_BUFFER_BYTES: Final = 4096
TIMEOUT_S: Final = 10.0

# What a client asks a proxy before it is connected to a broker. The first and every other connection asks so.
LOOKUPS: Final = frozenset({"LOOKUP", "PARTITIONED_METADATA", "GET_SCHEMA", "GET_TOPICS_OF_NAMESPACE"})

# What a command takes for granted.
_NEED_PRODUCER: Final = frozenset({"SEND", "CLOSE_PRODUCER"})


class Attack:
    """One case being carried out."""

    def __init__(self, case: Case, ports: dict[str, int], token: str, ca: str, through: str) -> None:
        """Args: through: the broker that a proxy connects clients to; "" if a broker is attacked."""
        self._case = case
        self._through = through
        self._token = token
        self._port = ports["admin"] if case.is_http else ports["tls" if case.tls else "plain"]
        self._tls = ssl.create_default_context(cafile=ca) if case.tls else None
        self._sockets: list[socket.socket] = []

    def run(self) -> dict[str, Any]:
        """Open the connections and send; returns bytes sent and how many connections the broker closed meanwhile."""
        case = self._case
        each = case.apart()
        bursts = [one.bursts() for one in each]
        if case.is_http:
            bearer = f"Authorization: Bearer {self._token}".encode()
            bursts = [[burst.replace(b"Authorization: @", bearer) for burst in of_one] for of_one in bursts]
        for index in range(case.sockets):
            self._sockets.append(self._open(index // len(each), each[index % len(each)]))
        return self._send(bursts)

    def close(self) -> None:
        """Leave, without having read anything."""
        for one in self._sockets:
            one.close()
        self._sockets.clear()

    def _open(self, index: int, case: Case) -> socket.socket:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        raw.settimeout(TIMEOUT_S)
        raw.connect(("127.0.0.1", self._port))
        one = self._tls.wrap_socket(raw, server_hostname="localhost") if self._tls is not None else raw
        if case.known and not case.is_http and case.what != "pipeline CONNECT":
            self._introduce(one, index, case.command)
        return one

    def _introduce(self, one: socket.socket, index: int, command: str) -> None:
        looks_up = not self._through or (command in LOOKUPS and index % 2 == 0)
        one.sendall(
            frame(
                Type.CONNECT,
                client_version="abuse",
                protocol_version=20,
                auth_method_name="token",
                auth_data=self._token.encode(),
                feature_flags={"supports_topic_watchers": True, "supports_auth_refresh": True},
                **({} if looks_up else {"proxy_to_broker_url": self._through}),
            )
        )
        _answer(one)
        if command in _NEED_PRODUCER:
            one.sendall(frame(Type.PRODUCER, topic=TOPIC, producer_id=0, request_id=0))
            _answer(one)
        elif command != "SUBSCRIBE" and "consumer_id" in names_of(command):
            one.sendall(
                frame(
                    Type.SUBSCRIBE,
                    topic=TOPIC,
                    subscription=SUBSCRIPTION,
                    subType=1,
                    consumer_id=0,
                    request_id=0,
                    consumer_name=f"c{index}",
                    initialPosition=1,
                )
            )
            _answer(one)

    def _send(self, bursts: list[list[bytes]]) -> dict[str, Any]:
        selector = selectors.DefaultSelector()
        left: dict[socket.socket, memoryview] = {}
        for index, each in enumerate(self._sockets):
            each.setblocking(False)
            of_one = bursts[index % len(bursts)]
            left[each] = memoryview(of_one[index // len(bursts) % len(of_one)])
            selector.register(each, selectors.EVENT_WRITE, each)
        sent = closed = 0
        deadline = time.monotonic() + SECONDS_MAX
        while left and (remaining := deadline - time.monotonic()) > 0:
            ready = selector.select(min(remaining, STALLED_S))
            if not ready:
                break
            for key, _ in ready:
                one: socket.socket = key.data
                try:
                    nbytes = one.send(left[one][:CHUNK_BYTES])
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    continue
                except OSError:
                    closed, nbytes = closed + 1, len(left[one])
                else:
                    sent += nbytes
                left[one] = left[one][nbytes:]
                if not left[one]:
                    del left[one]
                    selector.unregister(one)
                if time.monotonic() > deadline:
                    break
        selector.close()
        return {"sent": sent, "closed": closed, "unfinished": len(left)}


def _answer(one: socket.socket) -> None:
    """Wait for one frame and forget it."""
    size = int.from_bytes(_exactly(one, 4), "big")
    _exactly(one, size)


def _exactly(one: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        more = one.recv(nbytes - len(data))
        if not more:
            raise ConnectionError("the broker closed the connection before the attack")
        data += more
    return data


def main() -> None:
    """Carry out what standard input says, a line a step: a case, or an empty line to leave the connections."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attack: Attack | None = None
    for line in sys.stdin:
        if not line.strip():
            if attack is not None:
                attack.close()
                attack = None
            print("{}", flush=True)
            continue
        step = json.loads(line)
        case = Case(**{**step["case"], "beside": tuple(step["case"]["beside"])})
        attack = Attack(case, step["ports"], step["token"], step["ca"], step["through"])
        try:
            answer = attack.run()
        except OSError as error:
            answer = {"sent": 0, "closed": 0, "unfinished": 0, "error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

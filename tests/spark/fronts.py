# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for brokers among which topics move: each answers lookups as a test says, and passes on all the rest.

Why: our broker is one process, so nothing is ever elsewhere, and no proxy stands before it. A `Front` listens like a
broker, speaks the protocol with the project's own codec, and has a real broker behind it that does the work; two fronts
before one broker are a cluster in which a topic can move.
Where: tests of the client that Spark's tasks use.

A test gives a front its habits by hooks, which see each command before it is passed on, in whichever direction:

    front.on_lookup = lambda body: redirect(body, elsewhere.url)
    front.to_broker = lambda link, command: not busy(command) or link.instead(error(command.producer.request_id, …))

A hook for commands returns whether to pass the command on.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from penstock.testing.client import frame
from penstock.wire import codec
from penstock.wire.codec import BaseCommand, CommandLookupTopic, CommandLookupTopicResponse

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    # What a hook says: whether to pass a command on.
    Hook: TypeAlias = "Callable[[Link, BaseCommand], bool]"

HOST: Final = "127.0.0.1"
TIMEOUT_S: Final = 60.0


class Link:
    """One client's connection to a front, and the front's own to the broker behind it."""

    def __init__(self, front: Front, client: socket.socket) -> None:
        self.front = front
        self.may_go_on = threading.Event()  # for hooks: one may wait until another says so, or the link ends
        self._client = client
        self._broker: socket.socket | None = None
        self._telling = threading.Lock()
        self._threads = [threading.Thread(target=self._serve, name="front", daemon=True)]

    def start(self) -> None:
        """Serve, on a thread of its own."""
        self._threads[0].start()

    def tell(self, data: bytes) -> None:
        """Write frames to the client."""
        with self._telling, contextlib.suppress(OSError):  # It may have gone.
            self._client.sendall(data)

    def instead(self, data: bytes) -> bool:
        """Write frames to the client; what a hook returns that has nothing to pass on."""
        self.tell(data)
        return False

    def end(self) -> None:
        """Cut both connections."""
        self.may_go_on.set()
        for end in (self._client, self._broker):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut both connections and wait until nobody uses them."""
        self.end()
        for thread in self._threads:
            thread.join()
        for end in (self._client, self._broker):
            if end is not None:
                end.close()

    def _serve(self) -> None:
        """From the client to the broker."""
        with contextlib.suppress(OSError):
            while (came := _receive(self._client)) is not None:
                command, data = came
                self.front.note_question(command)
                if command.type == BaseCommand.CONNECT:
                    self._connect(command.connect)
                if command.type == BaseCommand.LOOKUP:
                    self.tell(self.front.on_lookup(command.lookupTopic))
                elif self.front.to_broker(self, command):
                    assert self._broker is not None, "the client did not begin with CONNECT"
                    self._broker.sendall(data)
        self.end()

    def _connect(self, body: codec.CommandConnect) -> None:
        """A client that wants to be passed on names the broker; ours is always the same."""
        self._broker = socket.create_connection((HOST, self.front.broker_port))
        answering = threading.Thread(target=self._answer, args=(self._broker,), name="front", daemon=True)
        self._threads.append(answering)
        answering.start()
        if body.HasField("proxy_to_broker_url"):
            self.front.passed_on.append(body.proxy_to_broker_url)

    def _answer(self, broker: socket.socket) -> None:
        """From the broker to the client."""
        with contextlib.suppress(OSError):
            while (came := _receive(broker)) is not None:
                command, data = came
                if self.front.to_client(self, command):
                    self.tell(data)
                    self.front.note_answer(command.type)
        self.end()


class Front:
    """A port that looks like a broker's. Use it in a `with`.

    Attributes:
        url: where it listens.
        asked: all commands that clients sent, in order.
        answered: types of the commands that the broker sent and clients were given.
        passed_on: the brokers that clients named in CONNECT, as one does to a proxy.
        on_lookup: the frame that answers a LOOKUP; by default, that the topic is here.
        to_broker, to_client: hooks.
    """

    def __init__(self, broker_port: int) -> None:
        self.broker_port = broker_port
        self.asked: list[BaseCommand] = []
        self.answered: list[int] = []
        self.passed_on: list[str] = []
        self.to_broker: Hook = pass_on
        self.to_client: Hook = pass_on
        self._listener = socket.create_server((HOST, 0))
        self.url = f"pulsar://{HOST}:{self._listener.getsockname()[1]}"
        self.on_lookup: Callable[[CommandLookupTopic], bytes] = lambda body: found(body, self.url)
        self._links: list[Link] = []
        self._changing = threading.Condition()
        self._thread = threading.Thread(target=self._accept, name="front", daemon=True)

    def count(self, kind: int) -> int:
        """How many commands of this type clients have sent."""
        return sum(command.type == kind for command in self.asked)

    def note_question(self, command: BaseCommand) -> None:
        """A command came from a client."""
        with self._changing:
            self.asked.append(command)
            self._changing.notify_all()

    def note_answer(self, kind: int) -> None:
        """A command went to a client."""
        with self._changing:
            self.answered.append(kind)
            self._changing.notify_all()

    def wait_for_questions(self, kind: int, count: int) -> None:
        """Wait until so many commands of this type came from clients."""
        with self._changing:
            assert self._changing.wait_for(lambda: self.count(kind) >= count, TIMEOUT_S)

    def wait_for_answers(self, kind: int, count: int) -> None:
        """Wait until so many commands of this type went to clients."""
        with self._changing:
            assert self._changing.wait_for(lambda: self.answered.count(kind) >= count, TIMEOUT_S)

    def cut(self) -> None:
        """End all connections."""
        for link in self._links:
            link.close()

    def lookups(self) -> list[tuple[str, bool]]:
        """Topics that were looked up, each with whether the answer was to be authoritative."""
        bodies = [command.lookupTopic for command in self.asked if command.type == BaseCommand.LOOKUP]
        return [(body.topic, body.authoritative) for body in bodies]

    def tokens(self) -> list[tuple[int, bytes]]:
        """What clients showed of themselves: each time, in which command and what."""
        return [
            (command.type, command.connect.auth_data)
            if command.type == BaseCommand.CONNECT
            else (command.type, command.authResponse.response.auth_data)
            for command in self.asked
            if command.type in (BaseCommand.CONNECT, BaseCommand.AUTH_RESPONSE)
        ]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                link = Link(self, client)
                self._links.append(link)
                link.start()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.cut()


def pass_on(_link: Link, _command: BaseCommand) -> bool:
    """The hook of who has nothing to say."""
    return True


# -- answers ---------------------------------------------------------------------------------------------------------


def found(asked: CommandLookupTopic, url: str, *, proxied: bool = False) -> bytes:
    """The topic is there."""
    return _looked_up(asked, CommandLookupTopicResponse.Connect, url, proxy_through_service_url=proxied)


def redirect(asked: CommandLookupTopic, url: str, *, authoritative: bool = False) -> bytes:
    """Ask there."""
    return _looked_up(asked, CommandLookupTopicResponse.Redirect, url, authoritative=authoritative)


def error(request_id: int, code: int, text: str) -> bytes:
    """An ERROR."""
    return frame(BaseCommand.ERROR, request_id=request_id, error=int(code), message=text)


def moved_consumer(to_url: str) -> bytes:
    """The topic has moved, for a consumer of the client's."""
    return frame(BaseCommand.CLOSE_CONSUMER, consumer_id=1, request_id=2**64 - 1, assignedBrokerServiceUrl=to_url)


def moved_producer(to_url: str) -> bytes:
    """The same for a producer."""
    return frame(BaseCommand.CLOSE_PRODUCER, producer_id=0, request_id=2**64 - 1, assignedBrokerServiceUrl=to_url)


def challenge() -> bytes:
    """Show again who you are."""
    return codec.auth_challenge("front", 21, "token", b"PulsarAuthRefresh")


def _looked_up(asked: CommandLookupTopic, kind: int, url: str, **said: Any) -> bytes:  # noqa: ANN401
    fields = {"request_id": asked.request_id, "response": kind, "brokerServiceUrl": url, **said}
    return frame(BaseCommand.LOOKUP_RESPONSE, **fields)


# -- frames ----------------------------------------------------------------------------------------------------------


def _receive(peer: socket.socket) -> tuple[BaseCommand, bytes] | None:
    """The next frame: its command and all of its bytes; None at the end. Raises OSError."""
    size = _exactly(peer, 4)
    rest = size and _exactly(peer, *struct.unpack(">I", size))
    if not rest:
        return None
    return codec.decode_command(rest[4 : 4 + int.from_bytes(rest[:4], "big")]), size + rest


def _exactly(peer: socket.socket, wanted: int) -> bytes:
    """So many bytes; none when the peer ends before that."""
    data = bytearray()
    while len(data) < wanted:
        part = peer.recv(wanted - len(data))
        if not part:
            return b""
        data += part
    return bytes(data)

# SPDX-License-Identifier: Apache-2.0
"""Topics as a cluster has them: which there are, how many partitions, who serves each, where they end.

Why one object: lookups and metadata go over one connection to any broker, which is kept, and checked before each use; a
request that may pass (the topic is moving, the broker is restarting) is tried again until the deadline.
Where: the driver plans with it; tasks find their broker with it (`open_topic`), reader and producer alike.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from penstock.core.clock import Backoff
from penstock.core.errors import WireCode
from penstock.core.names import NamespaceName, TopicName
from penstock.core.units import NS_PER_S
from penstock.net.clock import SystemClock
from penstock.spark.client.connection import Connection
from penstock.spark.client.errors import BadAnswer, ClientError, RedirectedInCircles, Refused
from penstock.wire import codec
from penstock.wire.client import lookup as lookups
from penstock.wire.client.lookup import Lookup, Owner
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import TypeVar

    from penstock.core.clock import Clock
    from penstock.spark.client.endpoint import Endpoint
    from penstock.wire.client.frames import Body
    from penstock.wire.client.lookup import Address, Redirect

    T = TypeVar("T")

_log: Final = logging.getLogger(__name__)
# A longer wait for a broker is told, with its reason.
_TOLD_AFTER_NS: Final = 2 * NS_PER_S
# Pauses between attempts double from the first to the last.
_PAUSE_FIRST_S: Final = 0.1
_PAUSE_MAX_S: Final = 2.0


# Questions that are asked at once: they and their answers fit the buffers of sockets, so that nobody waits to write.
AT_ONCE_MAX: Final = 256
# Lists of topics are large, and take memory in the broker while they wait.
LISTED_AT_ONCE_MAX: Final = 16


class TopicSchema(NamedTuple):
    """Schema of a topic's values."""

    kind: int  # Schema.Type
    definition: bytes
    version: bytes
    properties: dict[str, str]


class Cluster:
    """One connection to a cluster for questions about topics; use it in a `with`, or close it."""

    def __init__(self, endpoint: Endpoint, *, clock: Clock | None = None, chance: random.Random | None = None) -> None:
        self.endpoint = endpoint
        self._clock = clock or SystemClock()
        self._chance = chance or random.Random()
        self._connection: Connection | None = None
        self._addresses = deque(endpoint.addresses)  # the one to ask first
        self._idle: dict[Owner, Connection] = {}  # given back, one for each broker

    # -- topics ------------------------------------------------------------------------------------------------------

    def partitions(self, topic: str, *, create: bool = False) -> list[str]:
        """Full names of a topic's partitions in order; of a topic that has none, its own.

        Does not create the topic unless told to. Raises Refused (TOPIC_NOT_FOUND …) and what `Connection` raises.
        """
        found = self.partitions_of_all([topic], create=create)[topic]
        if isinstance(found, Refused):
            raise found
        return found

    def partitions_of_all(self, topics: Iterable[str], *, create: bool = False) -> dict[str, list[str] | Refused]:
        """The same for several topics at once; of each its partitions, or the answer that refuses them."""
        names = {topic: TopicName.parse(topic) for topic in topics}
        questions: dict[str, tuple[Body, str]] = {
            topic: (
                codec.CommandPartitionedTopicMetadata(
                    topic=str(name), request_id=0, metadata_auto_creation_enabled=create
                ),
                f"asking for the partitions of {name}",
            )
            for topic, name in names.items()
        }
        found: dict[str, list[str] | Refused] = {}
        for topic, answer in self.ask_all(questions).items():
            name = names[topic]
            if isinstance(answer, Refused):
                found[topic] = answer
            else:
                count = answer.partitions
                found[topic] = [str(name.of_partition(index)) for index in range(count)] if count else [str(name)]
        return found

    def topics(self, namespace: str) -> list[str]:
        """Full names of the persistent topics of a namespace, partitions by their own names, sorted."""
        return self.topics_of_all([namespace])

    def topics_of_all(self, namespaces: Iterable[str]) -> list[str]:
        """The same for several namespaces, some at a time. Raises Refused for the first that is refused."""
        found: list[str] = []
        for part in parts_of(namespaces, LISTED_AT_ONCE_MAX):
            questions: dict[str, tuple[Body, str]] = {
                name: (
                    codec.CommandGetTopicsOfNamespace(namespace=str(NamespaceName.parse(name)), request_id=0),
                    f"listing the topics of {name}",
                )
                for name in part
            }
            for answer in self.ask_all(questions).values():
                if isinstance(answer, Refused):
                    raise answer
                found += sorted(answer.topics)
        return found

    def schema(self, topic: str, version: bytes = b"") -> TopicSchema | None:
        """The schema of a topic, the newest unless one is named; None when there is none."""
        return self.schemas([topic], version)[topic]

    def schemas(self, topics: Iterable[str], version: bytes = b"") -> dict[str, TopicSchema | None]:
        """The same for several topics at once. Raises Refused for the first that is refused."""
        questions: dict[str, tuple[Body, str]] = {}
        for topic in topics:
            name = TopicName.parse(topic)
            body = codec.CommandGetSchema(topic=str(name.parent), request_id=0)
            if version:
                body.schema_version = version
            questions[topic] = body, f"asking for the schema of {name}"
        found: dict[str, TopicSchema | None] = {}
        for topic, answer in self.ask_all(questions).items():
            if isinstance(answer, Refused):
                if answer.code is not WireCode.TOPIC_NOT_FOUND:
                    raise answer
                found[topic] = None
            else:
                said = answer.schema
                properties = {pair.key: pair.value for pair in said.properties}
                found[topic] = TopicSchema(said.type, said.schema_data, answer.schema_version, properties)
        return found

    def open_topic(self, topic: str) -> Connection:
        """A new connection to the broker that serves this topic (one partition, or a topic without); the caller's own.

        Tried again, within the endpoint's `operation_timeout_s`, while the answer is one that passes.
        """
        return self.insist(lambda: self.open_once(topic))

    def ask_all(self, questions: Mapping[str, tuple[Body, str]]) -> dict[str, Body | Refused]:
        """Ask several questions at once: they cost one round trip together.

        Args:
            questions: a command and what it does, for the text of errors, by any name.

        Returns:
            The answer to each, in their order, or the error that the broker answered. Errors that may pass are asked
            again until the endpoint's `operation_timeout_s` is over. Raises what `Connection` raises.
        """
        found: dict[str, Body | Refused] = {}

        def attempt(left: dict[str, tuple[Body, str]]) -> None:
            connection = self._any()
            ids = {connection.begin(body, what): name for name, (body, what) in left.items()}
            answers, _ = connection.answers(ids, f"{next(iter(left.values()))[1]} and {len(left) - 1} others")
            passing: Refused | None = None
            for request_id, answer in answers.items():
                found[ids[request_id]] = answer
                if isinstance(answer, Refused) and answer.may_pass:
                    passing = answer
                else:
                    del left[ids[request_id]]
            if passing is not None:
                raise passing

        for part in parts_of(questions, AT_ONCE_MAX):
            self.insist(partial(attempt, {name: questions[name] for name in part}))
        return {name: found[name] for name in questions}

    # -- connections -------------------------------------------------------------------------------------------------

    def insist(self, attempt: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """Do something until it succeeds, with pauses, while its ClientError says that it may pass.

        Args:
            attempt: is called at least once.
            timeout_s: no attempt begins after it; None takes the endpoint's `operation_timeout_s`.
        """
        timeout_s = self.endpoint.operation_timeout_s if timeout_s is None else timeout_s
        deadline_ns = self._clock.monotonic_ns() + round(timeout_s * NS_PER_S)
        backoff = self.backoff()
        began_ns = self._clock.monotonic_ns()
        is_told = False
        while True:
            try:
                return attempt()
            except ClientError as error:
                if not isinstance(error, Refused) or error.code is WireCode.SERVICE_NOT_READY:
                    self.close()
                    self._addresses.rotate(-1)
                wait_s = backoff.next_s()
                if not error.may_pass or self._clock.monotonic_ns() + round(wait_s * NS_PER_S) > deadline_ns:
                    raise
                if not is_told and self._clock.monotonic_ns() - began_ns > _TOLD_AFTER_NS:
                    is_told = True
                    _log.warning("%s; trying again for up to %g s (operationTimeoutMs)", error, timeout_s)
            threading.Event().wait(wait_s)

    def backoff(self) -> Backoff:
        """The pauses between attempts."""
        return Backoff(self._chance, first_s=_PAUSE_FIRST_S, last_s=_PAUSE_MAX_S)

    def close(self) -> None:
        """Close the connection, if there is one, and those that were given back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        while self._idle:
            self._idle.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open_once(self, topic: str) -> Connection:
        """One attempt of `open_topic`: look up, and connect. A redirect asks the broker it names."""
        return self.connection_to(self.owner(topic))

    def connection_to(self, owner: Owner) -> Connection:
        """A connection to a broker that a lookup named, perhaps one that was given back. One attempt."""
        idle = self._idle.pop(owner, None)
        if idle is not None:
            if idle.is_alive():
                return idle
            idle.close()
        connection = self.connect(owner)
        connection.owner = owner
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection of `open_once` for the next topic of its broker; nothing may be open or expected on it."""
        if connection.owner is None or connection.owner in self._idle:
            connection.close()
        else:
            self._idle[connection.owner] = connection

    def connect(self, owner: Owner) -> Connection:
        """A new connection to a broker that a lookup named; the caller's own. One attempt."""
        return Connection(self.endpoint, owner.address, through=owner.through, clock=self._clock)

    def owner(self, topic: str) -> Owner:
        """Look up which broker serves a topic. One attempt."""
        name = str(TopicName.parse(topic))
        lookup = Lookup(name, listener=self.endpoint.listener)
        asked = self._any()
        redirected: list[Connection] = []
        try:
            while True:
                answer = asked.request(lookup.question(asked.address), what=f"looking up {name}")
                owner = _owner(lookup, answer, asked.address)
                if isinstance(owner, Owner):
                    return owner
                asked = Connection(self.endpoint, owner.address, clock=self._clock)
                redirected.append(asked)
        except lookups.RedirectedInCircles as error:
            raise RedirectedInCircles(name, error.addresses) from None
        finally:
            for connection in redirected:
                connection.close()

    def owners(self, topics: Iterable[str]) -> dict[str, Owner | Refused]:
        """Look up several topics at once: the broker of each, or the answer that refuses it. One attempt."""
        asked = self._any()
        lookups_ = {topic: Lookup(topic, listener=self.endpoint.listener) for topic in topics}
        ids = {
            asked.begin(lookup.question(asked.address), f"looking up {topic}"): topic
            for topic, lookup in lookups_.items()
        }
        answers, _ = asked.answers(ids, f"looking up {len(ids)} topics")
        found: dict[str, Owner | Refused] = {}
        for request_id, answer in answers.items():
            topic = ids[request_id]
            if isinstance(answer, Refused):
                found[topic] = answer
                continue
            owner = _owner(lookups_[topic], answer, asked.address)
            found[topic] = owner if isinstance(owner, Owner) else self.owner(topic)
        return found

    # -- inside ------------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[Connection], T]) -> T:
        return self.insist(lambda: question(self._any()))

    def _any(self) -> Connection:
        """The connection for questions, alive as far as can be told; to the next address that answers."""
        if self._connection is not None and not self._connection.is_alive():
            self.close()
        if self._connection is None:
            self._connection = self._connect_any()
        return self._connection

    def _connect_any(self) -> Connection:
        for _ in range(len(self._addresses) - 1):
            with suppress(ClientError):
                return Connection(self.endpoint, self._addresses[0], clock=self._clock)
            self._addresses.rotate(-1)
        return Connection(self.endpoint, self._addresses[0], clock=self._clock)


def parts_of(names: Iterable[str], size: int) -> Iterator[list[str]]:
    """Cut into lists of at most so many."""
    rest = iter(names)
    while part := list(islice(rest, size)):
        yield part


def _owner(lookup: Lookup, answer: codec.CommandLookupTopicResponse, asked: Address) -> Owner | Redirect:
    try:
        return lookup.answered(answer)
    except ProtocolError as error:
        port = "brokerServicePortTls" if asked.tls else "brokerServicePort"
        advice = f"look at {port} and advertisedAddress of the broker that serves the topic"
        raise BadAnswer(str(asked), str(error), advice) from None

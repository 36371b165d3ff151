# SPDX-License-Identifier: Apache-2.0
"""Topics as a cluster has them: which there are, how many partitions, who serves each, where they end.

Why one object: lookups and metadata go over one connection to any broker, which is kept, and checked before each use; a
request that may pass (the topic is moving, the broker is restarting) is tried again until the deadline.
Where: the driver plans with it; tasks find their broker with it (`open_topic`), reader and producer alike.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from penstock.core.backoff import Backoff
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
    from collections.abc import Callable
    from types import TracebackType
    from typing import TypeVar

    from penstock.core.clock import Clock
    from penstock.spark.client.endpoint import Endpoint
    from penstock.wire.client.addresses import Address
    from penstock.wire.client.lookup import Redirect

    T = TypeVar("T")

# Pauses between attempts double from the first to the last.
_PAUSE_FIRST_S: Final = 0.1
_PAUSE_MAX_S: Final = 2.0


class TopicSchema(NamedTuple):
    """What a topic's values are."""

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

    # -- topics ------------------------------------------------------------------------------------------------------

    def partitions(self, topic: str, *, create: bool = False) -> list[str]:
        """Full names of a topic's partitions in order; of a topic that has none, its own.

        Does not create the topic unless told to. Raises Refused (TOPIC_NOT_FOUND …) and what `Connection` raises.
        """
        name = TopicName.parse(topic)
        what = f"asking for the partitions of {name}"
        body = codec.CommandPartitionedTopicMetadata(
            topic=str(name), request_id=0, metadata_auto_creation_enabled=create
        )
        count = self._ask(lambda connection: connection.request(body, what=what)).partitions
        return [str(name.of_partition(index)) for index in range(count)] if count else [str(name)]

    def topics(self, namespace: str) -> list[str]:
        """Full names of the persistent topics of a namespace, partitions by their own names, sorted."""
        name = NamespaceName.parse(namespace)
        body = codec.CommandGetTopicsOfNamespace(namespace=str(name), request_id=0)
        answer = self._ask(lambda connection: connection.request(body, what=f"listing the topics of {name}"))
        return sorted(answer.topics)

    def schema(self, topic: str, version: bytes = b"") -> TopicSchema | None:
        """The schema of a topic, the newest unless one is named; None when there is none."""
        name = TopicName.parse(topic)
        body = codec.CommandGetSchema(topic=str(name.parent), request_id=0)
        if version:
            body.schema_version = version
        try:
            answer = self._ask(lambda connection: connection.request(body, what=f"asking for the schema of {name}"))
        except Refused as refused:
            if refused.code is WireCode.TOPIC_NOT_FOUND:
                return None
            raise
        said = answer.schema
        properties = {pair.key: pair.value for pair in said.properties}
        return TopicSchema(said.type, said.schema_data, answer.schema_version, properties)

    def open_topic(self, topic: str) -> Connection:
        """A new connection to the broker that serves this topic (one partition, or a topic without); the caller's own.

        Tried again, within the endpoint's `operation_timeout_s`, while the answer is one that passes.
        """
        return self.insist(lambda: self.open_once(topic))

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
            threading.Event().wait(wait_s)

    def backoff(self) -> Backoff:
        """The pauses of whoever tries something again."""
        return Backoff(self._chance, first_s=_PAUSE_FIRST_S, last_s=_PAUSE_MAX_S)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open_once(self, topic: str) -> Connection:
        """One attempt of `open_topic`: look up, and connect. A redirect asks the broker it names."""
        name = str(TopicName.parse(topic))
        lookup = Lookup(name, listener=self.endpoint.listener)
        asked = self._any()
        redirected: list[Connection] = []
        try:
            while True:
                answer = asked.request(lookup.question(asked.address), what=f"looking up {name}")
                owner = _owner(lookup, answer, asked.address)
                if isinstance(owner, Owner):
                    return Connection(self.endpoint, owner.address, through=owner.through, clock=self._clock)
                asked = Connection(self.endpoint, owner.address, clock=self._clock)
                redirected.append(asked)
        except lookups.RedirectedInCircles as error:
            raise RedirectedInCircles(name, error.addresses) from None
        finally:
            for connection in redirected:
                connection.close()

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


def _owner(lookup: Lookup, answer: codec.CommandLookupTopicResponse, asked: Address) -> Owner | Redirect:
    try:
        return lookup.answered(answer)
    except ProtocolError as error:
        port = "brokerServicePortTls" if asked.tls else "brokerServicePort"
        advice = f"look at {port} and advertisedAddress of the broker that serves the topic"
        raise BadAnswer(str(asked), str(error), advice) from None

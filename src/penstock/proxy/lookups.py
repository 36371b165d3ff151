# SPDX-License-Identifier: Apache-2.0
"""Lookups of one client: the proxy asks the brokers, follows their redirects, and answers.

The answer to a lookup names the owner of the topic and says that it is reached through the proxy. The client then
connects to the proxy again and names the owner (`proxy_to_broker_url`).
Where: `session`. A client that is connected to a broker asks that broker, but for lists of topics (see `listings`).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import PenstockError, ServiceNotReady, TooManyRequests, WireCode
from penstock.core.units import KIB
from penstock.proxy.relay import OwnList
from penstock.proxy.upstreams import LookupsFull
from penstock.wire import codec
from penstock.wire.client.connection import encode
from penstock.wire.client.events import RequestRefused
from penstock.wire.client.lookup import Lookup, Redirect
from penstock.wire.codec import BaseCommand
from penstock.wire.errors import ProtocolError
from penstock.wire.listings import relayed_head

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from penstock.proxy.client_identity import ClientIdentity
    from penstock.proxy.proxy import Services
    from penstock.proxy.session import Session
    from penstock.proxy.upstreams import Identity
    from penstock.wire.client.events import Connected
    from penstock.wire.client.frames import Body
    from penstock.wire.client.lookup import Address


log = logging.getLogger(__name__)

# A client waits for 30 s; redirects, connections and answers together take less.
ANSWER_S: Final = 28.0
# What a broker says in an error is passed on up to this length.
TEXT_CHARS_MAX: Final = 1_000
# A client with more unread answers gets no further large ones: its requests were all started before it read the first.
UNREAD_BYTES_MAX: Final = 256 * KIB


class Lookups:
    """Answers one client's lookups."""

    def __init__(self, session: Session, services: Services, client: ClientIdentity) -> None:
        self._session = session
        self._services = services
        self._client = client

    @property
    def _identity(self) -> Identity:
        """Identity of the client as brokers are told it now."""
        assert self._client.identity is not None, "lookups begin when the client is authenticated"
        return self._client.identity

    async def open(self) -> Connected:
        """Return what a broker of the cluster answers to these credentials. Raises ServiceNotReady, RequestRefused."""
        upstreams = self._services.upstreams
        async with upstreams.client(await upstreams.cluster(self._identity), self._identity) as client:
            connected = client.connection.connected
            assert connected is not None, "the connection was opened"
            return connected

    def handle(self, kind: int, body: Body) -> bool:
        """Answer a command; False if it is none of a lookup."""
        handler = _HANDLERS.get(kind)
        if handler is None:
            return False
        self._services.traffic.asked[KINDS[kind]] += 1
        self.start(partial(handler, self), KINDS[kind], body)
        return True

    def start(self, handler: Callable[[Any], Awaitable[None]], kind: str, body: Body) -> None:
        """Answer a request with this handler; the error that it raises is the answer."""
        self._session.requests.start(body.request_id, partial(self._answered, handler, kind, body))

    async def _answered(self, handler: Callable[[Any], Awaitable[None]], kind: str, body: Body) -> None:
        traffic = self._services.traffic
        traffic.pending += 1
        try:
            async with asyncio.timeout(ANSWER_S):
                identity = await self._client.valid()
                try:
                    await handler(body)
                except RequestRefused as error:
                    # What the client has shown may have expired since.
                    if error.code != WireCode.AUTHENTICATION_ERROR or not await self._client.renewed(identity):
                        raise
                    await handler(body)
        except RequestRefused as error:
            self._refuse(body, error.code, error.said)
        except TimeoutError:
            self._refuse(body, ServiceNotReady.wire_code, "the broker did not answer in time; try again")
        except (ConnectionError, OSError) as error:
            self._refuse(body, ServiceNotReady.wire_code, f"the connection to the broker is lost: {error}")
        except PenstockError as error:
            if isinstance(error, ProtocolError):
                log.warning("connection %s: %s is not answered: %s", self._session.connection.peer, kind, error)
            if isinstance(error, TooManyRequests | LookupsFull):
                traffic.turned_away[kind] += 1
            self._refuse(body, error.wire_code, str(error))
        finally:
            traffic.pending -= 1

    def _refuse(self, body: Body, code: int, text: str) -> None:
        failed = _FAILED.get(type(body), codec.error)
        self._session.reply(failed(body.request_id, code, text[:TEXT_CHARS_MAX]))

    async def _ask(self, body: Body, what: str) -> Body:
        """Ask the cluster, and return the answer. Raises as `AsyncClient.request`."""
        upstreams = self._services.upstreams
        address = await upstreams.cluster(self._identity)
        return await self._ask_one(address, body, what)

    async def _ask_one(self, address: Address, body: Body, what: str) -> Body:
        upstreams = self._services.upstreams
        async with upstreams.client(address, self._identity) as client:
            try:
                return await client.request(body, what, timeout_s=upstreams.options.request_timeout_s)
            except TimeoutError:
                upstreams.did_not_answer(address)
                raise

    async def _lookup(self, body: codec.CommandLookupTopic) -> None:
        lookup = Lookup(body.topic, listener=body.advertised_listener_name)
        address = await self._services.upstreams.cluster(self._identity)
        while True:
            answer = await self._ask_one(address, lookup.question(address), f"looking up {body.topic}")
            found = lookup.answered(answer)
            if not isinstance(found, Redirect):
                break
            address = found.address
        # A broker that does not know where it is reached stays where it was asked.
        broker = found.through or found.address
        self._services.targets.remember(broker)
        url = str(broker)
        response = codec.CommandLookupTopicResponse(
            request_id=body.request_id,
            response=codec.CommandLookupTopicResponse.Connect,
            brokerServiceUrl=url,
            brokerServiceUrlTls=url,
            authoritative=True,
            proxy_through_service_url=True,
        )
        self._session.reply(encode(response))

    async def _partitions(self, body: codec.CommandPartitionedTopicMetadata) -> None:
        asked = codec.CommandPartitionedTopicMetadata(topic=body.topic, request_id=0)
        if body.HasField("metadata_auto_creation_enabled"):
            asked.metadata_auto_creation_enabled = body.metadata_auto_creation_enabled
        await self._pass_on(body, asked, f"asking for the partitions of {body.topic}")

    async def _schema(self, body: codec.CommandGetSchema) -> None:
        asked = codec.CommandGetSchema(topic=body.topic, request_id=0)
        if body.HasField("schema_version"):
            asked.schema_version = body.schema_version
        await self._pass_on(body, asked, f"asking for the schema of {body.topic}")

    async def _topics(self, body: codec.CommandGetTopicsOfNamespace) -> None:
        answer = await self._services.listings.answer(self._session.connection, self._identity, body)
        head = relayed_head(body.request_id, answer.fields_bytes)
        await self._session.send_list(OwnList(head, answer.buffers, answer.release))

    async def _pass_on(self, body: Body, asked: Body, what: str) -> None:
        answer = await self._ask(asked, what)
        answer.request_id = body.request_id
        frame = encode(answer)
        unread_bytes = self._session.connection.out_bytes
        if unread_bytes > UNREAD_BYTES_MAX and len(frame) > TEXT_CHARS_MAX:
            raise TooManyRequests(f"{unread_bytes} bytes of earlier answers are unread; read them and try again")
        self._session.reply(frame)


_HANDLERS: Final[Mapping[int, Callable[[Lookups, Any], Awaitable[None]]]] = {
    BaseCommand.LOOKUP: Lookups._lookup,  # noqa: SLF001 - of this class
    BaseCommand.PARTITIONED_METADATA: Lookups._partitions,  # noqa: SLF001
    BaseCommand.GET_SCHEMA: Lookups._schema,  # noqa: SLF001
    BaseCommand.GET_TOPICS_OF_NAMESPACE: Lookups._topics,  # noqa: SLF001
}
# What requests are called in metrics.
KINDS: Final[Mapping[int, str]] = {
    BaseCommand.LOOKUP: "lookup",
    BaseCommand.PARTITIONED_METADATA: "partitions_metadata",
    BaseCommand.GET_SCHEMA: "get_schema",
    BaseCommand.GET_TOPICS_OF_NAMESPACE: "get_topics_of_namespace",
}
_FAILED = {
    codec.CommandLookupTopic: codec.lookup_failed,
    codec.CommandPartitionedTopicMetadata: codec.partitioned_metadata_failed,
    codec.CommandGetSchema: codec.get_schema_failed,
}

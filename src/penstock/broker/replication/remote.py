# SPDX-License-Identifier: Apache-2.0
"""Another cluster, as this broker reaches it: its addresses and credentials, connections, topics and schemas there.

Why one object for a cluster: ten thousand topics share one connection to each of its brokers; and when the cluster is
gone, one timer tries again, not ten thousand. Where: `Replication` makes one for each cluster that is used, from what
an administrator has set; replicators ask it for links.

Theory of operation
    A `Link` is a connection to the broker that serves a topic, found by lookups from the service URL. It knows the
    replicators that use it, and passes receipts and closings on to them.
    If a connection cannot be made or ends, the cluster counts as `down`: replicators wait, a timer that backs off
    connects to the service URL, and when that succeeds all that wait go on, some in each turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from http import HTTPStatus
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

from penstock.broker.schemas.checks.model import NUMBERS
from penstock.core.clock import Backoff
from penstock.core.errors import ConfigurationError, PenstockError, WireCode
from penstock.core.setting import authentication_method
from penstock.core.units import KIB
from penstock.net.client import AsyncClient
from penstock.net.http_request import HEAD_BYTES_MAX, NoResponse, send
from penstock.net.own_credentials import OwnCredentials, own_credentials
from penstock.net.tls import client_context
from penstock.stats.expiry import of_contexts, of_credentials
from penstock.wire.client.connection import FEATURES, ClientConnection, Hello
from penstock.wire.client.events import ProducerClosed, Receipt, RequestRefused, SendFailed
from penstock.wire.client.frames import FRAME_PADDING_BYTES
from penstock.wire.client.lookup import Lookup, Owner, host_with_port, parse_host_and_port, parse_service_url
from penstock.wire.codec import CommandGetOrCreateSchema, CommandPartitionedTopicMetadata, Schema

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from random import Random

    from penstock.broker.schemas.checks.model import Schema as StoredSchema
    from penstock.broker.subscriptions.replicating import SubscribedReplicator
    from penstock.core.names import TopicName
    from penstock.net.http_request import Streams
    from penstock.stats.expiry import Expiry
    from penstock.wire.client.frames import Body
    from penstock.wire.client.lookup import Address
    from penstock.wire.client.producer import Producer

    T = TypeVar("T")
    # A broker, and the proxy in front of it, if there is one.
    Place: TypeAlias = tuple[Address, Address | None]

log = logging.getLogger(__name__)

# Time to connect, to look up a topic, to open a producer: each.
ANSWER_S: Final = 15.0
# Pauses of a cluster that is down, and of a topic that is refused there.
FIRST_PAUSE_S: Final = 0.5
LAST_PAUSE_S: Final = 60.0
# Replicators that go on in one turn of the loop, and receipts that are handled in one.
RESUMED_PER_TURN: Final = 50
EVENTS_PER_TURN: Final = 200
# Topics whose partitions were compared; all are compared again when there are more.
MADE_MAX: Final = 20_000
# Of the command before an entry, and what a replicator adds to its metadata.
ADDED_BYTES_MAX: Final = 1 * KIB
# How often an admin port may pass a request on to another one: brokers of Apache Pulsar do it for what they do not own.
REDIRECTS_MAX: Final = 5
_REDIRECTS: Final = frozenset({HTTPStatus.FOUND, HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT})
# Of the answer of an admin port, as it stands in an error.
_SAID_BYTES_MAX: Final = 1 * KIB
_WEB_PORTS: Final = {"http": 80, "https": 443}
# Members of a cluster that this broker's own settings stand in for.
_TOGETHER: Final = (
    ("authenticationPlugin", "authenticationParameters"),
    ("brokerClientCertificateFilePath", "brokerClientKeyFilePath"),
    ("brokerClientTrustCertsFilePath",),
)


class RemoteProblem(PenstockError):
    """Another cluster, or what is set about it, is not as it has to be; the message says how."""


@dataclass(frozen=True, slots=True)
class RemoteUrls:
    """Addresses of a cluster, as they were set."""

    service: tuple[Address, ...]
    web: str  # of its admin port; empty: not known

    @classmethod
    def of(cls, name: str, data: Mapping[str, Any]) -> RemoteUrls:
        """Read them from the data of a cluster. Raises RemoteProblem."""
        tls = bool(data.get("brokerClientTlsEnabled"))
        urls = [data.get("brokerServiceUrlTls"), data.get("brokerServiceUrl")]
        webs = [data.get("serviceUrlTls"), data.get("serviceUrl")]
        if not tls:
            urls, webs = urls[::-1], webs[::-1]
        url = next((one for one in urls if one), None)
        if url is None:
            raise RemoteProblem(f"cluster {name} has no brokerServiceUrl: set it with clusters update")
        try:
            return cls(parse_service_url(url), next((one for one in webs if one), ""))
        except ValueError as error:
            raise RemoteProblem(f"cluster {name}: {error}") from None


class Link:
    """A connection to one broker of another cluster, and the replicators that use it."""

    def __init__(self, client: AsyncClient, peer: str) -> None:
        """Args: peer: address of the broker, for people."""
        self.client = client
        self.peer = peer
        self.replicators: dict[int, SubscribedReplicator] = {}
        self._ids = count()
        self._task = asyncio.get_running_loop().create_task(self._hear())

    @property
    def is_over(self) -> bool:
        return self.client.is_over

    @property
    def entry_bytes_max(self) -> int:
        """The largest entry that the broker takes, before something is added to its metadata."""
        connected = self.client.connection.connected
        assert connected is not None, "shaken hands"
        return connected.message_bytes_max + FRAME_PADDING_BYTES - ADDED_BYTES_MAX

    def add(self, replicator: SubscribedReplicator) -> int:
        """Pass events of one more producer on; returns its id."""
        producer_id = next(self._ids)
        self.replicators[producer_id] = replicator
        return producer_id

    def close_producer(self, producer: Producer) -> None:
        """Pass no more events on, and close it there."""
        self.replicators.pop(producer.producer_id, None)
        if not self.is_over:
            self.client.connection.close_producer(producer)
            self.client.flush()

    async def close(self) -> None:
        self.client.close()
        self._task.cancel()
        await asyncio.wait((self._task,))
        await self.client.closed()

    async def _hear(self) -> None:
        handled = 0
        try:
            while True:
                event = await self.client.next_event()
                if isinstance(event, Receipt):
                    if (replicator := self.replicators.get(event.producer_id)) is not None:
                        replicator.receipt()
                elif isinstance(event, ProducerClosed):
                    self._failed(event.producer_id, RemoteProblem("the topic was unloaded or deleted there"))
                elif isinstance(event, SendFailed):
                    self._failed(event.producer_id, event.error)
                handled += 1
                if handled % EVENTS_PER_TURN == 0:
                    await asyncio.sleep(0)
        except (OSError, PenstockError) as error:
            for producer_id in list(self.replicators):
                self._failed(producer_id, error)

    def _failed(self, producer_id: int, error: Exception) -> None:
        replicator = self.replicators.pop(producer_id, None)
        if replicator is not None:
            replicator.failed(error)


class _Web(NamedTuple):
    host: str
    port: int
    tls: bool


class Remote:
    """One other cluster. All methods are called on the event loop.

    Attributes:
        name: of the cluster.
        problem: why it cannot be reached; None: it can, as far as known.
        since_ns: since when.
    """

    def __init__(
        self,
        name: str,
        data: Mapping[str, Any],
        *,
        defaults: Mapping[str, Any],
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        now_ns: Callable[[], int],
        chance: Random,
    ) -> None:
        """Receive what this uses.

        Args:
            name: of the cluster.
            data: as an administrator has set it.
            defaults: credentials and files of this broker, for what is not set there.
            in_thread: calls something that reads files.
            now_ns: the monotonic clock.
            chance: of pauses.
        """
        self.name, self.data = name, data
        self._defaults = defaults
        self.problem: str | None = None
        self.since_ns = 0
        self._in_thread = in_thread
        self._now_ns = now_ns
        self._pauses = Backoff(chance, first_s=FIRST_PAUSE_S, last_s=LAST_PAUSE_S)
        self._access: tuple[RemoteUrls, OwnCredentials, ssl.SSLContext | None] | None = None
        self._links: dict[Place, Link] = {}
        self._opening: dict[Place, asyncio.Task[Link]] = {}
        self._made: dict[str, int] = {}  # partitions that were compared, by topic
        self._waiting: dict[SubscribedReplicator, None] = {}
        self._trying: asyncio.Task[None] | None = None  # while it is down
        self._closed = False

    # -- down and back ------------------------------------------------------------------------------------------------

    def down(self, error: Exception, replicator: SubscribedReplicator) -> None:
        """The cluster could not be reached: resume this replicator when it can."""
        if self._closed:
            return
        self._waiting[replicator] = None
        if self.problem is None:
            self.since_ns = self._now_ns()
            log.warning("cluster %s cannot be reached, trying again: %s", self.name, said(error))
        self.problem = said(error)
        if self._trying is None:
            self._trying = asyncio.get_running_loop().create_task(self._try_again())

    def forget(self, replicator: SubscribedReplicator) -> None:
        """Do not resume it."""
        self._waiting.pop(replicator, None)

    async def _try_again(self) -> None:
        while True:
            await asyncio.sleep(self._pauses.next_s())
            try:
                await self._service()
            except (OSError, PenstockError, TimeoutError) as error:
                self.problem = said(error)
            else:
                break
        self._trying, self.problem = None, None
        self._pauses.reset()
        log.info("cluster %s is reached again", self.name)
        while self._waiting:
            for replicator in list(self._waiting)[:RESUMED_PER_TURN]:
                self._waiting.pop(replicator, None)
                replicator.resume()
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        tasks = [*self._opening.values(), *([self._trying] if self._trying is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for link in self._links.values():
            await link.close()
        self._links.clear()

    # -- connections --------------------------------------------------------------------------------------------------

    async def link(self, topic: str) -> Link:
        """Return a link to the broker that serves a topic there. Raises OSError, TimeoutError, PenstockError."""
        asked, client = await self._service()
        lookup = Lookup(topic)
        while True:
            body: Body = lookup.question(asked)
            found = lookup.answered(await client.request(body, f"looking up {topic}", timeout_s=ANSWER_S))
            if isinstance(found, Owner):
                return await self._linked((found.address, found.through))
            asked = found.address
            client = (await self._linked((asked, None))).client

    async def _service(self) -> tuple[Address, AsyncClient]:
        """Return the first address of the service URL that answers, and a connection to it."""
        urls, _, _ = await self._reached_by()
        error: Exception = RemoteProblem(f"cluster {self.name} has no address")
        for address in urls.service:
            try:
                return address, (await self._linked((address, None))).client
            except (OSError, TimeoutError, PenstockError) as failed:
                error = failed
        raise error

    async def _linked(self, place: Place) -> Link:
        link = self._links.get(place)
        if link is not None and not link.is_over:
            return link
        opening = self._opening.get(place)
        if opening is None:
            opening = self._opening[place] = asyncio.get_running_loop().create_task(self._connect(place))
            opening.add_done_callback(lambda done: self._connected(place, done))
        return await asyncio.shield(opening)

    def _connected(self, place: Place, done: asyncio.Task[Link]) -> None:
        self._opening.pop(place, None)
        if not done.cancelled() and done.exception() is None:
            self._links[place] = done.result()

    async def _connect(self, place: Place) -> Link:
        address, through = place
        _, own, tls = await self._reached_by()
        to = through or address
        hello = Hello(
            auth_method=own.method,
            features=FEATURES | {"supports_repl_dedup_by_lid_and_eid"},
            proxy_to_broker_url=host_with_port(address.host, address.port) if through is not None else "",
        )
        connection = ClientConnection(hello, credentials=lambda _challenge: own.read())
        context = tls if to.tls else None
        client = await AsyncClient.open(to.host, to.port, connection, tls=context, timeout_s=ANSWER_S)
        return Link(client, str(address))

    async def _reached_by(self) -> tuple[RemoteUrls, OwnCredentials, ssl.SSLContext | None]:
        if self._access is None:
            self._access = await self._in_thread(self._read_access)
        assert self._access is not None
        return self._access

    def expiries(self) -> Iterator[Expiry]:
        """Yield when the certificate and the token that are shown to it expire. Reads files."""
        if self._access is not None:
            _, own, tls = self._access
            yield from of_contexts([(f"cluster {self.name}", tls)])
            yield from of_credentials(f"cluster {self.name}", own)

    def _read_access(self) -> tuple[RemoteUrls, OwnCredentials, ssl.SSLContext | None]:
        """Read files that the cluster's data names. Raises RemoteProblem."""
        data, what = completed(self.data, self._defaults), f"cluster {self.name}"
        urls = RemoteUrls.of(self.name, data)
        try:
            method = authentication_method(data.get("authenticationPlugin") or "none")
            own = own_credentials("authentication", method, data.get("authenticationParameters") or "")
            web = urls.web.startswith("https")
            tls = _tls_context(data) if web or any(one.tls for one in urls.service) else None
        except (ConfigurationError, ValueError) as error:
            raise RemoteProblem(f"{what}: {error}") from None
        return urls, own, tls

    # -- topics and schemas -------------------------------------------------------------------------------------------

    async def make_topic(self, name: TopicName, partitions: int) -> None:
        """Make a topic as it is here, as far as the first producer does not.

        Args:
            name: of the topic, or of a partition.
            partitions: of its topic here; 0: it has none.

        Raises:
            OSError, TimeoutError, PenstockError: it was not compared, or cannot be made.
        """
        text = str(name.parent)
        if self._made.get(text) == partitions:
            return
        there = await self._partitions(text)
        if there and not partitions:
            raise RemoteProblem(
                f"{text} has {there} partitions at cluster {self.name}, and none here: delete one of them"
            )
        if partitions > there:
            target = f"/admin/v2/{name.domain}/{name.tenant}/{name.namespace}/{quote(name.parent.local, safe='')}"
            status, words = await self._ask_web("POST" if there else "PUT", f"{target}/partitions", b"%d" % partitions)
            if status not in {HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.CONFLICT}:
                raise RemoteProblem(
                    f"{text} cannot be given {partitions} partitions at cluster {self.name}: status {status}, {words}"
                )
            if await self._partitions(text) < partitions:
                raise RemoteProblem(f"{text} exists without {partitions} partitions at cluster {self.name}: delete it")
        if len(self._made) >= MADE_MAX:
            self._made.clear()
        self._made[text] = partitions

    def compare_again(self, name: TopicName) -> None:
        """The topic, or one of its partitions, may not be there any more."""
        self._made.pop(str(name.parent), None)

    async def _partitions(self, topic: str) -> int:
        _, client = await self._service()
        body = CommandPartitionedTopicMetadata(topic=topic, request_id=0, metadata_auto_creation_enabled=False)
        try:
            answer = await client.request(body, f"asking for the partitions of {topic}", timeout_s=ANSWER_S)
        except RequestRefused as error:
            if error.code == WireCode.TOPIC_NOT_FOUND:
                return 0
            raise
        return int(answer.partitions)

    async def register(self, link: Link, topic: str, schema: StoredSchema) -> bytes:
        """Register a schema there, and return its version. Raises OSError, TimeoutError, PenstockError."""
        body = CommandGetOrCreateSchema(request_id=0, topic=topic)
        body.schema.CopyFrom(Schema(name="", schema_data=schema.data, type=NUMBERS[schema.type]))  # type: ignore[arg-type]
        for key, value in schema.properties.items():
            body.schema.properties.add(key=key, value=value)
        answer = await link.client.request(body, f"registering a schema of {topic}", timeout_s=ANSWER_S)
        return bytes(answer.schema_version)

    async def _ask_web(self, method: str, target: str, body: bytes) -> tuple[int, str]:
        urls, own, tls = await self._reached_by()
        if not urls.web:
            raise RemoteProblem(
                f"cluster {self.name} has no serviceUrl, which is needed to make partitioned topics there: set it with "
                f"clusters update, or make them"
            )
        try:
            web = _parse_web(urls.web)
        except ValueError as error:
            raise RemoteProblem(f"cluster {self.name}: serviceUrl: {error}") from None
        headers = [("content-type", "application/json"), *own.http_headers()]
        for _ in range(1 + REDIRECTS_MAX):
            status, words, location = await self._ask_once(web, tls, method, target, headers, body)
            if status not in _REDIRECTS:
                return status, words
            web, target = self._redirected(web, location)
        raise RemoteProblem(
            f"the admin port of cluster {self.name} passed a request on {REDIRECTS_MAX} times, and did not answer it"
        )

    async def _ask_once(
        self,
        web: _Web,
        tls: ssl.SSLContext | None,
        method: str,
        target: str,
        headers: list[tuple[str, str]],
        body: bytes,
    ) -> tuple[int, str, str]:
        """Return status, body and location of an answer. Raises ConnectionError."""

        async def connect() -> Streams:
            return await asyncio.open_connection(web.host, web.port, limit=HEAD_BYTES_MAX, ssl=tls if web.tls else None)

        words = b""
        try:
            async with send(
                connect, method, target, headers, body, host=host_with_port(web.host, web.port), within_s=ANSWER_S
            ) as response:
                async for piece in response.body:
                    words = (words + piece)[:_SAID_BYTES_MAX]
                location = next(iter(response.values("location")), "")
                return response.status, words.decode("utf-8", "replace"), location
        except NoResponse as error:
            raise ConnectionError(f"the admin port of cluster {self.name} does not answer: {error}") from error

    def _redirected(self, web: _Web, location: str) -> tuple[_Web, str]:
        """Return where a request is to be sent instead, and its target. Raises RemoteProblem.

        Our credentials go there, too, so never from TLS to an address without.
        """
        try:
            to = _parse_web(location)
        except (ValueError, KeyError):
            to = None
        target = f"/{location.partition('://')[2].partition('/')[2]}"
        if to is None or (web.tls and not to.tls) or not target.isprintable() or " " in target:
            raise RemoteProblem(f"the admin port of cluster {self.name} redirects to {location[:200]!r}")
        return to, target


def completed(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a cluster with defaults for what it does not say. Members of one thing stay together."""
    missing = [together for together in _TOGETHER if not any(data.get(member) for member in together)]
    return {**data, **{member: defaults[member] for one in missing for member in one if member in defaults}}


def said(error: BaseException) -> str:
    """Return what an error says; some of asyncio say nothing."""
    return str(error) or f"no answer within {ANSWER_S:g} s"


def _tls_context(data: Mapping[str, Any]) -> ssl.SSLContext:
    import ssl  # noqa: PLC0415 -- clusters without TLS need none of it

    certificate, key = data.get("brokerClientCertificateFilePath"), data.get("brokerClientKeyFilePath")
    trust = data.get("brokerClientTrustCertsFilePath")
    context = client_context(
        Path(trust) if trust else None,
        check_hostname=not data.get("tlsAllowInsecureConnection"),
        certificate=Path(certificate) if certificate else None,
        key=Path(key) if key else None,
    )
    if data.get("tlsAllowInsecureConnection"):
        context.verify_mode = ssl.CERT_NONE
    return context


def _parse_web(url: str) -> _Web:
    """Return the first address of a URL of an admin port. Raises ValueError."""
    scheme, _, rest = url.strip().partition("://")
    host, port = parse_host_and_port(rest.partition("/")[0].split(",")[0].strip(), _WEB_PORTS[scheme])
    return _Web(host, port, scheme == "https")

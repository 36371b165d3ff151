# SPDX-License-Identifier: Apache-2.0
"""One client of a proxy: its handshake, and then lookups or the connection to a broker.

CONNECT without `proxy_to_broker_url` begins lookups, which the proxy answers itself (`lookups`). With it, the client is
connected to that broker (`relay`).
Where: a `net.Connection` passes events to it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import PenstockError, ServiceNotReady, WireCode
from penstock.governance.holds import HoldKind
from penstock.net.keep_alive import KeepAlive, Requests
from penstock.proxy.client_identity import NO_REQUEST, ClientIdentity
from penstock.proxy.greeting import largest_message
from penstock.proxy.lookups import TEXT_CHARS_MAX, Lookups
from penstock.proxy.relay import Relay, write_list
from penstock.proxy.relayed_watchers import RelayedWatchers
from penstock.wire import bounds, codec
from penstock.wire.client.events import RequestRefused
from penstock.wire.codec import BaseCommand
from penstock.wire.events import Command, RefusedCommand

if TYPE_CHECKING:
    from penstock.governance.memory_pool import Lease
    from penstock.net.connection import Connection
    from penstock.proxy.proxy import Services
    from penstock.proxy.relay import OwnList
    from penstock.wire.events import Event

log = logging.getLogger(__name__)

# After so many keep-alive intervals in which nothing comes from either side, both are taken for lost.
SILENT_INTERVALS: Final = 4
# What commands of watchers are called in counts.
WATCHERS: Final = "watchers"
STOPPING: Final = "the proxy is stopping"


class Session:
    """The proxy's view of one connected client."""

    def __init__(self, connection: Connection, services: Services) -> None:
        self.connection = connection
        self.relay: Relay | None = None  # once it is connected to a broker, or about to be
        self.client_version = ""
        self._lookups: Lookups | None = None
        self._watchers: RelayedWatchers | None = None  # once the client watches topics
        self._connecting = False
        self._services = services
        self.requests = Requests(
            connection,
            loop=services.loop,
            commands_memory=services.commands_memory,
            sessions_memory=services.sessions_memory,
            reply=self.reply,
        )
        self.client = ClientIdentity(connection, services, self.requests, self.reply)
        self._keep_alive = KeepAlive(connection, services.limits, services.clock.monotonic_ns())
        self._came = (0, 0)  # reads from the client and from its broker, at the last look
        self._silent_since_ns = 0
        self._excused_ns = 0
        self._gone: asyncio.Event | None = None  # while it is drained
        connection.admit()

    @property
    def waiting_bytes(self) -> int:
        """Bytes charged for pending commands."""
        return self.requests.waiting_bytes

    # -- called by the connection -------------------------------------------------------------------------------------

    def received(self, events: list[Event], lease: Lease | None) -> None:
        """Handle the events of one read, in order."""
        if self.relay is not None and self.relay.is_connected:
            self.relay.client_sent(events, lease)
            return
        for event in events:
            if type(event) is Command:
                self._on_command(event)
            elif type(event) is RefusedCommand:
                self._refuse(event)
            else:
                self.connection.close("protocol error: a command that is not one of a lookup")
            if not self.connection.is_open:
                break
        if lease is not None:
            self._services.release(lease)

    def drained(self) -> None:
        """Sent bytes have left room: the broker may send more."""
        if self.relay is not None:
            self.relay.resume()

    def closed(self, reason: str) -> None:
        """The connection is closed: so is the one to the broker."""
        if self._gone is not None:
            self._gone.set()
        self.requests.close()
        self.client.close()
        if self._watchers is not None:
            self._watchers.close()
            self._watchers = None
        if self.relay is not None:
            self.relay.close(reason)
        self._services.closed(self, reason)
        # No cycle is left: the garbage collector would find it in hours, after thousands of other clients.
        self.relay = self._lookups = None
        del self.client

    async def drain(self) -> None:
        """Read nothing more. Return when what was read is answered, and the client has received it and is gone."""
        if not self.connection.is_open:
            return
        self._gone = asyncio.Event()
        self.connection.mute(HoldKind.STOPPING)
        if self.relay is not None and self.relay.is_connected:
            await self.relay.drain()
        await self.requests.finished()
        self.connection.part(STOPPING)
        await self._gone.wait()

    def drop_held(self) -> int:
        """Drop SENDs that wait for a limit, while it is drained; returns how many."""
        return self.relay.sends.drop_held() if self.relay is not None else 0

    # -- keep-alive ---------------------------------------------------------------------------------------------------

    def check_alive(self, now_ns: int) -> None:
        """Close the connection if the client does not answer.

        When it is connected to a broker, the two of them see to that themselves, unless neither is there any more.
        """
        if self.relay is None or not self.relay.is_connected:
            self._keep_alive.check(now_ns, connected=self._lookups is not None)
        else:
            self._check_silence(self.relay, now_ns)
        if self._lookups is not None or (self.relay is not None and self.relay.is_connected):
            self.client.check(now_ns)

    def _check_silence(self, relay: Relay, now_ns: int) -> None:
        """Close the connection if the client and the broker are silent: each of them sends a PING at each interval."""
        keep_alive_ns = self._services.limits().keep_alive_ns
        if self._watchers is not None:
            self._watchers.check(now_ns, keep_alive_ns)
            if not self.connection.is_open:
                return
        came, muted = (self.connection.read_count, relay.read_count), self.connection.muted
        if muted.but_for(HoldKind.OUTBOUND) and now_ns - self._excused_ns > keep_alive_ns // 2:
            # What the client answers to PINGs is not read: the broker would take it for lost.
            self._excused_ns = now_ns
            relay.excuse()
        if came != self._came or muted or not self._silent_since_ns:
            self._came, self._silent_since_ns = came, now_ns
        elif now_ns - self._silent_since_ns > SILENT_INTERVALS * keep_alive_ns:
            self.connection.close(
                "neither the client nor its broker has sent anything for several keep-alive intervals"
            )

    # -- commands -----------------------------------------------------------------------------------------------------

    def _on_command(self, command: Command) -> None:
        kind: int = command.type
        body: Any = command.body
        self.requests.command_bytes = command.nbytes
        if kind == BaseCommand.CONNECT:
            self._on_connect(body)
        elif kind == BaseCommand.AUTH_RESPONSE and self.client.identity is not None:
            self.client.answered(body, self._answer_broker)
        elif self.relay is not None:
            self.connection.close("protocol error: a command before CONNECTED")
        elif kind == BaseCommand.PING:
            self.reply(codec.pong())
        elif kind == BaseCommand.PONG:
            self._keep_alive.answered()
        elif self._lookups is None:
            self.connection.close("protocol error: a command before CONNECTED")
        elif not self._lookups.handle(kind, body):
            self.connection.close(f"protocol error: command {kind} of a client that is not connected to a broker")

    def _on_connect(self, body: codec.CommandConnect) -> None:
        # A client that has asked its lookups may go on to a broker over the same connection.
        if self._connecting or self.relay is not None or (self._lookups is not None and not body.proxy_to_broker_url):
            self.connection.close("CONNECT came twice")
            return
        self.client_version = body.client_version
        self._connecting = True
        self.requests.start(NO_REQUEST, partial(self._connect, body))

    async def _connect(self, body: codec.CommandConnect) -> None:
        try:
            await self.client.authenticate(body)
            if body.proxy_to_broker_url:
                target = self._services.targets.target(body.proxy_to_broker_url)
                self.relay = Relay(self.connection, self._services, target, self.client, self._list_topics)
                await self.relay.open(body)
                return
            lookups = Lookups(self, self._services, self.client)
            connected = await lookups.open()
        except PenstockError as error:
            self._refuse_connect(error)
            return
        finally:
            self._connecting = False
        self._lookups = lookups
        version = min(connected.protocol_version, body.protocol_version)
        self.reply(
            codec.connected(
                connected.server_version,
                version,
                min(connected.message_bytes_max, largest_message(self._services.frame_bytes_max)),
                topic_watchers=connected.features.supports_topic_watchers,
            )
        )

    def _refuse_connect(self, error: PenstockError) -> None:
        said, code = (error.said, error.code) if isinstance(error, RequestRefused) else (str(error), error.wire_code)
        if isinstance(error, ServiceNotReady):
            code = WireCode.SERVICE_NOT_READY
        reason = error if isinstance(error, ServiceNotReady) else error.__cause__ or error
        log.warning("connection %s is refused: %s", self.connection.peer, str(reason)[:TEXT_CHARS_MAX])
        self.reply(codec.error(NO_REQUEST, code, said[:TEXT_CHARS_MAX]))
        self.connection.close_after_flush(f"refused: {error}")

    def _refuse(self, refused: RefusedCommand) -> None:
        """Answer a command that exceeds a bound, or close the connection if it has no answer."""
        self._services.traffic.refuse(self.connection.peer.rpartition(":")[0], refused.type)
        answer = bounds.answer(refused)
        if answer is None:
            self.connection.close(refused.text)
            return
        self.reply(answer)
        if refused.type == BaseCommand.CONNECT:
            self.connection.close_after_flush(refused.text)

    def reply(self, frame: bytes) -> None:
        """Send a frame of the proxy's own."""
        if self.relay is not None and self.relay.is_connected:
            self.relay.say(frame)
        else:
            self.connection.write_frame(frame)

    async def send_list(self, listed: OwnList) -> None:
        """Send a list of topics; returns when it is queued. It is released when the client has it, or is gone."""
        if self.relay is not None and self.relay.is_connected:
            await self.relay.lists.send(listed)
        else:
            write_list(self.connection, listed)

    def _list_topics(self, command: Command) -> None:
        """A client that is connected to a broker asks for topics, or watches them."""
        assert self.relay is not None
        self.requests.command_bytes = command.nbytes
        lookups = Lookups(self, self._services, self.client)
        if lookups.handle(command.type, command.body):
            return
        if self._watchers is None:
            self._watchers = RelayedWatchers(
                self.connection,
                self._services,
                self.client,
                self.relay.target,
                send_list=self.send_list,
                reply=self.reply,
                end=self.relay.end,
            )
        watching = command.type == BaseCommand.WATCH_TOPIC_LIST
        handler = self._watchers.watch if watching else self._watchers.stop_watching
        lookups.start(handler, WATCHERS, command.body)

    def _answer_broker(self, body: codec.CommandAuthResponse) -> None:
        """Answer a challenge of the client's broker. Without a broker there was none."""
        if self.relay is not None:
            self.relay.answer_challenge(body)

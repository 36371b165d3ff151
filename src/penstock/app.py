# SPDX-License-Identifier: Apache-2.0
"""Composition root: builds the parts, connects them, and closes them.

Where: `penstock serve` calls `run`; all other parts receive what they need from here.

Start order: settings are checked, the data directory is opened and locked, the log is recovered, the catalog is loaded,
ports are bound, and when the log can be written the ready line is printed. Stopping is the reverse.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import shutil
import signal
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from penstock.admin.gateway import BrokerGateway
from penstock.admin.server import AdminServer
from penstock.broker.broker import Broker
from penstock.broker.commands.sessions import refusal
from penstock.broker.composition.commands import commands
from penstock.broker.limits import LimitsInForce
from penstock.core.errors import ConfigurationError, PersistenceFailed
from penstock.core.membership import alone, broker_name
from penstock.governance.budget import Budget, Row
from penstock.governance.outbound import Outbound
from penstock.governance.request_memory import RequestMemory
from penstock.governance.request_values import LENGTH_BYTES, RequestLimits
from penstock.net.clock import SystemClock
from penstock.net.listener import RESERVED_DESCRIPTORS, Connections, Listener
from penstock.net.loop_turns import LoopTurns, timed_loop
from penstock.net.posted_calls import PostedCalls
from penstock.net.stopping import Signals
from penstock.net.tls import TlsOptions, server_context
from penstock.processes.end_of_process import EXIT_START_AGAIN, Ending, end_within, start_again, start_again_within
from penstock.processes.removal import leave_out_brokers
from penstock.processes.service_manager import tell_ready, tell_stopping
from penstock.processes.sockets import (
    addresses,
    bound,
    close_rest,
    keep_open,
    open_sockets,
    set_up_interpreter,
    started,
)
from penstock.processes.start_line import start_line
from penstock.settings.limits import Live, http_limits, log_limits, provider_options, tls_options
from penstock.stats.disk_space import DiskUse
from penstock.storage.catalog import Catalog
from penstock.storage.directory import open_data_directory
from penstock.storage.entry_log import EntryLog
from penstock.storage.files import OsFiles
from penstock.storage.snapshots import Snapshots
from penstock.storage.topic_data import create_for_new_broker
from penstock.telemetry.logs import set_up_logging
from penstock.wire.bounds import Bounds

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
    from pathlib import Path

    from penstock.admin.server import HttpLimits
    from penstock.authentication.authenticator import Authenticator
    from penstock.broker.administration.administration import Administration
    from penstock.broker.administration.copies import Copies
    from penstock.broker.configuration import Keys
    from penstock.broker.stats.snapshot import BrokerSnapshot
    from penstock.core.membership import Membership
    from penstock.core.service_urls import Addresses, ServiceUrls
    from penstock.net.peers import Peers
    from penstock.net.usage_topic import Reporting
    from penstock.net.zookeeper import ZooKeeperMembers
    from penstock.processes.sockets import Sockets
    from penstock.processes.supervisor import Handover
    from penstock.settings import Settings
    from penstock.storage.shared_writer import Follower

T = TypeVar("T")

log = logging.getLogger(__name__)

# A disk that cannot be written at the start is tried again with this pause.
WRITABLE_RETRY_S: Final = 0.5
# A log that failed for good has nothing left to finish; clients wait for the next start.
HEALING_STOP_S: Final = 2.0
# If the loop does not answer within this time, a push of metrics is skipped.
SNAPSHOT_S: Final = 5.0
# A log that cannot be read at the start is tried again this often, with this pause.
OPEN_TRIES_MAX: Final = 11
OPEN_RETRY_S: Final = 1.0
# Minimum of open files: below this, hardly any client could connect (40 clients, and the broker's own files).
DESCRIPTORS_MIN: Final = RESERVED_DESCRIPTORS * 3 // 2


def run(settings: Settings, data_dir: Path, *, watch: Callable[[Serving], None] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status. `watch` is called on the loop when clients may connect.

    Raises:
        ConfigurationError: a setting, a port or the data directory cannot be used.
    """
    set_up_logging(settings.log_format, settings.log_level)
    log.info("%s", start_line(settings, f"one broker, data in {data_dir.resolve()}"))
    for warning in settings.warnings:
        log.warning("%s", warning)
    leave_out_brokers(settings, data_dir, 1)

    def ready(serving: Serving) -> None:
        tell_ready(serving.url, serving.admin_url)
        if watch is not None:
            watch(serving)

    ending = Ending()
    _run(partial(_serve, settings, data_dir, ready, ending, (signal.SIGTERM, signal.SIGINT), start_again))
    if ending.again:
        start_again()
    return 0


def run_one_of_many(handover: Handover, control: socket.socket) -> int:
    """Serve as one of several brokers until the supervisor says so, or is gone; returns the exit status.

    Raises:
        ConfigurationError: a setting or the data directory cannot be used.
    """
    from penstock.processes.supervisor import READY, watch_parent  # noqa: PLC0415 -- a single broker needs none of it

    settings = handover.settings
    set_up_logging(settings.log_format, settings.log_level, broker=handover.number)
    # At a terminal, Ctrl-C is sent to all processes; the supervisor alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def ready(_serving: Serving) -> None:
        watch_parent(asyncio.get_running_loop(), control)
        control.send(READY)

    def leave() -> None:
        os._exit(EXIT_START_AGAIN)  # The supervisor starts it again.

    ending = Ending()
    _run(partial(_serve, settings, handover.data_dir, ready, ending, (signal.SIGTERM,), leave, handover))
    return EXIT_START_AGAIN if ending.again else 0


def _run(serve: Callable[..., Coroutine[None, None, None]]) -> None:
    set_up_interpreter()
    turns = LoopTurns()
    with asyncio.Runner(loop_factory=lambda: timed_loop(turns, SystemClock())) as runner:
        runner.run(serve(turns=turns))


async def _serve(
    settings: Settings,
    data_dir: Path,
    ready: Callable[[Serving], None],
    ending: Ending,
    stops: Sequence[signal.Signals],
    leave: Callable[[], object],
    handover: Handover | None = None,
    *,
    turns: LoopTurns,
) -> None:
    """Serve until it is to end. `leave` ends a process that must start again and hangs."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(Signals(loop))
        for signum in stops:
            signals.on(signum, ending.stop)
        gc.disable()  # Loading a large catalog creates only long-lived objects.
        serving = await start(settings, data_dir, stack, ending.stop, turns, handover, ending.start_again)
        signals.on(signal.SIGHUP, serving.reload)
        await _first_done(serving.writable(), ending.asked.wait())
        if not ending.asked.is_set():
            ready(serving)
        started()
        await ending.asked.wait()
        log.info("stopping: clients are told, what was accepted is finished")
        if ending.again:
            if handover is None:
                serving.keep_ports()
            start_again_within(HEALING_STOP_S, leave, lambda: ending.again and not signals.unheard(stops))
        else:
            stop_s = serving.stop_s_max()
            if handover is None:
                tell_stopping(stop_s)
            end_within(stop_s, f"brokerShutdownTimeoutMs={stop_s * 1000:.0f}")
    log.info("stopped")


@dataclass(frozen=True, slots=True)
class Serving:
    """Addresses and controls of a running broker."""

    url: str
    admin_url: str
    reload: Callable[[], None]  # reads certificates, keys and users again
    stop_s_max: Callable[[], float]  # maximum duration of closing
    writable: Callable[[], Coroutine[Any, Any, None]]  # returns when the log can take an entry and sync it
    keep_ports: Callable[[], None]  # leaves them open for the program that replaces this one
    look: Callable[[], Coroutine[Any, Any, BrokerSnapshot]]  # returns a view of the whole broker
    copies: Callable[[], Copies]  # to call on the loop


async def start(
    settings: Settings,
    data_dir: Path,
    stack: contextlib.AsyncExitStack,
    shut_down: Callable[[], None] | None = None,
    turns: LoopTurns | None = None,
    handover: Handover | None = None,
    heal: Callable[[], None] | None = None,
) -> Serving:
    """Build all parts on the running loop and serve; closing `stack` stops and releases everything.

    `shut_down` is called when an administrator stops the broker; its owner then closes `stack`. Without it,
    administrators cannot stop this broker. `turns` measures the loop, if given. `handover` comes from the supervisor of
    several brokers, for one of them. `heal` is called when the disk has failed for good and works again, to end this
    process and start another; without it, a person does that.

    Raises:
        ConfigurationError: a setting, a port or the data directory cannot be used.
    """
    _check_descriptors()
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    number = handover.number if handover is not None else 0
    posted = PostedCalls(loop)
    stack.callback(posted.close)
    storage = await _opened(settings, data_dir, handover, clock, posted.post, stack)
    peers = _peers(handover) if handover is not None else None
    live = Live(settings)
    limits = LimitsInForce(live.limits)
    http = http_limits(settings, descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    connections = Connections(
        loop=loop,
        memory=_request_memory(settings),
        outbound=Outbound(settings.budget.rows["outbound"], entry_bytes_max=settings.frame_bytes_max),
        clock=clock,
        # The request memory counts whole frames, including the length field.
        frame_bytes_max=settings.frame_bytes_max - LENGTH_BYTES,
        bounds=Bounds(schema_bytes_max=settings.schema_bytes_max),
        admit=partial(refusal, limits),
        reserved_descriptors=http.connections_max + (2 * len(handover.peers) if handover is not None else 0),
        flush_soon=posted.flush_soon,
    )
    budget = Budget(limits.now.memory_rows)
    async with contextlib.AsyncExitStack() as binding:
        opened = handover.sockets() if handover is not None else open_sockets(settings)
        binding.callback(opened.close)
        close_rest()
        ports, where = (
            _ports(settings, opened, connections, http, budget.row("http"), binding),
            addresses(settings, opened, number, alone=handover is None),
        )
        registry = _registry(settings, handover, where, clock)
        broker = Broker(
            entry_log=storage.entry_log,
            catalog=storage.catalog,
            connections=connections,
            limits=limits,
            clock=clock,
            loop=loop,
            keys=live,
            apply_elsewhere=_apply_log_level,
            authenticator=_authenticator(settings),
            snapshots=storage.snapshots,
            addresses=where,
            membership=storage.membership,
            peers=peers,
            reporting=_reporting(handover) if handover is not None else None,
            registry=registry,
            budget=budget,
            loop_turns=turns,
            shut_down=shut_down,
            start_again=heal,
            disk_use=partial(_disk_use, data_dir),
            certificates=ports.contexts,
            dispatch_soon=posted.call_soon,
            remote_defaults=_remote_defaults(settings),
        )
        if registry is not None:
            stack.push_async_callback(registry.close)
        stack.push_async_callback(broker.stop)
        stack.push_async_callback(binding.pop_all().aclose)  # No client connects any more while the broker stops.
    broker.configuration.restore()
    ports.start(broker, peers)
    storage.membership.announce(where)
    if registry is not None:
        registry.start()
    serving = _serving(
        ports,
        bound(settings, opened),
        broker,
        partial(_writable, storage.entry_log),
        partial(keep_open, settings, opened),
    )
    _push_metrics(broker, serving.url, stack)
    return serving


def _peers(handover: Handover) -> Peers:
    from penstock.net.peers import Peers  # noqa: PLC0415 -- nor without other brokers
    from penstock.processes.supervisor import inherited  # noqa: PLC0415

    return Peers(inherited(handover.peers))


def _reporting(handover: Handover) -> Reporting:
    from penstock.net.peers import dial  # noqa: PLC0415
    from penstock.net.usage_topic import Reporting  # noqa: PLC0415
    from penstock.processes.supervisor import inherited  # noqa: PLC0415

    return Reporting(dial(inherited(handover.peer_clients)), handover.usage_key)


def _registry(
    settings: Settings, handover: Handover | None, where: Addresses, clock: SystemClock
) -> ZooKeeperMembers | None:
    """Where this broker registers as one of those that share quotas. Raises ConfigurationError."""
    if settings.membership_url is None:
        return None
    if handover is None:
        log.warning(
            "membershipUrl=%s has no effect: a single broker shares its quotas with no other", settings.membership_url
        )
        return None
    from penstock.net.registration import BROKERS, registration  # noqa: PLC0415 -- nor without ZooKeeper

    return registration(
        settings.membership_url,
        BROKERS,
        name=broker_name(handover.number),
        owns=f"data directory {handover.data_dir.resolve()}",  # Only one process at a time has it locked.
        addresses=where,
        timeout_ms=settings.membership_session_timeout_ms,
        clock=clock,
    )


def _request_memory(settings: Settings) -> RequestMemory:
    return RequestMemory(
        RequestLimits(
            request_bytes_max=settings.request_bytes_max,
            requests_max=settings.requests_max,
            frame_bytes_max=settings.frame_bytes_max,
        )
    )


class Storage(NamedTuple):
    """The opened storage."""

    entry_log: EntryLog
    catalog: Catalog
    snapshots: Snapshots
    membership: Membership


async def _opened(
    settings: Settings,
    data_dir: Path,
    handover: Handover | None,
    clock: SystemClock,
    post: Callable[[Callable[[], None]], None],
    stack: contextlib.AsyncExitStack,
) -> Storage:
    """Open and lock the data directory, recover the log and load the catalog; `stack` closes them."""
    files = OsFiles()
    number = handover.number if handover is not None else 0
    directory = open_data_directory(data_dir, files, brokers=number + 1)
    create_for_new_broker(directory.topics(number), files)
    entry_log = await _open_log(
        lambda: EntryLog.open(directory.broker(number), files, log_limits(settings), post, clock=clock)
    )
    stack.callback(entry_log.close)
    shared = await _followed(handover, stack) if handover is not None else None
    membership = shared.membership if shared is not None else alone(number)
    catalog = Catalog.open(directory, post, files, broker=number, shared=shared)
    stack.callback(catalog.close)
    return Storage(entry_log, catalog, Snapshots(directory.broker(number) / "delayed", files), membership)


async def _followed(handover: Handover, stack: contextlib.AsyncExitStack) -> Follower:
    """Follow the supervisor's metadata; `stack` ends that. Without it nothing can be stored: then the process ends."""
    from penstock.net.metadata_link import follow  # noqa: PLC0415 -- nor without a supervisor
    from penstock.processes.supervisor import end_orphan  # noqa: PLC0415

    lost = contextlib.ExitStack()
    lost.callback(end_orphan)
    shared, end_link = await follow(handover.number, handover.metadata_socket(), lost.close)
    stack.callback(end_link)
    stack.callback(lost.pop_all)
    return shared


async def _open_log(opening: Callable[[], EntryLog]) -> EntryLog:
    """Open the log; retries for a while if the disk cannot be read. Raises PersistenceFailed."""
    for attempt in range(1, OPEN_TRIES_MAX + 1):
        try:
            return opening()
        except OSError as error:
            reason = f"{error.filename or ''} {error.strerror or error}".strip()
            if attempt == OPEN_TRIES_MAX:
                raise PersistenceFailed(
                    f"the entry log cannot be opened: {reason}; nothing is lost: see to the disk, then start again"
                ) from error
            log.error("the entry log cannot be opened, trying again: %s", reason)  # noqa: TRY400 -- the reason is enough
        await asyncio.sleep(OPEN_RETRY_S)
    raise AssertionError("the last attempt returns or raises")


def _disk_use(data_dir: Path) -> DiskUse:
    """Return the free space of a directory's disk. Raises OSError."""
    use = shutil.disk_usage(data_dir)
    return DiskUse(use.total, use.free)


def _apply_log_level(keys: Keys) -> None:
    logging.getLogger().setLevel(keys.values()["logLevel"].upper())


@dataclass(frozen=True, slots=True)
class Ports:
    """The servers at the broker's ports."""

    plain: Listener | None
    secure: Listener | None
    peers: Listener | None  # other brokers as clients
    admin: AdminServer
    tls: TlsOptions | None
    admin_tls: TlsOptions | None

    def contexts(self) -> tuple[tuple[str, ssl.SSLContext | None], ...]:
        """Return the TLS of the ports now, by whom they are for."""
        return ("clients", self.secure.tls if self.secure is not None else None), ("admin", self.admin.tls)

    def start(self, broker: Broker, peers: Peers | None) -> None:
        """Accept clients and admin requests."""
        open_session = commands(broker).open_session
        for listener in (self.plain, self.secure):
            if listener is not None:
                listener.start(open_session)
        if self.peers is not None:
            self.peers.start(commands(broker, for_peers=True).open_session)
        administration, for_peers = (partial(_administration, broker, for_peers=each) for each in (False, True))
        gateway = BrokerGateway(cache(administration), broker.loop, _render_metrics, for_peers=cache(for_peers))
        self.admin.start(gateway, peers)


def _ports(
    settings: Settings,
    sockets: Sockets,
    connections: Connections,
    limits: HttpLimits,
    memory: Row,
    binding: contextlib.AsyncExitStack,
) -> Ports:
    """Put a server behind each socket, without accepting; `binding` closes them. Raises ConfigurationError."""
    tls = tls_options(settings)
    context = server_context(tls) if tls is not None else None

    def listener(sock: socket.socket | None, context: ssl.SSLContext | None) -> Listener | None:
        if sock is None:
            return None
        listener = Listener(connections, sock, tls=context)
        binding.callback(listener.close)
        return listener

    plain = listener(sockets.clients, None)
    secure = listener(sockets.clients_tls, context)
    peers = listener(sockets.peer_clients, None)
    admin_tls = _admin_tls(settings, tls)
    admin = AdminServer(
        plain=sockets.web,
        loop=connections.loop,
        secure=sockets.web_tls,
        peers=sockets.peers,
        tls=server_context(admin_tls) if admin_tls is not None else None,
        limits=limits,
        memory=memory,
    )
    binding.push_async_callback(admin.stop)
    return Ports(plain, secure, peers, admin, tls, admin_tls)


async def _first_done(*what: Coroutine[Any, Any, object]) -> None:
    """Return when one of these has ended; the others are cancelled. Raises what that one raised."""
    tasks = [asyncio.ensure_future(one) for one in what]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()


async def _writable(entry_log: EntryLog) -> None:
    """Return when the disk takes data and has room. Consumers are served meanwhile, which may make room."""
    told = False
    while True:
        try:
            await asyncio.to_thread(entry_log.probe)
        except OSError as error:
            if not told:
                log.error("not ready: the entry log cannot be written: %s", error.strerror or error)  # noqa: TRY400
            told = True
            await asyncio.sleep(WRITABLE_RETRY_S)
        else:
            return


def _serving(
    ports: Ports,
    urls: ServiceUrls,
    broker: Broker,
    writable: Callable[[], Coroutine[Any, Any, None]],
    keep_ports: Callable[[], None],
) -> Serving:
    def reload() -> None:
        broker.access.reload()
        _reload_tls(((ports.tls, ports.secure), (ports.admin_tls, ports.admin)))
        if broker.expiries is not None:
            broker.expiries.measure_soon()

    async def look() -> BrokerSnapshot:
        return await _administration(broker).snapshots.take()

    # If there is only one port, its URL is used for both; a broker without admin API has no URL for it.
    web = broker.addresses.web
    for what, each in (("clients", urls), ("callers of the admin port", web)):
        if each.tls is not None:
            log.info("%s with TLS are served at %s", what, each.tls)
    url, admin_url = urls.plain or urls.tls or "", web.plain or web.tls or "-"
    return Serving(
        url, admin_url, reload, lambda: broker.limits.stop_s_max, writable, keep_ports, look, partial(_copies, broker)
    )


def _admin_tls(settings: Settings, tls: TlsOptions | None) -> TlsOptions | None:
    """TLS of the admin API, with its own TLS versions and ciphers."""
    if tls is None or settings.admin_tls_port is None:
        return None
    return replace(tls, protocols=settings.admin_tls_protocols, ciphers=settings.admin_tls_ciphers)


def _administration(broker: Broker, *, for_peers: bool = False) -> Administration:
    from penstock.broker.composition.administration import administration  # noqa: PLC0415 -- see there

    return administration(broker, for_peers=for_peers)


def _copies(broker: Broker) -> Copies:
    from penstock.broker.composition.administration import copies  # noqa: PLC0415 -- nor but for a mirror

    return copies(broker)


def _render_metrics(snapshot: BrokerSnapshot) -> Iterator[str]:
    from penstock.telemetry.prometheus import render  # noqa: PLC0415 -- imported by the first scrape

    return render(snapshot)


def _push_metrics(broker: Broker, instance: str, stack: contextlib.AsyncExitStack) -> None:
    """Push metrics to an OpenTelemetry collector, if its environment variables are set."""
    if not any(name.startswith("OTEL_") for name in os.environ):
        return
    from penstock.telemetry.otel import MetricsPush, is_wanted  # noqa: PLC0415 -- nor where nothing is pushed

    if not is_wanted(os.environ):
        return
    from penstock.telemetry.instruments import INSTRUMENTS  # noqa: PLC0415

    def take() -> BrokerSnapshot:
        snapshots = _administration(broker).snapshots
        return asyncio.run_coroutine_threadsafe(snapshots.take(), broker.loop).result(SNAPSHOT_S)

    push = MetricsPush(take, os.environ, instance, INSTRUMENTS)
    push.start()
    stack.push_async_callback(asyncio.to_thread, push.stop)


def _remote_defaults(settings: Settings) -> dict[str, str]:
    """Return what other clusters are shown if their own data says nothing, by its names there."""
    given = {
        "authenticationPlugin": settings.own_method if settings.own_method != "none" else None,
        "authenticationParameters": settings.own_parameters,
        "brokerClientTrustCertsFilePath": settings.upstream_trust_certs,
        "brokerClientCertificateFilePath": settings.own_certificate,
        "brokerClientKeyFilePath": settings.own_key,
    }
    return {member: str(value) for member, value in given.items() if value}


def _authenticator(settings: Settings) -> Authenticator | None:
    options = provider_options(settings)
    if options is None:
        return None
    from penstock.authentication.authenticator import Authenticator  # noqa: PLC0415 -- nor without authentication

    return Authenticator(options)


def _reload_tls(ports: Iterable[tuple[TlsOptions | None, Listener | AdminServer | None]]) -> None:
    """Read certificates again, for new connections; on an error, everything stays unchanged."""
    try:
        contexts = [(port, server_context(tls)) for tls, port in ports if tls is not None and port is not None]
    except ConfigurationError as error:
        log.error("certificates stay as they were: %s", error)  # noqa: TRY400 -- the message is enough
        return
    for port, context in contexts:
        port.tls = context
    if contexts:
        log.info("certificates were read again")


def _check_descriptors() -> None:
    """Raises ConfigurationError if the limit of open files is too low for clients."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit < DESCRIPTORS_MIN:
        raise ConfigurationError(
            f"this process may open {limit} files, and penstock needs {DESCRIPTORS_MIN} at least: "
            f"{RESERVED_DESCRIPTORS} for its log, an eighth for the admin port, the others for clients; raise the "
            f"limit with `ulimit -n`, or LimitNOFILE= of a systemd unit"
        )

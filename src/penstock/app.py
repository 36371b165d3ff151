# SPDX-License-Identifier: Apache-2.0
"""Composition root: builds the parts, connects them, and closes them.

Where: `penstock serve` calls `run`; all other parts receive what they need from here.

Start order: settings are checked, the data directory is opened and locked, the log is recovered, the catalog is loaded,
ports are bound, and then the ready line is printed. Stopping is the reverse.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
import threading
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from penstock.admin.gateway import BrokerGateway
from penstock.admin.server import AdminServer
from penstock.broker.broker import Broker
from penstock.broker.commands.caps import refusal
from penstock.broker.composition.commands import commands
from penstock.broker.limits_in_force import LimitsInForce
from penstock.broker.service_urls import Addresses, ServiceUrls
from penstock.core.errors import ConfigurationError, PersistenceFailed
from penstock.governance.memory_row import MemoryRow
from penstock.governance.outbound import Outbound
from penstock.governance.request_memory import LENGTH_BYTES, RequestLimits, RequestMemory
from penstock.net.clock import SystemClock
from penstock.net.listener import RESERVED_DESCRIPTORS, Connections, Listener
from penstock.net.loop_turns import LoopTurns, timed_loop
from penstock.net.signals import on_signal
from penstock.net.tls_context import TlsOptions, server_context
from penstock.settings.limits import Live, http_limits, log_limits, named_listeners, unnamed_listener
from penstock.settings.security import provider_options, tls_options
from penstock.storage.catalog import Catalog
from penstock.storage.directory import open_data_directory
from penstock.storage.entry_log import EntryLog
from penstock.storage.files import OsFiles
from penstock.storage.snapshots import Snapshots
from penstock.telemetry.logs import set_up_logging
from penstock.wire.bounds import Bounds

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from penstock.admin.server import HttpLimits
    from penstock.broker.access.authentication import Authenticator
    from penstock.broker.administration.administration import Administration
    from penstock.broker.configuration import Keys
    from penstock.broker.stats.snapshot import BrokerSnapshot
    from penstock.settings import Settings

T = TypeVar("T")

log = logging.getLogger(__name__)

# The interpreter's switch interval: a thread that waited for the disk runs again this soon, instead of after the
# default 5 ms, because the journal's delay is part of every receipt.
SWITCH_INTERVAL_S: Final = 0.0005
# The broker's long-lived objects (topics, cursors, columns of runs) have few cycles, and a full collection with many
# topics blocks the loop for tens of milliseconds: collect less often than the default (700, 10, 10).
GC_THRESHOLDS: Final = (10_000, 20, 100)
# If the loop does not answer within this time, a push of metrics is skipped.
SNAPSHOT_S: Final = 5.0
# A log that cannot be read at the start is tried again this often, with this pause.
OPEN_TRIES_MAX: Final = 11
OPEN_RETRY_S: Final = 1.0
# Minimum of open files: below this, hardly any client could connect (40 clients, and the broker's own files).
DESCRIPTORS_MIN: Final = RESERVED_DESCRIPTORS * 3 // 2
# Exit status if stopping took too long.
EXIT_FAILED: Final = 1


def run(settings: Settings, data_dir: Path) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status.

    Raises:
        ConfigurationError: a setting, a port or the data directory cannot be used.
    """
    set_up_logging(settings.log_format, settings.log_level)
    for warning in settings.warnings:
        log.warning("%s", warning)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_descriptor_limit()
    turns = LoopTurns()
    with asyncio.Runner(loop_factory=lambda: timed_loop(turns, SystemClock())) as runner:
        return runner.run(_serve(settings, data_dir, turns))


async def _serve(settings: Settings, data_dir: Path, turns: LoopTurns) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        on_signal(loop, signum, stopping.set)
    async with contextlib.AsyncExitStack() as stack:
        gc.disable()  # Loading a large catalog creates only long-lived objects.
        serving = await start(settings, data_dir, stack, stopping.set, turns)
        on_signal(loop, signal.SIGHUP, serving.reload)
        # Programs that start penstock wait for this line.
        print(f"penstock ready {serving.url} {serving.admin_url}", flush=True)
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()
        await stopping.wait()
        log.info("stopping: clients are told, what was accepted is finished")
        deadline = _end_within(serving.stop_s_max())
    deadline.cancel()
    log.info("stopped")
    return 0


def _end_within(seconds: float) -> threading.Timer:
    """End the process after this time unless cancelled. On a thread, because the loop may hang."""

    def give_up() -> None:
        log.error("not stopped within brokerShutdownTimeoutMs=%d: ending as it is", seconds * 1000)
        os._exit(EXIT_FAILED)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    return timer


@dataclass(frozen=True, slots=True)
class Serving:
    """Addresses and controls of a running broker."""

    url: str
    admin_url: str
    reload: Callable[[], None]  # reads certificates, keys and users again
    stop_s_max: Callable[[], float]  # maximum duration of closing


async def start(
    settings: Settings,
    data_dir: Path,
    stack: contextlib.AsyncExitStack,
    shut_down: Callable[[], None] | None = None,
    turns: LoopTurns | None = None,
) -> Serving:
    """Build all parts on the running loop and serve; closing `stack` stops and releases everything.

    `shut_down` is called when an administrator stops the broker; its owner then closes `stack`. Without it,
    administrators cannot stop this broker. `turns` measures the loop, if given.

    Raises:
        ConfigurationError: a setting, a port or the data directory cannot be used.
    """
    _check_descriptors()
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    storage = await _opened(settings, data_dir, clock, stack)
    live = Live(settings)
    limits = LimitsInForce(live.limits)
    http = http_limits(settings, descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    connections = Connections(
        loop=loop,
        memory=_request_memory(settings),
        outbound=Outbound(settings.budget.outbound_bytes, entry_bytes_max=settings.frame_bytes_max),
        clock=clock,
        # The request memory counts whole frames, including the length field.
        frame_bytes_max=settings.frame_bytes_max - LENGTH_BYTES,
        bounds=Bounds(schema_bytes_max=settings.schema_bytes_max),
        admit=partial(refusal, limits),
        reserved_descriptors=http.connections_max,
    )
    http_memory = MemoryRow("http", limits.now.http_bytes)
    async with contextlib.AsyncExitStack() as binding:
        ports = _bound(settings, connections, http, http_memory, binding)
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
            addresses=ports.addresses,
            http_memory=http_memory,
            loop_turns=turns,
            shut_down=shut_down,
        )
        stack.push_async_callback(broker.stop)
        stack.push_async_callback(binding.pop_all().aclose)  # No client connects any more while the broker stops.
    broker.configuration.restore()
    ports.start(broker)
    serving = _serving(ports, broker)
    _push_metrics(broker, serving.url, stack)
    return serving


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


async def _opened(settings: Settings, data_dir: Path, clock: SystemClock, stack: contextlib.AsyncExitStack) -> Storage:
    """Open and lock the data directory, recover the log and load the catalog; `stack` closes them."""
    post, files = _poster(asyncio.get_running_loop()), OsFiles()
    directory = open_data_directory(data_dir, files)
    entry_log = await _open_log(
        lambda: EntryLog.open(directory.broker(0), files, log_limits(settings), post, clock=clock)
    )
    stack.callback(entry_log.close)
    catalog = Catalog.open(directory.metadata, post, files)
    stack.callback(catalog.close)
    return Storage(entry_log, catalog, Snapshots(directory.broker(0) / "delayed", files))


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


def _apply_log_level(keys: Keys) -> None:
    logging.getLogger().setLevel(keys.values()["logLevel"].upper())


@dataclass(frozen=True, slots=True)
class Ports:
    """The bound ports and their addresses."""

    plain: Listener | None
    secure: Listener | None
    admin: AdminServer
    tls: TlsOptions | None
    admin_tls: TlsOptions | None
    bound: ServiceUrls  # where clients connect, without advertised addresses
    addresses: Addresses

    def start(self, broker: Broker) -> None:
        """Accept clients and admin requests."""
        open_session = commands(broker).open_session
        for listener in (self.plain, self.secure):
            if listener is not None:
                listener.start(open_session)
        self.admin.start(BrokerGateway(cache(partial(_administration, broker)), broker.loop, _render_metrics))
        for what, urls in (("clients", self.bound), ("callers of the admin port", self.addresses.web)):
            if urls.tls is not None:
                log.info("%s with TLS are served at %s", what, urls.tls)


def _bound(
    settings: Settings,
    connections: Connections,
    limits: HttpLimits,
    memory: MemoryRow,
    binding: contextlib.AsyncExitStack,
) -> Ports:
    """Bind all ports before any of them accepts; `binding` closes them. Raises ConfigurationError."""
    host, name = settings.bind_address, settings.advertised_address
    tls = tls_options(settings)
    context = server_context(tls) if tls is not None else None

    def listener(what: str, port: int | None, context: ssl.SSLContext | None) -> Listener | None:
        if port is None:
            return None
        bound = _bind(what, port, lambda: Listener(connections, host=host, port=port, tls=context))
        binding.callback(bound.close)
        return bound

    plain = listener("port", settings.port, None)
    secure = listener("TLS port", settings.tls_port, context) if context is not None else None
    admin_tls = _admin_tls(settings, tls)
    admin = _bind(
        "admin port",
        settings.admin_port,
        lambda: AdminServer(
            host=host,
            port=settings.admin_port,
            loop=connections.loop,
            tls_port=settings.admin_tls_port,
            tls=server_context(admin_tls) if admin_tls is not None else None,
            limits=limits,
            memory=memory,
        ),
    )
    binding.push_async_callback(admin.stop)
    bound = ServiceUrls(
        f"pulsar://{name}:{plain.port}" if plain is not None else "",
        f"pulsar+ssl://{name}:{secure.port}" if secure is not None else None,
    )
    web = ServiceUrls(
        f"http://{name}:{admin.port}" if settings.admin_port is not None else "",
        f"https://{name}:{admin.tls_port}" if settings.admin_tls_port is not None else None,
    )
    addresses = Addresses(service=unnamed_listener(settings) or bound, web=web, listeners=named_listeners(settings))
    return Ports(plain, secure, admin, tls, admin_tls, bound, addresses)


def _serving(ports: Ports, broker: Broker) -> Serving:
    def reload() -> None:
        broker.access.reload()
        _reload_tls(((ports.tls, ports.secure), (ports.admin_tls, ports.admin)))

    # If there is only one port, its URL is used for both; a broker without admin API has no URL for it.
    web = ports.addresses.web
    return Serving(
        ports.bound.plain or ports.bound.tls or "",
        web.plain or web.tls or "-",
        reload,
        lambda: broker.limits.stop_s_max,
    )


def _admin_tls(settings: Settings, tls: TlsOptions | None) -> TlsOptions | None:
    """TLS of the admin API, with its own TLS versions and ciphers."""
    if tls is None or settings.admin_tls_port is None:
        return None
    return replace(tls, protocols=settings.admin_tls_protocols, ciphers=settings.admin_tls_ciphers)


def _administration(broker: Broker) -> Administration:
    from penstock.broker.composition.administration import administration  # noqa: PLC0415 -- see there

    return administration(broker)


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

    def take() -> BrokerSnapshot:
        snapshots = _administration(broker).snapshots
        return asyncio.run_coroutine_threadsafe(snapshots.take(), broker.loop).result(SNAPSHOT_S)

    push = MetricsPush(take, os.environ, instance)
    push.start()
    stack.push_async_callback(asyncio.to_thread, push.stop)


def _bind(what: str, port: int | None, bind: Callable[[], T]) -> T:
    try:
        return bind()
    except OSError as error:
        raise ConfigurationError(f"{what} {port} cannot be opened: {error.strerror or error}") from error


def _authenticator(settings: Settings) -> Authenticator | None:
    options = provider_options(settings)
    if options is None:
        return None
    from penstock.broker.access.authentication import Authenticator  # noqa: PLC0415 -- nor without authentication

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


def _poster(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    """Pass callables of other threads to the loop; they are dropped after the loop has ended."""

    def post(callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback)

    return post


def _check_descriptors() -> None:
    """Raises ConfigurationError if the limit of open files is too low for clients."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit < DESCRIPTORS_MIN:
        raise ConfigurationError(
            f"this process may open {limit} files, and penstock needs {DESCRIPTORS_MIN} at least: "
            f"{RESERVED_DESCRIPTORS} for its log, an eighth for the admin port, the others for clients; raise the "
            f"limit with `ulimit -n`, or LimitNOFILE= of a systemd unit"
        )


def _raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard limit: each connection needs a descriptor."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

# SPDX-License-Identifier: Apache-2.0
"""Composition: the one place that builds the big parts and joins them, and takes them apart again.

Where: `penstock serve` calls `run`; everybody else receives what they need from here.

Order of start: settings are checked, the data directory is opened and locked, the log is recovered, the catalog is
loaded, listeners are bound, and only then the ready line is printed. The end runs backwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import ssl
import sys
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.admin.gateway import BrokerGateway
from penstock.admin.server import AdminServer
from penstock.broker.broker import Broker, BrokerLimits, ServiceUrls
from penstock.core.errors import ConfigurationError
from penstock.core.units import MIB, NS_PER_MS, NS_PER_S
from penstock.governance.memory_pool import UNBOUNDED
from penstock.governance.request_memory import LENGTH_BYTES, RequestLimits, RequestMemory
from penstock.net.clock import SystemClock
from penstock.net.connection import ARENA_BYTES, Outbound
from penstock.net.listener import Connections, Listener
from penstock.storage.catalog import Catalog
from penstock.storage.directory import open_data_directory
from penstock.storage.entry_log import EntryLog
from penstock.storage.files import OsFiles
from penstock.storage.limits import LogLimits
from penstock.telemetry.logs import set_up_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.broker.snapshot import BrokerSnapshot
    from penstock.settings import Settings

T = TypeVar("T")

log = logging.getLogger(__name__)

# A thread that was waiting for the disk gets the interpreter back this soon, instead of after the default 5 ms: the
# journal's turn decides how late receipts are.
SWITCH_INTERVAL_S: Final = 0.0005
# What a broker makes and keeps (topics, cursors, columns of runs) holds few cycles, and a full collection over many
# topics holds the loop for tens of milliseconds: look for garbage less often than the default (700, 10, 10).
GC_THRESHOLDS: Final = (10_000, 20, 100)


def run(settings: Settings, data_dir: Path) -> int:
    """Serve until SIGTERM or SIGINT; the exit status of the process.

    Raises:
        ConfigurationError: a setting, a port or the data directory cannot be used.
    """
    set_up_logging(settings.log_format, settings.log_level)
    for warning in settings.warnings:
        log.warning("%s", warning)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_descriptor_limit()
    return asyncio.run(_serve(settings, data_dir))


async def _serve(settings: Settings, data_dir: Path) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopping.set)
    async with contextlib.AsyncExitStack() as stack:
        gc.disable()  # Loading a large catalog makes nothing but lasting objects.
        await _build(settings, data_dir, stack)
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()
        await stopping.wait()
        log.info("stopping: clients are told, what was accepted is finished")
    log.info("stopped")
    return 0


async def _build(settings: Settings, data_dir: Path, stack: contextlib.AsyncExitStack) -> None:
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    post = _poster(loop)
    files = OsFiles()
    directory = open_data_directory(data_dir, files)
    entry_log = EntryLog.open(
        directory.broker(0),
        files,
        _log_limits(settings),
        post,
        clock=clock,
    )
    stack.callback(entry_log.close)
    catalog = Catalog.open(directory.metadata, post, files)
    stack.callback(catalog.close)
    memory = RequestMemory(
        RequestLimits(
            request_bytes_max=settings.request_bytes_max,
            requests_max=settings.requests_max,
            frame_bytes_max=settings.frame_bytes_max,
        )
    )
    connections = Connections(
        loop=loop,
        memory=memory,
        outbound=Outbound(settings.budget.outbound_bytes),
        clock=clock,
        # The request memory counts whole frames; a frame's length field does not count itself.
        frame_bytes_max=settings.frame_bytes_max - LENGTH_BYTES,
    )
    broker = Broker(
        entry_log=entry_log,
        catalog=catalog,
        connections=connections,
        limits=_broker_limits(settings),
        clock=clock,
        loop=loop,
    )
    stack.push_async_callback(broker.stop)
    _listen(settings, broker, connections, stack)


def _log_limits(settings: Settings) -> LogLimits:
    """A run is what one read brings: at most one large frame, or an arena full. Segments grow with large messages."""
    run_bytes_max = settings.frame_bytes_max + ARENA_BYTES
    return LogLimits(
        run_bytes_max=run_bytes_max, segment_bytes=max(64 * MIB, 4 * run_bytes_max), relaxed=settings.relaxed
    )


def _broker_limits(settings: Settings) -> BrokerLimits:
    return BrokerLimits(
        message_bytes_max=settings.max_message_bytes,
        keep_alive_ns=settings.keep_alive_interval_s * NS_PER_S,
        liveness_check_ns=settings.connection_liveness_check_timeout_ms * NS_PER_MS,
        failover_delay_s=settings.active_consumer_failover_delay_ms / 1000,
        unacked_per_consumer_max=settings.max_unacked_messages_per_consumer or UNBOUNDED,
        unacked_per_subscription_max=settings.max_unacked_messages_per_subscription or UNBOUNDED,
        round_robin_entries_max=settings.dispatcher_max_round_robin_batch_size,
        auto_create_topics=settings.allow_auto_topic_creation,
        tail_cache_bytes=settings.budget.tail_cache_bytes,
        cluster_name=settings.cluster_name,
    )


def _listen(settings: Settings, broker: Broker, connections: Connections, stack: contextlib.AsyncExitStack) -> None:
    """Bind all ports before any of them accepts, and say that we are ready."""
    host = settings.bind_address
    plain = _bind(
        "port", settings.port, lambda: Listener(connections, broker.new_session, host=host, port=settings.port)
    )
    stack.callback(plain.close)
    secure = None
    if settings.tls_certificate is not None:
        context = _tls_context(settings)
        secure = _bind(
            "TLS port",
            settings.tls_port,
            lambda: Listener(connections, broker.new_session, host=host, port=settings.tls_port, tls=context),
        )
        stack.callback(secure.close)
    gateway = BrokerGateway(broker, _render_metrics)
    admin = _bind(
        "admin port",
        settings.admin_port,
        lambda: AdminServer(host=host, port=settings.admin_port, gateway=gateway, loop=broker.loop),
    )
    stack.push_async_callback(admin.stop)
    name = settings.advertised_address
    broker.service_urls = ServiceUrls(
        f"pulsar://{name}:{plain.port}", f"pulsar+ssl://{name}:{secure.port}" if secure is not None else None
    )
    plain.start()
    if secure is not None:
        secure.start()
        log.info("TLS clients are served at %s", broker.service_urls.tls)
    admin.start()
    # Programs that start penstock wait for this line.
    print(f"penstock ready pulsar://{name}:{plain.port} http://{name}:{admin.port}", flush=True)


def _render_metrics(snapshot: BrokerSnapshot) -> Iterator[str]:
    from penstock.telemetry.prometheus import render  # noqa: PLC0415 -- a broker that nobody scrapes does without

    return render(snapshot)


def _bind(what: str, port: int, bind: Callable[[], T]) -> T:
    try:
        return bind()
    except OSError as error:
        raise ConfigurationError(f"{what} {port} cannot be opened: {error.strerror or error}") from error


def _tls_context(settings: Settings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    assert settings.tls_certificate is not None
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"TLS certificate {settings.tls_certificate} with key {settings.tls_key} cannot be used: {error}"
        ) from error
    return context


def _poster(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    """Hand callables of other threads to the loop; what comes after the loop has ended is dropped."""

    def post(callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback)

    return post


def _raise_descriptor_limit() -> None:
    """Every connection is a descriptor: use what the system allows (soft limit raised to the hard one)."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

# SPDX-License-Identifier: Apache-2.0
"""Composition root of `penstock proxy`: builds its parts, connects them, and closes them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.admin.server import AdminServer
from penstock.core.errors import ConfigurationError, InvalidTopicName
from penstock.core.names import TopicName
from penstock.core.service_urls import Addresses
from penstock.core.system_topics import PROXY_REPORTS_TOPIC
from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.allocation import Strategy
from penstock.governance.budget import Budget, Row
from penstock.governance.command_memory import CommandMemory
from penstock.governance.outbound import Outbound
from penstock.governance.quota_exchange import ExchangeOptions
from penstock.governance.request_limits import LENGTH_BYTES, RequestLimits
from penstock.governance.request_memory import RequestMemory
from penstock.groups.heard_names import HeardNames
from penstock.groups.held_memory import HeldMemory
from penstock.groups.held_permits import PermitSteps
from penstock.groups.live_exchange import SharingOptions
from penstock.net.clock import SystemClock
from penstock.net.listener import Connections, Listener
from penstock.net.loop_turns import LoopTurns, timed_loop
from penstock.net.signals import on_signal
from penstock.net.stopping import Stopping
from penstock.net.topic_list_limiter import PROXY_DIRECT_REFUSED, TopicListMemoryLimiter
from penstock.processes.end_of_process import end_within
from penstock.processes.proxy_security import Contexts, Reload, authentication, own_identity
from penstock.processes.service_manager import tell_ready, tell_stopping
from penstock.processes.sockets import addresses, bound, open_sockets
from penstock.processes.start_line import start_line
from penstock.processes.tuning import set_up_interpreter, started
from penstock.proxy.admin_polls import AdminPolls
from penstock.proxy.admin_requests import AdminRequests, parse_web_urls
from penstock.proxy.group_file import GroupFile
from penstock.proxy.groups import ProxyGroups
from penstock.proxy.listings import Listings
from penstock.proxy.proxy import Proxy
from penstock.proxy.proxy_stats import ProxyStats
from penstock.proxy.published_topics import PublishedTopics
from penstock.proxy.quota_sharing import ProxySharing
from penstock.proxy.recorder_parts import RecorderParts
from penstock.proxy.services import Services
from penstock.proxy.snapshot import ProxySnapshots
from penstock.proxy.targets import AllowedTargets, Targets
from penstock.proxy.traffic import Traffic
from penstock.proxy.upstreams import UpstreamOptions, Upstreams
from penstock.proxy.why import Why
from penstock.settings.limits import http_limits, topic_list_limits
from penstock.settings.sources import DEFAULT
from penstock.telemetry.logs import set_up_logging
from penstock.wire.bounds import Bounds
from penstock.wire.client.addresses import parse_service_url
from penstock.wire.relayed import RelayReader, SpareBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from starlette.types import ASGIApp

    from penstock.admin.http_memory import HttpMemory
    from penstock.admin.proxy_guard import ProxyGuard
    from penstock.core.membership import MemberNames, Registry
    from penstock.core.service_urls import ServiceUrls
    from penstock.proxy.recorder import Recorder
    from penstock.proxy.session import Session
    from penstock.proxy.snapshot import ProxySnapshot
    from penstock.settings import Settings
    from penstock.wire.client.addresses import Address

log = logging.getLogger(__name__)

# Signs reports if there is no key: everybody knows it.
UNSIGNED: Final = "unsigned"
KEY_BYTES_MAX: Final = 64
# How long the thread that pushes metrics waits for a snapshot.
SNAPSHOT_S: Final = 5.0
# Time for all that a stop does beside draining, in seconds. It is more if the drain takes less than its time.
OTHERS_S: Final = 0.5
# So much later the process is ended, because it hangs: a busy machine alone must not cause that.
HUNG_S: Final = 4.5
# Exit status when a second signal came before the proxy was drained.
EXIT_HURRIED: Final = 1


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status. The caller ends the process, by `end_now`.

    Raises:
        ConfigurationError: a setting or a port cannot be used.
    """
    set_up_logging(settings.log_format, settings.log_level)
    upstream = settings.upstream_url_tls if settings.upstream_tls else settings.upstream_url
    log.info("%s", start_line(settings, f"a proxy before {upstream}"))
    for warning in settings.warnings:
        log.warning("%s", warning)
    set_up_interpreter()
    turns = LoopTurns()
    with asyncio.Runner(loop_factory=lambda: timed_loop(turns, SystemClock())) as runner:
        return runner.run(_serve(settings, turns))


async def _serve(settings: Settings, turns: LoopTurns) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def told() -> None:
        if stopping.is_set():
            log.warning("stopped at once, as the second signal says")
            os._exit(EXIT_HURRIED)  # Nothing is kept on disk.
        stopping.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        on_signal(loop, signum, told)
    async with contextlib.AsyncExitStack() as stack:
        serving = await start(settings, turns, stack)
        on_signal(loop, signal.SIGHUP, serving.reload)
        tell_ready(serving.url, serving.admin_url)
        started()
        await stopping.wait()
        log.info("stopping: what was accepted is sent on, and clients are disconnected when they have its receipts")
        stop_s = (settings.unready_ms + settings.drain_timeout_ms) / 1000 + OTHERS_S + HUNG_S
        tell_stopping(stop_s)
        end_within(
            stop_s,
            f"proxyDrainTimeoutMs={settings.drain_timeout_ms}",
        )
        await serving.drain()
    log.info("stopped")
    return 0


class Serving(NamedTuple):
    """Addresses of a running proxy, and how it is drained."""

    url: str
    admin_url: str
    drain: Callable[[], Coroutine[None, None, None]]
    reload: Callable[[], None]  # keys, users and certificates


@dataclass(frozen=True, slots=True)
class _KeepAliveLimits:
    keep_alive_ns: int
    liveness_check_ns: int


async def start(settings: Settings, turns: LoopTurns, stack: contextlib.AsyncExitStack) -> Serving:
    """Build all parts on the running loop and serve; closing `stack` stops and releases everything.

    Raises:
        ConfigurationError: a setting or a port cannot be used.
    """
    loop, clock = asyncio.get_running_loop(), SystemClock()
    budget = Budget(settings.budget.rows)
    cluster = _cluster(settings)
    contexts = Contexts.read(settings, brokers=cluster[0].tls)
    options = UpstreamOptions(
        addresses=cluster,
        tls=contexts.brokers,
        own_tls=contexts.own_brokers,
        connect_timeout_s=settings.upstream_connect_timeout_ms / 1000,
    )
    connections = Connections(
        loop=loop,
        memory=RequestMemory(
            RequestLimits(
                request_bytes_max=settings.request_bytes_max,
                requests_max=settings.requests_max,
                frame_bytes_max=settings.frame_bytes_max,
            )
        ),
        outbound=Outbound(budget.limit_bytes("outbound"), entry_bytes_max=settings.frame_bytes_max),
        clock=clock,
        frame_bytes_max=settings.frame_bytes_max - LENGTH_BYTES,
        bounds=Bounds(schema_bytes_max=settings.schema_bytes_max),
        new_reader=partial(RelayReader, spare=SpareBuffers()),
    )
    keep_alive = _KeepAliveLimits(
        settings.keep_alive_interval_s * NS_PER_S, settings.connection_liveness_check_timeout_ms * NS_PER_MS
    )
    budget.add(connections.memory)
    budget.add(connections.outbound)
    commands = budget.add(CommandMemory(budget.limit_bytes("commands")))
    sessions = budget.add(Row("sessions", _sessions_bytes(settings)))
    half_bytes = budget.limit_bytes("metadata") // 2  # A proxy stores nothing else that outlasts clients.
    usage, unanswered = budget.add(Row("usage", half_bytes)), budget.add(Row("usage-unanswered", half_bytes))
    upstreams = Upstreams(options, clock, sessions)
    listings = TopicListMemoryLimiter(
        topic_list_limits(settings), clock=clock, loop=loop, direct_refused=PROXY_DIRECT_REFUSED
    )
    for row in listings.rows():
        budget.add(row)
    groups = ProxyGroups(clock, loop)
    group_file = GroupFile(settings.group_file, groups) if settings.group_file is not None else None
    opened = open_sockets(settings)
    stack.callback(opened.close)
    stopping = Stopping(loop, settings.drain_timeout_ms / 1000 + OTHERS_S)
    stack.push_async_callback(stopping.finish)  # if something cannot be started
    where = bound(settings, opened)
    own_name = settings.proxy_name or (where.plain or where.tls or "").partition("://")[2]
    traffic = Traffic()
    recorder = _recorder(
        settings,
        own_name,
        RecorderParts(
            connections=connections,
            groups=groups,
            listings=listings,
            traffic=traffic,
            upstreams=upstreams,
            identity=own_identity(settings),
            memory=usage,
            unanswered=unanswered,
            clock=clock,
            loop=loop,
        ),
    )
    if recorder is not None and recorder.decisions is not None:
        budget.add(recorder.decisions.memory)
    targets = Targets(_allowed(settings), options.addresses, tls=options.tls is not None)
    published = PublishedTopics(sessions, clock) if settings.adaptive_throttling else None
    services = Services(
        loop=loop,
        clock=clock,
        limits=lambda: keep_alive,
        upstreams=upstreams,
        listings=Listings(listings, upstreams, clock, loop),
        groups=groups,
        held=HeldMemory(connections.memory, clock),
        permit_steps=PermitSteps(clock, loop),
        published=published,
        targets=targets,
        release=connections.release,
        commands_memory=commands,
        sessions_memory=sessions,
        traffic=traffic,
        usage=recorder.usage.counts if recorder is not None and recorder.usage is not None else None,
        frame_bytes_max=settings.frame_bytes_max,
        authentication=authentication(settings, clock, stack),
        closed=_log_closed,
    )
    sharing = _share_quotas(settings, groups, own_name, where, upstreams, clock, stack, stopping)
    web_addresses = parse_web_urls(settings.upstream_admin_url) if settings.upstream_admin_url else ()
    requests = AdminRequests(web_addresses, contexts.admins, targets)
    await _mirror_groups(settings, groups, requests, stopping)
    throttling = None
    if published is not None:
        from penstock.proxy.throttling import throttle  # noqa: PLC0415 -- off by default: then none of it is loaded

        throttling = throttle(
            settings,
            published,
            memory_limit_bytes=settings.budget.limit_bytes,
            owners=budget.used_bytes,
            polls=AdminPolls(requests, own_identity(settings)) if settings.upstream_admin_url else None,
            row=sessions,
            clock=clock,
            stack=stack,
            stopping=stopping,
        )
        if recorder is not None and recorder.decisions is not None:
            throttling.observer = recorder.decisions.throttled
    proxy = Proxy(services, connections, group_file, recorder)
    stopping.add("the connections of the proxy", lambda limit_s: proxy.stop(limit_s, stopping.cut_off))
    stack.push_async_callback(stopping.finish)
    listeners = []
    secure: Listener | None = None
    for sock, context in ((opened.clients, None), (opened.clients_tls, contexts.clients)):
        if sock is not None:
            listener = Listener(connections, sock, tls=context)
            secure = listener if context is not None else secure
            stack.callback(listener.close)
            listener.start(proxy.open_session)
            listeners.append(listener)
    http = http_limits(settings, descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    admin = AdminServer(
        plain=opened.web,
        loop=loop,
        secure=opened.web_tls,
        tls=contexts.web,
        limits=http,
        memory=budget.row("http"),
    )

    async def stop_admin(limit_s: float) -> None:
        await admin.stop(limit_s)
        if admin.cut_off:
            stopping.cut_off(f"{admin.cut_off} connections to the admin port had unfinished responses")

    stopping.add("the admin port", stop_admin)
    why, stats = Why(services, connections, sharing, budget), ProxyStats(services, connections)
    snapshots = ProxySnapshots(
        cluster=settings.cluster_name,
        services=services,
        connections=connections,
        sharing=sharing,
        budget=budget,
        holds=why.counts,
        loop_turns=turns,
        throttling=throttling,
        stopping=proxy.is_stopping,
        recorder=recorder,
    )
    _push_metrics(snapshots, loop, own_name, stopping)

    def application(memory: HttpMemory) -> ASGIApp:
        from penstock.admin import proxy_api  # noqa: PLC0415 -- on the thread of the admin port

        inside = proxy_api.Inside(
            snapshots=snapshots,
            render=_rendered,
            status_file=settings.status_file,
            knows_cluster=bool(settings.upstream_admin_url),
            why=why,
            stats=stats,
            guard=_guard(settings, services),
        )
        return proxy_api.build(requests, memory, inside, loop=loop, requests_max=http.requests_max)

    async def drain() -> None:
        proxy.begin_to_stop()
        if settings.unready_ms:
            await asyncio.sleep(settings.unready_ms / 1000)
        for listener in listeners:
            listener.close()
        stopping.begin()
        for what in await proxy.drain(settings.drain_timeout_ms / 1000):
            stopping.cut_off(what)

    admin.start_with(application)
    proxy.start()
    web = addresses(settings, opened).web
    for what, urls in (("clients", where), ("callers of the admin port", web)):
        if urls.tls is not None:
            log.info("%s with TLS are served at %s", what, urls.tls)
    reload = Reload(
        settings=settings,
        authentication=services.authentication,
        upstreams=upstreams,
        requests=requests,
        secure=secure,
        admin=admin,
    )
    return Serving(where.plain or where.tls or "", web.plain or web.tls or "-", drain, reload)


def _sessions_bytes(settings: Settings) -> int:
    """Return the limit for clients: unless it is set, also what a broker needs for cursors and delayed messages."""
    rows = settings.budget.rows
    if settings.sources["sessionsMB"] != DEFAULT:
        return rows["sessions"]
    return rows["sessions"] + rows["dispatch"] + rows["delayed-index"]


async def _mirror_groups(settings: Settings, groups: ProxyGroups, requests: AdminRequests, stopping: Stopping) -> None:
    """Take the cluster's resource groups over, if a setting says so. Raises ConfigurationError."""
    if settings.group_source != "upstream":
        return
    from penstock.proxy.mirrored_groups import MirroredGroups  # noqa: PLC0415 -- nor with a file

    if settings.group_file is not None:
        raise ConfigurationError("resourceGroupsSource=upstream: want no resourceGroupsFile beside it")
    if not settings.upstream_admin_url:
        raise ConfigurationError("resourceGroupsSource=upstream: want brokerWebServiceURL, where they are read")
    mirror = MirroredGroups(AdminPolls(requests, own_identity(settings)), groups, asyncio.get_running_loop())
    stopping.add("the mirror of resource groups", lambda _limit_s: mirror.stop())
    await mirror.start()


def _guard(settings: Settings, services: Services) -> ProxyGuard | None:
    if services.authentication is None:
        return None
    from penstock.admin.proxy_guard import ProxyGuard  # noqa: PLC0415 -- on the thread of the admin port

    return ProxyGuard(
        services.authentication,
        metrics_open=not settings.authenticate_metrics,
        superusers=frozenset(settings.super_user_roles) if settings.authorization_enabled else None,
    )


def _share_quotas(
    settings: Settings,
    groups: ProxyGroups,
    own_name: str,
    where: ServiceUrls,
    upstreams: Upstreams,
    clock: SystemClock,
    stack: contextlib.AsyncExitStack,
    stopping: Stopping,
) -> ProxySharing:
    """Share the quotas of groups with other proxies. Raises ConfigurationError."""
    loop = asyncio.get_running_loop()
    names: MemberNames
    registry: Registry | None = None
    if settings.membership_url is not None:
        from penstock.net.registration import PROXIES, registration  # noqa: PLC0415 -- nor without ZooKeeper

        registry = registration(
            settings.membership_url,
            PROXIES,
            name=own_name,
            owns=f"port of {where.plain or where.tls}",  # Only one process at a time listens there.
            addresses=Addresses(service=where),
            timeout_ms=settings.membership_session_timeout_ms,
            clock=clock,
        )
        registry.start()
        leave = registry.close
        stopping.add("leaving ZooKeeper", lambda _limit_s: leave())
        names = registry
    else:
        names = heard = HeardNames(own_name, clock, loop)
        stack.callback(heard.close)
    set_by_default = settings.sources["resourceUsagePublishTopicName"] == DEFAULT
    sharing = groups.sharing = ProxySharing(
        groups,
        names,
        options=SharingOptions(
            topic=TopicName.parse(
                PROXY_REPORTS_TOPIC if set_by_default else settings.resource_usage_publish_topic_name
            ),
            enabled=settings.resource_usage_publish_to_topic,
            exchange=ExchangeOptions(
                interval_ns=round(settings.resource_usage_publish_interval_in_secs * NS_PER_S),
                complete_every=settings.resource_usage_complete_report_cycles,
                strategy=Strategy(settings.resource_group_share_strategy),
            ),
        ),
        upstreams=upstreams,
        identity=own_identity(settings),
        key=(settings.group_key or UNSIGNED).encode()[:KEY_BYTES_MAX],
        clock=clock,
        loop=loop,
        registry=registry,
    )
    stopping.add("the last report of usage to other proxies", lambda _limit_s: sharing.stop())
    sharing.review()
    return sharing


def _recorder(settings: Settings, own_name: str, parts: RecorderParts) -> Recorder | None:
    """Record usage and decisions, if a setting says so. Raises ConfigurationError."""
    if not (settings.usage_records_enabled or settings.governance_records_enabled):
        return None
    from penstock.proxy.recorder import Recorder, RecorderOptions  # noqa: PLC0415 -- nor where nothing is recorded

    for name in (settings.usage_topic, settings.decision_topic):
        try:
            TopicName.parse(name)
        except InvalidTopicName as error:
            raise ConfigurationError(str(error)) from error
    return Recorder(
        RecorderOptions(
            name=f"proxy-{own_name}",
            usage_topic=settings.usage_topic if settings.usage_records_enabled else None,
            decision_topic=settings.decision_topic if settings.governance_records_enabled else None,
            interval_s=settings.usage_records_interval_in_seconds,
            per_second=settings.governance_records_per_second,
        ),
        parts,
    )


def _rendered(snapshot: ProxySnapshot) -> Iterator[str]:
    from penstock.telemetry.prometheus import rendered  # noqa: PLC0415 -- imported by the first scrape
    from penstock.telemetry.proxy_instruments import PROXY_INSTRUMENTS  # noqa: PLC0415

    return rendered(snapshot, PROXY_INSTRUMENTS)


def _push_metrics(
    snapshots: ProxySnapshots, loop: asyncio.AbstractEventLoop, instance: str, stopping: Stopping
) -> None:
    """Push metrics to an OpenTelemetry collector, if its environment variables are set."""
    if not any(name.startswith("OTEL_") for name in os.environ):
        return
    from penstock.telemetry.otel import MetricsPush, is_wanted  # noqa: PLC0415 -- nor where nothing is pushed

    if not is_wanted(os.environ):
        return
    from penstock.telemetry.proxy_instruments import PROXY_INSTRUMENTS  # noqa: PLC0415

    def take() -> ProxySnapshot:
        return asyncio.run_coroutine_threadsafe(snapshots.take(), loop).result(SNAPSHOT_S)

    push = MetricsPush(take, os.environ, instance, PROXY_INSTRUMENTS)
    push.start()
    stopping.add("the last push of metrics", lambda _limit_s: asyncio.to_thread(push.stop))


def _cluster(settings: Settings) -> tuple[Address, ...]:
    """Raises ConfigurationError."""
    url = (settings.upstream_url_tls if settings.upstream_tls else settings.upstream_url) or ""
    try:
        return parse_service_url(url)
    except ValueError as error:
        raise ConfigurationError(f"--upstream: {error}") from error


def _allowed(settings: Settings) -> AllowedTargets:
    """Raises ConfigurationError."""
    ports: tuple[int, ...] = ()
    if "*" not in settings.allowed_ports:
        try:
            ports = tuple(int(port) for port in settings.allowed_ports)
        except ValueError as error:
            raise ConfigurationError(f"brokerProxyAllowedTargetPorts: want port numbers or *: {error}") from error
    return AllowedTargets(hosts=settings.allowed_hosts, networks=settings.allowed_networks, ports=ports)


def _log_closed(session: Session, reason: str) -> None:
    log.info("connection %s closed: %s", session.connection.peer, reason)

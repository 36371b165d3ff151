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
from penstock.governance.memory_pool import CommandMemory
from penstock.governance.outbound import Outbound
from penstock.governance.quota_exchange import ExchangeOptions
from penstock.governance.request_memory import RequestMemory
from penstock.governance.request_values import LENGTH_BYTES, RequestLimits
from penstock.groups.held_permits import PermitSteps
from penstock.groups.held_sends import HeldMemory
from penstock.groups.live_exchange import HeardNames, SharingOptions
from penstock.net.clock import SystemClock
from penstock.net.listener import Connections, Listener
from penstock.net.listing_memory import PROXY_DIRECT_REFUSED, TopicListMemoryLimiter
from penstock.net.loop_turns import LoopTurns, timed_loop
from penstock.net.stopping import Signals, Stopping
from penstock.processes.end_of_process import end_within
from penstock.processes.proxy_security import Contexts, Reload, authentication, own_identity, own_tokens
from penstock.processes.service_manager import tell_ready, tell_stopping
from penstock.processes.sockets import addresses, bound, open_sockets, set_up_interpreter, started
from penstock.processes.start_line import start_line
from penstock.proxy.cluster_admin import AdminPolls, AdminRequests, parse_web_urls
from penstock.proxy.groups import GroupFile, ProxyGroups
from penstock.proxy.listings import Listings
from penstock.proxy.proxy import Proxy, Services
from penstock.proxy.proxy_stats import ProxyStats
from penstock.proxy.quota_sharing import ProxySharing
from penstock.proxy.recorder_parts import RecorderParts
from penstock.proxy.snapshot import ProxySnapshots
from penstock.proxy.targets import AllowedTargets, Targets
from penstock.proxy.throttling import PublishedTopics
from penstock.proxy.traffic import Traffic
from penstock.proxy.upstreams import UpstreamOptions, Upstreams
from penstock.proxy.why import Why
from penstock.settings.limits import http_limits, topic_list_limits
from penstock.settings.sources import DEFAULT
from penstock.stats.expiry import Expiries, of_contexts, of_credentials
from penstock.telemetry.logs import set_up_logging
from penstock.wire.bounds import Bounds
from penstock.wire.client.lookup import parse_service_url
from penstock.wire.relayed import RelayReader, SpareBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping

    from starlette.types import ASGIApp

    from penstock.admin.http_memory import HttpMemory
    from penstock.admin.proxy_api import ProxyGuard
    from penstock.admin.server import HttpLimits
    from penstock.core.membership import MemberNames, Registry
    from penstock.groups.adaptive_throttling import AdaptiveThrottling
    from penstock.net.own_credentials import OwnCredentials
    from penstock.proxy.recorder import Recorder
    from penstock.proxy.session import Session
    from penstock.proxy.snapshot import ProxySnapshot
    from penstock.proxy.throttling import PublishedTopic
    from penstock.settings import Settings
    from penstock.stats.expiry import Expiry
    from penstock.wire.client.lookup import Address

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

    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(Signals(loop))
        for signum in (signal.SIGTERM, signal.SIGINT):
            signals.on(signum, told)
        serving = await start(settings, turns, stack)
        signals.on(signal.SIGHUP, serving.reload)
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
    return await _Composition(settings, turns, stack).start()


class _Composition:
    """The parts of one proxy, built in the order in which they need one another. All raise ConfigurationError."""

    def __init__(self, settings: Settings, turns: LoopTurns, stack: contextlib.AsyncExitStack) -> None:
        self._settings = settings
        self._turns = turns
        self._stack = stack
        self._loop, self._clock = asyncio.get_running_loop(), SystemClock()
        self._budget = budget = Budget(settings.budget.rows)
        cluster = _cluster(settings)
        self._contexts = Contexts.read(settings, brokers=cluster[0].tls)
        self._connections = self._new_connections()
        self._commands = budget.add(CommandMemory(budget.limit_bytes("commands")))
        self._sessions = budget.add(Row("sessions", _sessions_bytes(settings)))
        half_bytes = budget.limit_bytes("metadata") // 2  # A proxy stores nothing else that outlasts clients.
        self._usage = budget.add(Row("usage", half_bytes))
        self._unanswered = budget.add(Row("usage-unanswered", half_bytes))
        options = UpstreamOptions(
            addresses=cluster,
            tls=self._contexts.brokers,
            own_tls=self._contexts.own_brokers,
            connect_timeout_s=settings.upstream_connect_timeout_ms / 1000,
        )
        self._upstreams = Upstreams(options, self._clock, self._sessions)
        self._targets = Targets(_allowed(settings), cluster, tls=options.tls is not None)
        self._listings = TopicListMemoryLimiter(
            topic_list_limits(settings), clock=self._clock, loop=self._loop, direct_refused=PROXY_DIRECT_REFUSED
        )
        for row in self._listings.rows():
            budget.add(row)
        self._groups = ProxyGroups(self._clock, self._loop)
        self._group_file = GroupFile(settings.group_file, self._groups) if settings.group_file is not None else None
        self._opened = open_sockets(settings)
        stack.callback(self._opened.close)
        self._stopping = Stopping(self._loop, settings.drain_timeout_ms / 1000 + OTHERS_S)
        stack.push_async_callback(self._stopping.finish)  # if something cannot be started
        self._where = bound(settings, self._opened)
        self._secure: Listener | None = None
        self._admin: AdminServer | None = None
        self._own_name = settings.proxy_name or (self._where.plain or self._where.tls or "").partition("://")[2]

    async def start(self) -> Serving:
        """Build what is left, and serve."""
        settings, stopping = self._settings, self._stopping
        traffic = Traffic()
        recorder = self._recorder(traffic)
        published = PublishedTopics(self._sessions, self._clock) if settings.adaptive_throttling else None
        services = self._services(traffic, recorder, published)
        sharing = self._share_quotas()
        web_addresses = parse_web_urls(settings.upstream_admin_url) if settings.upstream_admin_url else ()
        requests = AdminRequests(web_addresses, self._contexts.admins, self._targets)
        await self._mirror_groups(requests)
        throttling = self._throttle(published, requests, recorder) if published is not None else None
        proxy = Proxy(services, self._connections, self._group_file, recorder)
        stopping.add("the connections of the proxy", lambda limit_s: proxy.stop(limit_s, stopping.cut_off))
        self._stack.push_async_callback(stopping.finish)
        listeners = self._listen(proxy)
        http = http_limits(settings, descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        admin = self._admin = self._admin_server(http)
        why = Why(services, self._connections, sharing, self._budget)
        stats = ProxyStats(services, self._connections)
        snapshots = ProxySnapshots(
            cluster=settings.cluster_name,
            services=services,
            connections=self._connections,
            sharing=sharing,
            budget=self._budget,
            holds=why.counts,
            loop_turns=self._turns,
            throttling=throttling,
            stopping=proxy.is_stopping,
            recorder=recorder,
        )
        self._push_metrics(snapshots)

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
                consoles=http.consoles,
            )
            return proxy_api.build(requests, memory, inside, loop=self._loop, requests_max=http.requests_max)

        admin.start_with(application)
        proxy.start()
        web = addresses(settings, self._opened).web
        for what, urls in (("clients", self._where), ("callers of the admin port", web)):
            if urls.tls is not None:
                log.info("%s with TLS are served at %s", what, urls.tls)
        reload = Reload(
            settings=settings,
            authentication=services.authentication,
            upstreams=self._upstreams,
            requests=requests,
            secure=self._secure,
            admin=admin,
            expiries=services.expiries,
        )
        url, admin_url = self._where.plain or self._where.tls or "", web.plain or web.tls or "-"
        return Serving(url, admin_url, partial(self._drain, proxy, listeners), reload)

    async def _drain(self, proxy: Proxy, listeners: Iterable[Listener]) -> None:
        settings = self._settings
        proxy.begin_to_stop()
        if settings.unready_ms:
            await asyncio.sleep(settings.unready_ms / 1000)
        for listener in listeners:
            listener.close()
        self._stopping.begin()
        for what in await proxy.drain(settings.drain_timeout_ms / 1000):
            self._stopping.cut_off(what)

    def _new_connections(self) -> Connections:
        settings, budget = self._settings, self._budget
        connections = Connections(
            loop=self._loop,
            memory=RequestMemory(
                RequestLimits(
                    request_bytes_max=settings.request_bytes_max,
                    requests_max=settings.requests_max,
                    frame_bytes_max=settings.frame_bytes_max,
                )
            ),
            outbound=Outbound(budget.limit_bytes("outbound"), entry_bytes_max=settings.frame_bytes_max),
            clock=self._clock,
            frame_bytes_max=settings.frame_bytes_max - LENGTH_BYTES,
            bounds=Bounds(schema_bytes_max=settings.schema_bytes_max),
            new_reader=partial(RelayReader, spare=SpareBuffers()),
        )
        budget.add(connections.memory)
        budget.add(connections.outbound)
        return connections

    def _services(self, traffic: Traffic, recorder: Recorder | None, published: PublishedTopics | None) -> Services:
        settings, clock, loop = self._settings, self._clock, self._loop
        keep_alive = _KeepAliveLimits(
            settings.keep_alive_interval_s * NS_PER_S, settings.connection_liveness_check_timeout_ms * NS_PER_MS
        )
        authenticating = authentication(settings, clock, self._stack)
        own = own_tokens(settings, authenticating)
        return Services(
            loop=loop,
            clock=clock,
            limits=lambda: keep_alive,
            upstreams=self._upstreams,
            listings=Listings(self._listings, self._upstreams, clock, loop),
            groups=self._groups,
            held=HeldMemory(self._connections.memory, clock),
            permit_steps=PermitSteps(clock, loop),
            published=published,
            targets=self._targets,
            release=self._connections.release,
            commands_memory=self._commands,
            sessions_memory=self._sessions,
            traffic=traffic,
            usage=recorder.usage.counts if recorder is not None and recorder.usage is not None else None,
            frame_bytes_max=settings.frame_bytes_max,
            authentication=authenticating,
            expiries=Expiries(partial(self._expiring, own), partial(loop.run_in_executor, None)),
            closed=_log_closed,
        )

    def _expiring(self, own: Mapping[str, OwnCredentials]) -> Iterator[Expiry]:
        """Yield when certificates and tokens expire. Called in a thread: files are read."""
        yield from of_contexts(
            (
                ("clients", self._secure.tls if self._secure is not None else None),
                ("admin", self._admin.tls if self._admin is not None else None),
                ("brokers", self._upstreams.options.own_tls),
            )
        )
        for use, credentials in own.items():
            yield from of_credentials(use, credentials)

    def _listen(self, proxy: Proxy) -> list[Listener]:
        listeners = []
        for sock, context in ((self._opened.clients, None), (self._opened.clients_tls, self._contexts.clients)):
            if sock is not None:
                listener = Listener(self._connections, sock, tls=context)
                self._stack.callback(listener.close)
                listener.start(proxy.open_session)
                listeners.append(listener)
                if context is not None:
                    self._secure = listener
        return listeners

    def _admin_server(self, limits: HttpLimits) -> AdminServer:
        admin = AdminServer(
            plain=self._opened.web,
            loop=self._loop,
            secure=self._opened.web_tls,
            tls=self._contexts.web,
            limits=limits,
            memory=self._budget.row("http"),
        )

        async def stop(limit_s: float) -> None:
            await admin.stop(limit_s)
            if admin.cut_off:
                self._stopping.cut_off(f"{admin.cut_off} connections to the admin port had unfinished responses")

        self._stopping.add("the admin port", stop)
        return admin

    def _throttle(
        self, published: PublishedTopics, requests: AdminRequests, recorder: Recorder | None
    ) -> AdaptiveThrottling[PublishedTopic]:
        from penstock.proxy.throttling import throttle  # noqa: PLC0415 -- off by default: then none of it is loaded

        settings = self._settings
        throttling = throttle(
            settings,
            published,
            memory_limit_bytes=settings.budget.limit_bytes,
            owners=self._budget.used_bytes,
            polls=AdminPolls(requests, own_identity(settings)) if settings.upstream_admin_url else None,
            row=self._sessions,
            clock=self._clock,
            stack=self._stack,
            stopping=self._stopping,
        )
        if recorder is not None and recorder.decisions is not None:
            throttling.observer = recorder.decisions.throttled
        return throttling

    async def _mirror_groups(self, requests: AdminRequests) -> None:
        """Take the cluster's resource groups over, if a setting says so."""
        settings = self._settings
        if settings.group_source != "upstream":
            return
        from penstock.proxy.mirrored_groups import MirroredGroups  # noqa: PLC0415 -- nor with a file

        if settings.group_file is not None:
            raise ConfigurationError("resourceGroupsSource=upstream: want no resourceGroupsFile beside it")
        if not settings.upstream_admin_url:
            raise ConfigurationError("resourceGroupsSource=upstream: want brokerWebServiceURL, where they are read")
        mirror = MirroredGroups(AdminPolls(requests, own_identity(settings)), self._groups, self._loop)
        self._stopping.add("the mirror of resource groups", lambda _limit_s: mirror.stop())
        await mirror.start()

    def _share_quotas(self) -> ProxySharing:
        """Share the quotas of groups with other proxies."""
        settings = self._settings
        names, registry = self._members()
        set_by_default = settings.sources["resourceUsagePublishTopicName"] == DEFAULT
        sharing = self._groups.sharing = ProxySharing(
            self._groups,
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
            upstreams=self._upstreams,
            identity=own_identity(settings),
            key=(settings.group_key or UNSIGNED).encode()[:KEY_BYTES_MAX],
            clock=self._clock,
            loop=self._loop,
            registry=registry,
        )
        self._stopping.add("the last report of usage to other proxies", lambda _limit_s: sharing.stop())
        sharing.review()
        return sharing

    def _members(self) -> tuple[MemberNames, Registry | None]:
        """How the proxies that share quotas know one another: by ZooKeeper, or by what they report."""
        settings = self._settings
        if settings.membership_url is None:
            heard = HeardNames(self._own_name, self._clock, self._loop)
            self._stack.callback(heard.close)
            return heard, None
        from penstock.net.registration import PROXIES, registration  # noqa: PLC0415 -- nor without ZooKeeper

        registry = registration(
            settings.membership_url,
            PROXIES,
            name=self._own_name,
            owns=f"port of {self._where.plain or self._where.tls}",  # Only one process at a time listens there.
            addresses=Addresses(service=self._where),
            timeout_ms=settings.membership_session_timeout_ms,
            clock=self._clock,
        )
        registry.start()
        self._stopping.add("leaving ZooKeeper", lambda _limit_s: registry.close())
        return registry, registry

    def _recorder(self, traffic: Traffic) -> Recorder | None:
        """Record usage and decisions, if a setting says so."""
        settings = self._settings
        if not (settings.usage_records_enabled or settings.governance_records_enabled):
            return None
        from penstock.proxy.recorder import Recorder, RecorderOptions  # noqa: PLC0415 -- nor where nothing is recorded

        for name in (settings.usage_topic, settings.decision_topic):
            try:
                TopicName.parse(name)
            except InvalidTopicName as error:
                raise ConfigurationError(str(error)) from error
        recorder = Recorder(
            RecorderOptions(
                name=f"proxy-{self._own_name}",
                usage_topic=settings.usage_topic if settings.usage_records_enabled else None,
                decision_topic=settings.decision_topic if settings.governance_records_enabled else None,
                interval_s=settings.usage_records_interval_in_seconds,
                per_second=settings.governance_records_per_second,
            ),
            RecorderParts(
                connections=self._connections,
                groups=self._groups,
                listings=self._listings,
                traffic=traffic,
                upstreams=self._upstreams,
                identity=own_identity(settings),
                memory=self._usage,
                unanswered=self._unanswered,
                clock=self._clock,
                loop=self._loop,
            ),
        )
        if recorder.decisions is not None:
            self._budget.add(recorder.decisions.memory)
        return recorder

    def _push_metrics(self, snapshots: ProxySnapshots) -> None:
        """Push metrics to an OpenTelemetry collector, if its environment variables are set."""
        if not any(name.startswith("OTEL_") for name in os.environ):
            return
        from penstock.telemetry.otel import MetricsPush, is_wanted  # noqa: PLC0415 -- nor where nothing is pushed

        if not is_wanted(os.environ):
            return
        from penstock.telemetry.proxy_instruments import PROXY_INSTRUMENTS  # noqa: PLC0415

        def take() -> ProxySnapshot:
            return asyncio.run_coroutine_threadsafe(snapshots.take(), self._loop).result(SNAPSHOT_S)

        push = MetricsPush(take, os.environ, self._own_name, PROXY_INSTRUMENTS)
        push.start()
        self._stopping.add("the last push of metrics", lambda _limit_s: asyncio.to_thread(push.stop))


def _sessions_bytes(settings: Settings) -> int:
    """Return the limit for clients: unless it is set, also what a broker needs for cursors and delayed messages."""
    rows = settings.budget.rows
    if settings.sources["sessionsMB"] != DEFAULT:
        return rows["sessions"]
    return rows["sessions"] + rows["dispatch"] + rows["delayed-index"]


def _guard(settings: Settings, services: Services) -> ProxyGuard | None:
    if services.authentication is None:
        return None
    from penstock.admin.proxy_api import ProxyGuard  # noqa: PLC0415 -- on the thread of the admin port

    return ProxyGuard(
        services.authentication,
        metrics_open=not settings.authenticate_metrics,
        superusers=frozenset(settings.super_user_roles) if settings.authorization_enabled else None,
    )


def _rendered(snapshot: ProxySnapshot) -> Iterator[str]:
    from penstock.telemetry.prometheus import rendered  # noqa: PLC0415 -- imported by the first scrape
    from penstock.telemetry.proxy_instruments import PROXY_INSTRUMENTS  # noqa: PLC0415

    return rendered(snapshot, PROXY_INSTRUMENTS)


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

# SPDX-License-Identifier: Apache-2.0
"""The supervisor of `penstock serve --brokers N`: starts the brokers, keeps them running, and ends with all of them.

Why processes: one Python process uses one core. Each broker has a loop, a log and ports of its own; only the metadata
is shared, and this process alone writes it.
Where: `cli.serve` calls `run`. Each broker is a new process (`cli.broker_process`), never a fork.

- All ports are opened here and inherited. They stay open while a broker is restarted: its clients wait in the kernel,
  and nobody else takes its ports. So do the inboxes by which brokers connect to each other (`peer_socket`).
- The ready line is printed once all brokers are ready. If one ends before that, all end, with its status.
- A broker that crashes later is started again (`restarts`), as often as it crashes; the others are not disturbed. One
  that does not renew its lease (`lease`) is killed first. A broker that ended with status 0 was stopped by an
  administrator and stays down.
- The state of each broker is decided here alone, and told to all brokers.
- If the shared metadata failed for good, all start again once the disk works (docs/adr/0082).
- SIGTERM and SIGINT stop all: a broker that has not ended in time is killed. The same signal again kills at once. Every
  wait of a stop has a deadline. SIGHUP is passed on. If this process is killed, the kernel kills the brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import pickle
import secrets
import signal
import socket
import struct
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.healing import BETWEEN_PROBES_NS, Healing
from penstock.core.broker_states import ALLOWS, BrokerState
from penstock.core.errors import ConfigurationError
from penstock.core.membership import Member
from penstock.core.units import NS_PER_S
from penstock.net.clock import SystemClock
from penstock.net.metadata_link import serve
from penstock.net.peer_socket import open_inbox
from penstock.net.stopping import Signals
from penstock.processes.end_of_process import EXIT_START_AGAIN, Ending, end_within, start_again, start_again_within
from penstock.processes.lease import ELAPSED_NS_MAX, LOOK_EVERY_NS, Lease
from penstock.processes.removal import leave_out_brokers
from penstock.processes.restarts import Restarts
from penstock.processes.service_manager import tell_ready, tell_stopping
from penstock.processes.sockets import Sockets, addresses, bound, check_ports, close_rest, keep_open, open_sockets
from penstock.processes.start_line import start_line
from penstock.processes.work import Work
from penstock.storage.directory import BROKERS_MAX, open_data_directory
from penstock.storage.disk_probe import probe_disk
from penstock.storage.files import OsFiles
from penstock.storage.segment import RESERVE_BYTES
from penstock.storage.shared_writer import Writer
from penstock.telemetry.logs import set_up_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
    from pathlib import Path

    from penstock.core.service_urls import Addresses
    from penstock.settings import Settings


# ---------------------------------------------------------------------------------------------------------------------
# What the supervisor hands to a broker process, and how that process ends with the supervisor.
#
# Why a socket pair: the broker gets its settings and sockets as the supervisor has them, also when it is started again
# and the configuration file has changed meanwhile. And the end of the supervisor, however it ends, closes the pair.
# Where: `supervisor` sends a `Handover` to each process that it starts, `cli.broker_process` receives it.

READY: Final = b"R"
# Exit status of a broker whose supervisor is gone.
EXIT_ORPHANED: Final = 1
_LENGTH: Final = struct.Struct(">I")
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """One broker of several."""

    number: int
    settings: Settings
    data_dir: Path
    descriptors: Sequence[int | None]  # of its `Sockets`, inherited
    metadata: int  # descriptor of the metadata link, inherited
    addresses: Mapping[int, Addresses]  # of all brokers, by number
    peers: Mapping[int, int]  # descriptors of the ways to their inboxes for requests, by number, inherited
    peer_clients: Mapping[int, int]  # and to those for each other as clients
    usage_key: bytes  # signs usage reports; of this start of the supervisor

    def metadata_socket(self) -> socket.socket:
        """Return the inherited end of the metadata link."""
        return socket.socket(fileno=self.metadata)

    def sockets(self) -> Sockets:
        """Return the inherited sockets."""
        return Sockets(*(None if one is None else socket.socket(fileno=one) for one in self.descriptors))


def inherited(descriptors: Mapping[int, int]) -> dict[int, socket.socket]:
    """Return the inherited sockets of these descriptors."""
    return {number: socket.socket(fileno=one) for number, one in descriptors.items()}


def encoded(handover: Handover) -> bytes:
    """Return the message that `received` reads."""
    body = pickle.dumps(handover)
    return _LENGTH.pack(len(body)) + body


def received(control: socket.socket) -> Handover:
    """Read the handover from the supervisor; blocks. Raises EOFError if the supervisor is gone."""
    (size,) = _LENGTH.unpack(_exactly(control, _LENGTH.size))
    handover = pickle.loads(_exactly(control, size))  # noqa: S301 -- from the parent, over a pair that nobody else has
    assert isinstance(handover, Handover)
    return handover


def end_with_parent(control: socket.socket) -> None:
    """Kill this process when the supervisor ends, even if the loop hangs; raises EOFError if it has ended.

    From then on `watch_parent` notices it too: a kernel may not know the signal.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # A parent that ended before that closed its end of the pair, and has sent nothing.
    control.setblocking(True)
    if not control.recv(1, socket.MSG_PEEK):
        raise EOFError("the supervisor is gone")


def watch_parent(loop: asyncio.AbstractEventLoop, control: socket.socket) -> None:
    """End this process at once, as if killed, when the supervisor is gone: nobody would store its metadata."""
    control.setblocking(False)

    def read() -> None:
        try:
            gone = not control.recv(1)
        except BlockingIOError:
            return
        except OSError:
            gone = True
        if gone:
            end_orphan()

    loop.add_reader(control.fileno(), read)


def end_orphan() -> None:
    """End this process at once: the supervisor is gone."""
    os._exit(EXIT_ORPHANED)


def _exactly(control: socket.socket, nbytes: int) -> bytes:
    pieces = []
    while nbytes:
        piece = control.recv(nbytes)
        if not piece:
            raise EOFError("the supervisor is gone")
        pieces.append(piece)
        nbytes -= len(piece)
    return b"".join(pieces)


log = logging.getLogger(__name__)

# After the stop time of a broker, which ends by itself then, unless it is frozen.
KILL_AFTER_S: Final = 5.0
# A killed process ends at once, unless a disk that does not answer holds it in the kernel. Then it is left behind.
KILLED_S: Final = 2.0
# Storing what the brokers have sent last: one commit. A disk that does not answer must not hold the end.
CLOSE_S: Final = 10.0
EXIT_FAILED: Final = 1
USAGE_KEY_BYTES: Final = 32


def run(settings: Settings, data_dir: Path, brokers: int) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status.

    Raises:
        ConfigurationError: a setting, a port or the data directory cannot be used.
    """
    if brokers > BROKERS_MAX:
        raise ConfigurationError(f"--brokers {brokers}: at most {BROKERS_MAX} brokers run on one data directory")
    check_ports(settings, brokers)
    set_up_logging(settings.log_format, settings.log_level)
    log.info("%s", start_line(settings, f"{brokers} brokers, data in {data_dir.resolve()}", brokers=brokers))
    for warning in settings.warnings:
        log.warning("%s", warning)
    leave_out_brokers(settings, data_dir, brokers)
    ending = Ending()
    status = asyncio.run(_supervise(settings, data_dir, brokers, ending))
    if ending.again:
        start_again()
    return status


async def _supervise(settings: Settings, data_dir: Path, brokers: int, ending: Ending) -> int:
    loop = asyncio.get_running_loop()
    stops = (signal.SIGTERM, signal.SIGINT)
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(Signals(loop))
        for signum in stops:
            signals.on(signum, ending.stop)
        opened = [_opened(settings, number, stack) for number in range(brokers)]
        close_rest()
        where = {one.number: addresses(settings, one.sockets, one.number) for one in opened}
        files = OsFiles()
        directory = open_data_directory(data_dir, files, brokers=brokers)
        writer = Writer.open(directory, _poster(loop), files, brokers=brokers)
        stack.callback(writer.close)
        supervisor = Supervisor(settings, data_dir, opened, where, writer, ending)
        signals.on(signal.SIGHUP, lambda: supervisor.signal(signal.SIGHUP))
        probe = partial(probe_disk, data_dir, files, room_bytes=RESERVE_BYTES)
        healing = loop.create_task(_heal(writer, probe, ending, partial(_keep_ports, settings, opened)))
        stack.callback(healing.cancel)
        status = await supervisor.run()
        if ending.again:
            start_again_within(CLOSE_S, start_again, lambda: ending.again and not signals.unheard(stops))
        else:
            end_within(CLOSE_S, f"{CLOSE_S:g} s after the brokers: the shared metadata cannot be closed")
        return status


async def _heal(writer: Writer, probe: Callable[[], None], ending: Ending, keep_ports: Callable[[], None]) -> None:
    """Return when the shared metadata has failed for good and the disk works again: then all must start again."""
    loop, clock, over = asyncio.get_running_loop(), SystemClock(), asyncio.Event()
    healing = Healing(
        failed=lambda: writer.failed,
        probe=probe,
        in_thread=lambda work: loop.run_in_executor(None, work),
        start_again=over.set,
        now_ns=clock.monotonic_ns(),
    )
    while not over.is_set():
        healing.tick(clock.monotonic_ns())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), BETWEEN_PROBES_NS / NS_PER_S)
    keep_ports()
    ending.start_again()


@dataclass(slots=True)
class Broker:
    """One broker process, from its first start on."""

    number: int
    sockets: Sockets
    peers: socket.socket  # leads to its inbox for requests of the others
    peer_clients: socket.socket  # leads to that for others as clients
    lease: Lease = field(default_factory=Lease)
    restarts: Restarts = field(default_factory=Restarts)
    process: asyncio.subprocess.Process | None = None
    work: Work | None = None  # of the process
    status: int = 0  # it ended with
    was_ready: bool = False


def _opened(settings: Settings, number: int, stack: contextlib.AsyncExitStack) -> Broker:
    requests, clients = open_inbox(), open_inbox()
    stack.callback(requests.close)
    stack.callback(clients.close)
    sockets = open_sockets(settings, number)._replace(peers=requests.receiving, peer_clients=clients.receiving)
    stack.callback(sockets.close)
    return Broker(number, sockets, requests.sending, clients.sending)


def _keep_ports(settings: Settings, brokers: Iterable[Broker]) -> None:
    for broker in brokers:
        keep_open(settings, broker.sockets, broker.number)


class Supervisor:
    """The brokers of one data directory. All methods are called on the event loop."""

    def __init__(
        self,
        settings: Settings,
        data_dir: Path,
        brokers: list[Broker],
        where: dict[int, Addresses],
        writer: Writer,
        ending: Ending,
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._where = where
        self._writer = writer
        self._ending = ending
        self._clock = SystemClock()
        self._announced = False
        self._usage_key = secrets.token_bytes(USAGE_KEY_BYTES)
        self._brokers = brokers
        self._told: list[BrokerState | None] = [None] * len(brokers)

    async def run(self) -> int:
        """Start all brokers and keep them running until the stop; returns the exit status."""
        self._tell()
        keepers = [asyncio.ensure_future(self._keep(broker)) for broker in self._brokers]
        looking = asyncio.ensure_future(self._look())
        try:
            await _first_of(self._ending.asked.wait(), asyncio.wait(keepers))
            await self._end_all(keepers)
        finally:
            looking.cancel()
            self._kill_all()
        for keeper in keepers:
            if keeper.done():
                keeper.result()  # Raises what it raised.
        return max((_exit_status(broker.status) for broker in self._brokers), default=0)

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal to all running brokers."""
        for broker in self._brokers:
            if broker.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    broker.process.send_signal(signum)

    # -- one broker ---------------------------------------------------------------------------------------------------

    async def _keep(self, broker: Broker) -> None:
        """Run a broker, again and again, until it is stopped or stays down."""
        while not self._ending.asked.is_set():
            broker.status = await self._run_once(broker)
            if self._ending.asked.is_set():
                return
            if not all(one.was_ready for one in self._brokers):
                self._ending.asked.set()  # Its own lines say why it could not start.
                return
            if broker.status == 0:
                self._stay_down(broker)
                return
            await self._pause(broker)

    async def _pause(self, broker: Broker) -> None:
        """Wait until a broker that crashed is to be started again."""
        pause_s = broker.restarts.pause_after_crash(self._clock.monotonic_ns())
        log.error(
            "broker %d ended with %s; it is started again%s", broker.number, _said(broker.status),
            f" in {pause_s:g} s" if pause_s else "",
        )  # fmt: skip
        broker.lease.crashed(often=broker.restarts.is_crash_looping)
        self._tell()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ending.asked.wait(), pause_s)

    async def _run_once(self, broker: Broker) -> int:
        """Start the process and wait until it ends; returns its exit status, or -N for signal N."""
        (control, its_control), (metadata, its_metadata) = socket.socketpair(), socket.socketpair()
        with control:
            with its_control, its_metadata:
                broker.process = await self._spawn(broker, its_control, its_metadata)
                if self._ending.asked.is_set():
                    # It was no process yet when all were told.
                    broker.process.send_signal(signal.SIGKILL if self._ending.at_once.is_set() else signal.SIGTERM)
                handover = self._handover(broker, its_metadata)
            broker.work = Work(broker.process.pid)
            broker.lease.started()
            end_link = await serve(self._writer, metadata, partial(self._renewed, broker))
            waiting = asyncio.ensure_future(self._await_ready(broker, control, handover))
            try:
                return await broker.process.wait()
            finally:
                waiting.cancel()
                end_link()
                broker.process = broker.work = None

    async def _spawn(
        self, broker: Broker, control: socket.socket, metadata: socket.socket
    ) -> asyncio.subprocess.Process:
        ways = [sock for one in self._brokers for sock in (one.peers, one.peer_clients)]
        inherited = [sock.fileno() for sock in (control, metadata, *broker.sockets, *ways) if sock is not None]
        return await asyncio.create_subprocess_exec(
            *_python(), "-m", "penstock.cli.broker_process", str(control.fileno()), f"broker-{broker.number}",
            str(self._data_dir), stdin=asyncio.subprocess.DEVNULL, pass_fds=inherited,
        )  # fmt: skip

    async def _await_ready(self, broker: Broker, control: socket.socket, handover: Handover) -> None:
        loop = asyncio.get_running_loop()
        control.setblocking(False)
        with contextlib.suppress(OSError):  # It has ended.
            await loop.sock_sendall(control, encoded(handover))
            if await loop.sock_recv(control, 1) != READY:
                return
            broker.was_ready = True
            broker.lease.ready()
            broker.restarts.ready(self._clock.monotonic_ns())
            self._tell()

    def _handover(self, broker: Broker, metadata: socket.socket) -> Handover:
        return Handover(
            number=broker.number,
            settings=self._settings,
            data_dir=self._data_dir,
            descriptors=[None if sock is None else sock.fileno() for sock in broker.sockets],
            metadata=metadata.fileno(),
            addresses=self._where,
            peers={one.number: one.peers.fileno() for one in self._brokers},
            peer_clients={one.number: one.peer_clients.fileno() for one in self._brokers},
            usage_key=self._usage_key,
        )

    def _stay_down(self, broker: Broker) -> None:
        log.warning("broker %d was stopped; its topics are served again after a restart of penstock", broker.number)
        broker.lease.ended()
        broker.sockets.close()  # Clients that wait for it are refused, and look their topics up again.
        self._tell()

    # -- leases -------------------------------------------------------------------------------------------------------

    def _renewed(self, broker: Broker, state: BrokerState) -> None:
        broker.lease.renew(state)
        self._tell()

    async def _look(self) -> None:
        """Let the leases' time pass, for ever."""
        before_ns = self._clock.monotonic_ns()
        while True:
            await asyncio.sleep(LOOK_EVERY_NS / NS_PER_S)
            now_ns = self._clock.monotonic_ns()
            elapsed_ns, before_ns = min(now_ns - before_ns, ELAPSED_NS_MAX), now_ns
            for broker in self._running():
                self._let_pass(broker, elapsed_ns)
            self._tell()

    def _let_pass(self, broker: Broker, elapsed_ns: int) -> None:
        assert broker.process is not None
        assert broker.work is not None
        lease, before = broker.lease, broker.lease.state
        lease.pass_time(elapsed_ns, works=lease.is_doubtful and broker.work.goes_on(elapsed_ns))
        if lease.state is BrokerState.FENCED is not before:
            log.error("broker %d has not said for too long that it works: it is killed", broker.number)
            with contextlib.suppress(ProcessLookupError):
                broker.process.kill()

    def _tell(self) -> None:
        """Tell all brokers the state of each, if it has changed."""
        states: list[BrokerState | None] = [one.lease.state for one in self._brokers]
        if states == self._told:
            return
        for broker, before in zip(self._brokers, self._told, strict=True):
            if broker.lease.state is not before and ALLOWS[broker.lease.state].problem is not None:
                log.warning("broker %d %s", broker.number, ALLOWS[broker.lease.state].problem)
        self._told = states
        self._writer.set_members(Member(one.number, one.lease.state, self._where[one.number]) for one in self._brokers)
        if all(one.was_ready for one in self._brokers) and not self._announced:
            self._announced = True
            self._print_ready_line()

    def _print_ready_line(self) -> None:
        """Programs that start penstock wait for this line."""
        urls, web = bound(self._settings, self._brokers[0].sockets), self._where[0].web
        tell_ready(urls.plain or urls.tls or "", web.plain or web.tls or "-")

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _end_all(self, keepers: Collection[asyncio.Future[None]]) -> None:
        """End all brokers; those that have not ended in time, or at a second signal, are killed."""
        self._ending.asked.set()
        for broker in self._brokers:
            broker.sockets.close()  # No client connects any more.
        self.signal(signal.SIGTERM)
        stop_s = self._settings.broker_shutdown_timeout_ms / 1000 + KILL_AFTER_S
        tell_stopping(stop_s + KILLED_S + CLOSE_S)
        await _first_of(asyncio.wait(keepers), self._ending.at_once.wait(), timeout_s=stop_s)
        late = ", ".join(f"broker {one.number}" for one in self._running())
        if late:
            why = "a second signal came" if self._ending.at_once.is_set() else f"not ended within {stop_s:g} s"
            log.error("killing %s: %s", late, why)
            self._kill_all()
        await asyncio.wait(keepers, timeout=KILLED_S)
        for broker in self._running():
            broker.status = -signal.SIGKILL
            log.error("broker %d is killed and has not ended: the kernel holds it, perhaps for a disk", broker.number)

    def _running(self) -> list[Broker]:
        return [one for one in self._brokers if one.process is not None and one.process.returncode is None]

    def _kill_all(self) -> None:
        for broker in self._running():
            assert broker.process is not None
            with contextlib.suppress(ProcessLookupError):
                broker.process.kill()


async def _first_of(*what: Coroutine[Any, Any, object], timeout_s: float | None = None) -> None:
    """Wait until one of these has ended, or for this time. The others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in what]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _poster(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    """Pass callables of other threads to the loop; they are dropped after the loop has ended."""

    def post(callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback)

    return post


def _python() -> list[str]:
    """The interpreter, so that it finds the same modules: without the current directory, if this one is without it."""
    here = {"", os.getcwd()}  # noqa: PTH109 -- as `sys.path` has it
    return [sys.executable] if here & set(sys.path) else [sys.executable, "-P"]


def _said(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"


def _exit_status(status: int) -> int:
    """The supervisor's exit status after a broker's: its own, or 1 after a signal.

    A broker that ended to start again has ended well.
    """
    return 0 if status == EXIT_START_AGAIN else EXIT_FAILED if status < 0 else status

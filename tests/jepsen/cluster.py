# SPDX-License-Identifier: Apache-2.0
"""The brokers and the proxy of a run, and the faults that happen to them, each drawn by the run's seed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, Final

from penstock.testing.process import BrokerDidNotStart, ProxyProcess
from tests.processes.cluster import Cluster, free_ports, is_running, until

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from typing import Any

    from tests.jepsen.faulty_disk import FaultyDisk
    from tests.jepsen.history import History

BROKERS_MAX: Final = 4
TAKEN: Final = "cannot be opened: Address already in use"
PROXY_SETTINGS: Final = "brokerProxyAllowedIPAddresses=127.0.0.1\nbrokerProxyAllowedTargetPorts=*\n"


class Brokers:
    """`penstock serve` with one to four brokers, and a proxy before them."""

    def __init__(self, scratch: Path, disk: FaultyDisk, history: History, chance: random.Random) -> None:
        self._disk = disk
        self._history = history
        self._chance = chance
        self._scratch = scratch
        self._port = free_ports(2 * BROKERS_MAX)
        self.cluster = Cluster(scratch / "data", chance.randint(1, BROKERS_MAX), environment=disk.environment)
        self._proxy: ProxyProcess | None = None
        self._runs = False
        self._up = asyncio.Lock()
        self.slow_readers: Callable[[float], None] = lambda _seconds: None
        self.cut_lines: Callable[[float], None] = lambda _share: None

    @property
    def any_broker(self) -> int:
        return self._port + self._chance.randrange(self.cluster.brokers)

    @property
    def proxy(self) -> int | None:
        return self._proxy.port if self._proxy is not None else None

    async def start(self) -> None:
        await self._start()
        config = self._scratch / "proxy.conf"
        config.write_text(PROXY_SETTINGS)
        proxy = ProxyProcess(
            f"pulsar://127.0.0.1:{self._port}", ["--config", str(config)], log_path=self._scratch / "proxy.log"
        )
        await asyncio.to_thread(proxy.start)
        self._proxy = proxy

    async def _start(self) -> None:
        self.cluster.arguments[1] = str(self.cluster.brokers)
        self._runs = False
        try:
            await self._start_at_ports()
        except BrokerDidNotStart as error:
            if TAKEN not in str(error):
                raise
            # While no broker ran, another program of this machine took one of its ports.
            self._port = free_ports(2 * BROKERS_MAX)
            await self._start_at_ports()
        self._runs = True

    async def _start_at_ports(self) -> None:
        await asyncio.to_thread(self.cluster.start, port=self._port, admin_port=self._port + BROKERS_MAX)

    async def close(self) -> None:
        self._disk.heal()
        if self._proxy is not None:
            await asyncio.to_thread(self._proxy.stop)
        async with self._up:
            if self._runs:
                await asyncio.to_thread(self.cluster.stop)

    async def http(self, method: str, path: str, value: object = None) -> tuple[int, Any]:
        """Ask the first broker; (0, why) if that is impossible now."""
        try:
            return await asyncio.to_thread(self.cluster.http, 0, method, path, value)
        except OSError as error:
            return 0, str(error)

    # -- faults -------------------------------------------------------------------------------------------------------

    @property
    def faults(self) -> tuple[Callable[[], Coroutine[Any, Any, str]], ...]:
        """All that can happen. Each says what it did."""
        return (
            self.kill_one, self.kill_all, self.freeze_one, self.stop_and_resize, self.fail_a_sync, self.fail_a_write,
            self.fill_the_disk, self.hang_the_disk, self.write_short, self.sync_slowly, self.move_the_clock, self.cut,
            self.read_slowly,
        )  # fmt: skip

    async def happen(self, fault: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """Let one fault happen, and write it down."""
        async with self._up:
            what = await fault()
        self._history.add("fault", fault.__name__, what)

    def _victim(self) -> tuple[int, int | None]:
        """A broker and its process; None while it is not there."""
        number = self._chance.randrange(self.cluster.brokers)
        return number, self.cluster.pid if self.cluster.brokers == 1 else self.cluster.pids().get(number)

    def _directory(self) -> Path:
        return self.cluster.data_dir / f"broker-{self._chance.randrange(self.cluster.brokers)}"

    async def kill_one(self) -> str:
        """kill -9 of a broker."""
        if self.cluster.brokers == 1:
            return await self.kill_all()
        number, pid = self._victim()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return f"broker {number}"

    async def kill_all(self) -> str:
        """kill -9 of the supervisor, and a new start."""
        pids = list(self.cluster.pids().values())
        await asyncio.to_thread(self.cluster.kill)
        await asyncio.to_thread(until, lambda: not any(map(is_running, pids)))
        await self._start()
        return f"{self.cluster.brokers} brokers"

    async def freeze_one(self) -> str:
        """SIGSTOP, and SIGCONT a moment later."""
        number, pid = self._victim()
        seconds = self._chance.uniform(0.1, 1.5)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(seconds)
                os.kill(pid, signal.SIGCONT)
        return f"broker {number} for {seconds:.1f} s"

    async def stop_and_resize(self) -> str:
        """SIGTERM, and a start with another number of brokers."""
        before = self.cluster.brokers
        status = await asyncio.to_thread(self.cluster.stop)
        self.cluster.brokers = self._chance.randint(1, BROKERS_MAX)
        await self._start()
        return f"{before} to {self.cluster.brokers} brokers, status {status}"

    async def fail_a_sync(self) -> str:
        """One EIO of a sync."""
        return await self._fail(0.5, syncs=1)

    async def fail_a_write(self) -> str:
        """One EIO of a write."""
        return await self._fail(0.5, writes=1)

    async def fill_the_disk(self) -> str:
        """ENOSPC for whatever makes a file larger."""
        return await self._fail(self._chance.uniform(0.2, 1.5), full=True)

    async def hang_the_disk(self) -> str:
        """Syncs that do not return for a while."""
        return await self._fail(self._chance.uniform(1.0, 6.0), hang=True)

    async def write_short(self) -> str:
        """Writes that take half of what they are given."""
        return await self._fail(1.0, short_writes=True)

    async def sync_slowly(self) -> str:
        """Syncs that take a quarter of a second."""
        return await self._fail(1.5, slow_sync_us=250_000)

    async def _fail(
        self,
        seconds: float,
        *,
        syncs: int = 0,
        writes: int = 0,
        full: bool = False,
        short_writes: bool = False,
        slow_sync_us: int = 0,
        hang: bool = False,
    ) -> str:
        below, before = self._directory(), self._disk.injected
        self._disk.fail(
            below,
            syncs=syncs,
            writes=writes,
            full=full,
            short_writes=short_writes,
            slow_sync_us=slow_sync_us,
            hang=hang,
        )
        await asyncio.sleep(seconds)
        self._disk.heal()
        return f"{below.name}, {self._disk.injected - before} calls failed"

    async def move_the_clock(self) -> str:
        """The wall clock of all processes jumps, and back again later."""
        seconds = self._chance.choice((-3_600, -5, 5, 3_600))
        self._disk.move_clock(seconds)
        await asyncio.sleep(1.0)
        self._disk.move_clock(0)
        return f"{seconds} s"

    async def cut(self) -> str:
        """Connections end without a word."""
        self.cut_lines(0.5)
        return "half of the connections"

    async def read_slowly(self) -> str:
        """Consumers read nothing for a while."""
        self.slow_readers(2.0)
        return "half of the consumers"

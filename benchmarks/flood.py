# SPDX-License-Identifier: Apache-2.0
"""`make flood`: a thousand connections of large frames against a pool of two, and what it costs everybody else.

Why: request memory is a promise about a bad day, so the bad day is made: on real sockets, over plain TCP and TLS, under
the kernel's hard limit where we may set one.
Where: prints a table of what was measured against its bound; exits 1 if one was violated.

What must hold, with a pool of two of the largest frames:

- the broker is alive, and its resident memory never exceeds what it was with the same connections open and idle, plus
  the pool, plus 64 MiB; where we may, the kernel enforces the same figure;
- every SEND gets its receipt, and every message with a receipt can be consumed;
- used request memory stays within the pool and one frame less a byte, and is zero in the end;
- publishers of small messages keep 95 % of their throughput while 100 clients announce 5 MiB each and trickle.

    python -m benchmarks.flood --connections 50 --mebibytes 64
    python -m benchmarks.flood --proxy --stall-s 10

With --proxy, the pool and the limit are those of a proxy, and its broker stands still for a while in the middle.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from benchmarks.brokers import penstock
from benchmarks.memory_group import MemoryGroup
from benchmarks.process import forget_peak, free_port, metrics, usage
from penstock.testing.certificates import Certificate
from penstock.testing.process import ProxyProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    from benchmarks.process import Address

ROOT = Path(__file__).resolve().parents[1]
MIB = 1024 * 1024
FRAME_BYTES_MAX = 5 * MIB + 10 * 1024
POOL_BYTES = 2 * FRAME_BYTES_MAX
ALLOWANCE_BYTES = 64 * MIB
HONEST_CONNECTIONS = 4
DRIBBLERS = 100
HONEST_RATIO_MIN = 0.95
SETTLE_S = 1.0
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what was measured, and the bound it must keep."""

    what: str
    measured: str
    bound: str = ""
    kept: bool = True


class Clients:
    """One process of `flood_clients`."""

    def __init__(
        self, kind: str, port: int, connections: int, *arguments: str, ca: Path | None = None, through: str = ""
    ) -> None:
        command = [sys.executable, "-m", "benchmarks.flood_clients", kind, "--port", str(port)]
        command += ["--connections", str(connections), *arguments]
        command += [] if ca is None else ["--tls-ca", str(ca)]
        command += ["--through", through] if through else []
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.started = self.answer()

    def ask(self, word: str) -> dict[str, Any]:
        """Send a word, wait for its answer."""
        assert self._process.stdin is not None
        print(word, file=self._process.stdin, flush=True)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Wait for an answer. Raises RuntimeError when the process failed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the flood's clients ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class Subject:
    """A broker to be flooded, and how its clients reach it; or a proxy, and the broker behind it."""

    address: Address
    port: int
    ca: Path | None
    group: MemoryGroup | None
    broker: Address | None = None  # behind a proxy

    def clients(self, kind: str, connections: int, *arguments: str) -> Clients:
        """Start a process of clients."""
        through = "" if self.broker is None else f"127.0.0.1:{self.broker.port}"
        return Clients(kind, self.port, connections, *arguments, ca=self.ca, through=through)

    def figures(self) -> dict[str, float]:
        """The broker's own account of itself."""
        return metrics(self.address.admin_port)

    def rss_bytes(self) -> tuple[int, int]:
        """Resident memory now and at its highest."""
        seen = usage(self.address.pid)
        return int(seen.rss_mib * MIB), int(seen.rss_peak_mib * MIB)


@contextmanager
def subject(*, tls: bool, hard: bool, proxied: bool = False) -> Iterator[Subject]:
    """Start a broker with a pool of two frames, in a memory group if wanted and possible; remove it all at the end.

    With `proxied`, a proxy has the pool and is in the group; the broker behind it has its own defaults.
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-flood-")))
        group = MemoryGroup.make() if hard else None
        if group is not None:
            stack.callback(group.remove)
        arguments, ca, tls_port = [], None, 0
        if tls:
            certificate = Certificate.make(scratch)
            ca, tls_port = certificate.certificate, free_port()
            arguments = ["--tls-cert", str(ca), "--tls-key", str(certificate.key), "--tls-port", str(tls_port)]
        limits = {"queued.max.request.bytes": str(POOL_BYTES)}
        if proxied:
            broker = stack.enter_context(penstock(scratch / "data"))
            settings = scratch / "proxy.conf"
            settings.write_text("".join(f"{name}={value}\n" for name, value in limits.items()))
            arguments = ["--config", str(settings), *arguments]
            proxy = ProxyProcess(broker.url, arguments, log_path=scratch / "proxy.log")
            with nullcontext() if group is None else group.inside():
                proxy.start()
            stack.enter_context(proxy)
            address = replace(broker, port=proxy.port, admin_port=proxy.admin_port, pid=proxy.pid)
            yield Subject(address, tls_port or address.port, ca, group, broker)
            return
        with nullcontext() if group is None else group.inside():
            address = stack.enter_context(penstock(scratch / "data", settings=limits, arguments=arguments))
        yield Subject(address, tls_port or address.port, ca, group)


@contextmanager
def stall(target: Subject, seconds: float) -> Iterator[None]:
    """Let the broker behind a proxy stand still for a while, as soon as the proxy's request memory is in use."""
    broker = target.broker
    if broker is None or not seconds:
        yield
        return

    def stand_still() -> None:
        deadline = time.monotonic() + seconds
        while not target.figures()["MemoryPoolUsed"] and time.monotonic() < deadline:
            time.sleep(POLL_S)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(broker.pid, signal.SIGCONT)

    thread = threading.Thread(target=stand_still)
    thread.start()
    try:
        yield
    finally:
        thread.join()


# ------------------------------------------------------------------------------------------------------------ the flood


def flood(target: Subject, options: argparse.Namespace) -> Iterator[Row]:
    """Measure the baseline, flood, and look at everything afterwards."""
    arguments = ["--mebibytes", str(options.mebibytes), "--seed", str(options.seed)]
    with target.clients("flood", options.connections, *arguments) as clients:
        time.sleep(SETTLE_S)
        baseline, _ = target.rss_bytes()
        forget_peak(target.address.pid)
        limit = baseline + POOL_BYTES + ALLOWANCE_BYTES
        if target.group is not None:
            target.group.limit(limit)
        with stall(target, options.stall_s):
            poured = clients.ask("go")
        used = until_nothing_is_used(target)
        _, peak = target.rss_bytes()
        figures = target.figures()
        lost = clients.ask("check")["lost"]
        frames, nbytes = clients.started["frames"], clients.started["bytes"]
    yield Row(
        "flooded",
        f"{nbytes / MIB:,.0f} MiB in {frames:,} frames on {options.connections:,} connections, "
        f"{nbytes / MIB / poured['seconds']:,.0f} MiB/s",
    )
    yield Row("baseline RSS, connections idle", mib(baseline))
    yield Row("highest RSS", f"{mib(peak)} (+{mib(peak - baseline)})", f"<= {mib(limit)}", kept=peak <= limit)
    if target.group is None:
        yield Row("hard limit", "not tried: no memory control group can be made here")
    else:
        kills = target.group.kills()
        yield Row("killed by the kernel at that limit", str(kills), "0", kept=kills == 0)
    missing = poured["without_receipt"]
    yield Row("frames without a receipt", str(missing), "0", kept=missing == 0)
    yield Row("messages with a receipt that are lost", str(lost), "0", kept=lost == 0)
    used_max, used_bound = int(figures["penstock_request_memory_used_max_bytes"]), POOL_BYTES + FRAME_BYTES_MAX - 1
    yield Row("most request memory used", f"{used_max:,}", f"<= {used_bound:,}", kept=used_max <= used_bound)
    yield Row("request memory used in the end", str(used), "0", kept=used == 0)
    yield Row("reading was short of memory for", f"{figures['MemoryPoolDepletedTimeTotal'] / 1000:.1f} s")
    evicted = figures["penstock_request_memory_evicted_total"]
    yield Row("evicted, and came again", f"{evicted:.0f}, {poured['reconnects']}")


def until_nothing_is_used(target: Subject) -> int:
    """Wait for the last release; returns what was still used when patience ended."""
    deadline = time.monotonic() + 5
    while (used := int(target.figures()["MemoryPoolUsed"])) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return used


# ------------------------------------------------------------------------------------------------- honest and dribblers


def beside_dribblers(target: Subject, options: argparse.Namespace) -> Row:
    """Throughput of small publishers, in turns alone and beside dribblers, from the first moment of their attack."""
    alone: list[float] = []
    ratios: list[float] = []
    with (
        target.clients("honest", HONEST_CONNECTIONS, "--seconds", str(options.seconds)) as honest,
        target.clients("dribble", options.dribblers) as dribblers,
    ):
        honest.ask("run")  # to warm up
        while len(ratios) < options.rounds or (
            # A few per cent are also what a busy machine costs: look longer before calling it a violation.
            len(ratios) < 3 * options.rounds and statistics.median(ratios) < HONEST_RATIO_MIN
        ):
            # Alone, beside, beside, alone: what drifts meanwhile is the same for both.
            first = honest.ask("run")["receipts_per_s"]
            dribblers.ask("go")
            beside = [honest.ask("run")["receipts_per_s"] for _ in range(2)]
            dribblers.ask("stop")
            last = honest.ask("run")["receipts_per_s"]
            alone += [first, last]
            ratios.append(sum(beside) / (first + last))
    ratio = statistics.median(ratios)
    what = f"small publishers beside {options.dribblers} that trickle"
    measured = f"{ratio:.0%} of {statistics.median(alone):,.0f} entries/s"
    return Row(what, measured, f">= {HONEST_RATIO_MIN:.0%}", kept=ratio >= HONEST_RATIO_MIN)


# ----------------------------------------------------------------------------------------------------------------- main


def mib(size: int) -> str:
    """A size as people read it."""
    return f"{size / MIB:,.1f} MiB"


def report(rows: Iterable[Row]) -> bool:
    """Print rows as they come; returns whether all bounds were kept."""
    kept = True
    for row in rows:
        verdict = "" if not row.bound else "ok" if row.kept else "VIOLATED"
        print(f"  {row.what:<50} {row.measured:<66} {row.bound:<16} {verdict}", flush=True)
        kept = kept and row.kept
    return kept


def measure(options: argparse.Namespace, *, tls: bool) -> list[Row]:
    """Everything, over one transport."""
    with subject(tls=tls, hard=True, proxied=options.proxy) as target:
        return [*flood(target, options), beside_dribblers(target, options)]


def main(argv: Sequence[str] | None = None) -> int:
    """Flood over the wanted transports, print the tables, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--mebibytes", type=int, default=384, help="how much to publish over each transport")
    parser.add_argument("--dribblers", type=int, default=DRIBBLERS)
    parser.add_argument("--rounds", type=int, default=3, help="of small publishers alone, then beside dribblers")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each quarter of a round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transport", choices=("plain", "tls", "both"), default="both")
    parser.add_argument("--proxy", action="store_true", help="flood a proxy before a broker")
    parser.add_argument("--stall-s", type=float, default=0.0, help="with --proxy: so long the broker stands still")
    options = parser.parse_args(argv)
    kept = True
    for transport in ("plain", "tls"):
        if options.transport in {transport, "both"}:
            rows = measure(options, tls=transport == "tls")
            print(f"\n{transport}, pool {mib(POOL_BYTES)}")
            kept = report(rows) and kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

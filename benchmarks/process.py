# SPDX-License-Identifier: Apache-2.0
"""A broker as the benchmarks see it: an address, a process id, and what `/proc` says about that process.

Why: penstock and its peer must be started, measured and stopped in exactly the same way, or the ratios mean nothing.
Where: `brokers` and `pulsar_peer` make addresses; `run` reads processor time and memory between loads.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

KIB = 1024
# The first request loads what answers it, and a broker that is measured may be busy.
ASK_TIMEOUT_S = 120.0
# Pulsar's standalone closes its ledgers on SIGTERM; past this it hangs, and a benchmark must not.
STOP_TIMEOUT_S = 30.0
# Java's brokers: 7 s when the machine is idle; 36 s was seen under load.
START_TIMEOUT_S = 120.0
POLL_S = 0.05
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by a proxy of the environment


class PeerError(RuntimeError):
    """A broker could not be started; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where one running broker listens (loopback), its process, where it keeps its data, and when it was started."""

    port: int
    admin_port: int
    pid: int
    data: Path
    started_s: float  # on the monotonic clock, just before the process was made
    tls_port: int = 0
    tls_ca: Path | None = None  # what clients of that port trust
    through: str = ""  # of a proxy: the broker that clients are to be connected to; "": to none

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        """Where the admin port answers."""
        return f"http://127.0.0.1:{self.admin_port}"


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time of a process so far, and its resident memory now and at its highest."""

    cpu_s: float
    rss_mib: float
    rss_peak_mib: float


def usage(pid: int) -> Usage:
    """Read what a process has used. Raises FileNotFoundError when it has ended."""
    # The command's name may hold spaces and brackets; after it come numbers, utime and stime the 12th and 13th.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    memory = {
        name: int(value.split()[0]) / KIB
        for name, _, value in (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        if name in {"VmRSS", "VmHWM"}
    }
    if memory.keys() != {"VmRSS", "VmHWM"}:
        raise FileNotFoundError(f"process {pid} has ended")
    return Usage((int(fields[11]) + int(fields[12])) / TICKS_PER_S, memory["VmRSS"], memory["VmHWM"])


def cpu_of_all_s(pid: int) -> float:
    """Read the processor time of a process and its descendants, those excepted that end meanwhile."""
    return sum(one.cpu_s for one in usage_of_all(pid))


def rss_of_all_mib(pid: int) -> float:
    """Read the resident memory of a process and its descendants; what they share counts for each."""
    return sum(one.rss_mib for one in usage_of_all(pid))


def usage_of_all(pid: int) -> Iterator[Usage]:
    """Read what a process and its descendants have used, those excepted that end meanwhile."""
    yield usage(pid)
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in children.read_text().split():
                yield from usage_of_all(int(child))


def forget_peak(pid: int) -> None:
    """Let the highest resident memory begin anew; where that is not allowed, it is the highest of all time."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def allow_many_sockets() -> None:
    """Let this process have as many open files as it may."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def ask(admin_port: int, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 -- whatever it answers
    """What an admin port answers to a request below /admin/v2; None for nothing. Raises OSError."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{admin_port}/admin/v2/{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    with _OPENER.open(request, timeout=ASK_TIMEOUT_S) as answer:
        return json.loads(answer.read() or b"null")


def metrics(admin_port: int, timeout_s: float = ASK_TIMEOUT_S) -> dict[str, float]:
    """A broker's metrics, as `parse_metrics` has them. Raises OSError."""
    with _OPENER.open(f"http://127.0.0.1:{admin_port}/metrics/", timeout=timeout_s) as answer:
        return parse_metrics(answer.read().decode())


def parse_metrics(text: str) -> dict[str, float]:
    """The metrics of a page in Prometheus' text format by name, each summed over its labels."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            sample, _, value = line.rpartition(" ")
            name = sample.partition("{")[0]
            values[name] = values.get(name, 0.0) + float(value)
    return values


def cache_of(folder: str) -> Path:
    """Where a peer's programs are kept between runs."""
    return Path(os.environ.get("PENSTOCK_PEER_CACHE", "~/.cache/penstock-peer")).expanduser() / folder


def accepts(port: int) -> bool:
    """Whether somebody listens."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def wait_for(process: subprocess.Popen[bytes], is_ready: Callable[[], bool], name: str, logs: Sequence[Path]) -> None:
    """Return once a peer is ready. Raises PeerError, with the end of the first of its logs that says something."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline_s:
            said = (log.read_text(errors="replace") for log in logs if log.exists())
            tail = next((text[-2000:] for text in said if text), "")
            raise PeerError(f"{name} did not become ready in {START_TIMEOUT_S:.0f} s; its log ends:\n{tail}")
        time.sleep(POLL_S)


def free_port() -> int:
    """Return a loopback port that was free a moment ago, for servers that cannot choose one and tell."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, wait, and insist if it does not."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def forget_pages(directory: Path) -> None:
    """Drop a directory's files from the page cache, so that the next read comes from the disk. Needs no rights."""
    os.sync()  # Dirty pages cannot be dropped.
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

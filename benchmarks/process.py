# SPDX-License-Identifier: Apache-2.0
"""A broker as the benchmarks see it: an address, a process id, and what `/proc` says about that process.

Why: penstock and its peer must be started, measured and stopped in exactly the same way, or the ratios mean nothing.
Where: `penstock_peer` and `pulsar_peer` make addresses; `run` reads processor time and memory between loads.
"""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

KIB = 1024
# Pulsar's standalone closes its ledgers on SIGTERM; past this it hangs, and a benchmark must not.
STOP_TIMEOUT_S = 30.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


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


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time of a process so far, and its resident memory now and at its highest."""

    cpu_s: float
    rss_mib: float
    rss_peak_mib: float


def usage(pid: int) -> Usage:
    """Read what a process has used. Raises FileNotFoundError when it is gone."""
    # The command's name may hold spaces and brackets; after it come numbers, utime and stime the 12th and 13th.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    memory = {
        name: int(value.split()[0]) / KIB
        for name, _, value in (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        if name in {"VmRSS", "VmHWM"}
    }
    return Usage((int(fields[11]) + int(fields[12])) / TICKS_PER_S, memory["VmRSS"], memory["VmHWM"])


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

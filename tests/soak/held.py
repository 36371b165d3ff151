# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run hold: memory, descriptors, threads, tasks, rows of the budget, and files on the disk."""

from __future__ import annotations

import os
import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.core.units import KIB, MIB

if TYPE_CHECKING:
    from penstock.testing.process import ProxyProcess
    from tests.processes.cluster import Cluster

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_USED: Final = re.compile(r'^penstock_memory_used_bytes\{owner="([^"]+)"\} (\S+)$', re.MULTILINE)
_TASKS: Final = re.compile(r"^penstock_loop_tasks (\S+)$", re.MULTILINE)


class Held:
    """Looks at `penstock serve --brokers N` and at a proxy."""

    def __init__(self, cluster: Cluster, proxy: ProxyProcess, directory: Path) -> None:
        self._pids = {"supervisor": cluster.pid, "proxy": proxy.pid}
        self._pids |= {f"broker {number}": pid for number, pid in enumerate(_children(cluster.pid))}
        ports = {f"broker {number}": cluster.admin_port + number for number in range(cluster.brokers)}
        self._ports = {**ports, "proxy": proxy.admin_port}
        self._directory = directory

    def look(self) -> dict[str, Any]:
        """Return each figure of each process, and the rows of their budgets in bytes. Blocks."""
        held = {who: _of_process(pid) for who, pid in self._pids.items()}
        rows: dict[str, dict[str, float]] = {}
        for who, port in self._ports.items():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                text = answer.read().decode()
            rows[who] = {owner: float(value) for owner, value in _USED.findall(text)}
            found = _TASKS.search(text)
            assert found is not None, f"no number of tasks in the metrics of {who}"
            held[who] |= {"tasks": float(found[1]), "budget KiB": sum(rows[who].values()) / KIB}
        files = [path for path in self._directory.rglob("*") if path.is_file()]
        held["disk"] = {"files": len(files), "disk MiB": sum(map(_allocated_bytes, files)) / MIB}
        return {"held": held, "rows": rows}


def _children(pid: int) -> list[int]:
    """The children of a process, oldest first."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _of_process(pid: int) -> dict[str, float]:
    process = Path("/proc") / str(pid)
    return {
        "resident MiB": int((process / "statm").read_text().split()[1]) * PAGE_BYTES / MIB,
        "descriptors": len(list((process / "fd").iterdir())),
        "threads": len(list((process / "task").iterdir())),
    }


def _allocated_bytes(path: Path) -> int:
    """What a file takes on the disk; 0 if it has been removed meanwhile."""
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0

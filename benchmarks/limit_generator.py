# SPDX-License-Identifier: Apache-2.0
"""The client of `limit_peer`: what the machine reaches in a load, as the least of what its parts reach.

Why: a broker receives, writes and sends at the same time, so the slowest part limits it. Each part is measured alone,
with the bytes that penstock's generator sends, and in the largest groups that penstock could make: while half of what
is outstanding is written and synced, the other half comes in, and a group has 8 MiB at most. What the disk reaches in
groups of one read of a socket is told beside it, for where syncs are short, penstock's groups are hardly larger.
Where: `run` starts it for the loads of `--peer limit`.

| load | limited by |
|---|---|
| publish | the disk, and receiving with receipts |
| publish and consume | the disk, and an echo |
| catch-up | sending from the file, which is in the page cache unless the load is cold |
| receipts at a rate | a write and a sync for each entry behind a round trip |

What a copy in memory reaches is told beside it, and limits none of them.
"""

from __future__ import annotations

import json
import select
import socket
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from benchmarks.client import TIMEOUT_S
from benchmarks.generator import POLL_NS, measure
from benchmarks.limit_peer import READ_BYTES, RECEIPT
from benchmarks.loads import COPY, COST, DISK, DISK_BY_READS, LOOPBACK, RATE, VOLUME
from benchmarks.measure import LATENCY_PER_S, NS_PER_S, WARM_UP_RATIO, Figures, Load, Reading, parse_load, percentiles
from penstock.cli.bench_frames import Block
from penstock.net.blocking import dial
from penstock.net.listener import SOCKET_RECEIVE_BYTES
from penstock.storage.limits import LogLimits

if TYPE_CHECKING:
    from collections.abc import Callable

# The parts that are not the load itself are measured for so long at most.
PART_S_MAX: Final = 1.0


class Line:
    """A connection that keeps the process in one role busy, a window of entries ahead of its answers."""

    def __init__(self, load: Load, role: str, entry_bytes: int, answer_bytes: int) -> None:
        self.socket = open_line(load.port, role=role, entry_bytes=entry_bytes)
        self.socket.setblocking(False)
        self.entry_bytes, self.answer_bytes = entry_bytes, answer_bytes
        self.window_bytes = load.window * load.connections * entry_bytes
        self.out = memoryview(bytes(READ_BYTES))
        self.answers = memoryview(bytearray(READ_BYTES))
        self.sent_bytes = self.came_bytes = 0

    @property
    def entries(self) -> int:
        """Entries that were answered."""
        return self.came_bytes // self.answer_bytes

    def turn(self) -> None:
        """Send what the window permits, and take what has come."""
        room = self.window_bytes - (self.sent_bytes - self.entries * self.entry_bytes) if self.entry_bytes else 0
        readable, writable, _ = select.select([self.socket], [self.socket] if room > 0 else [], [], 0.05)
        if readable:
            nbytes = self.socket.recv_into(self.answers)
            if not nbytes:
                raise ConnectionError("the process of --peer limit closed the connection")
            self.came_bytes += nbytes
        if writable:
            self.sent_bytes += self.socket.send(self.out[: min(room, READ_BYTES)])


def open_line(port: int, **asked: object) -> socket.socket:
    """Connect, and give the process its role."""
    line = dial("127.0.0.1", port, TIMEOUT_S)
    line.sendall(json.dumps(asked).encode() + b"\n")
    return line


def told(load: Load, **asked: object) -> dict[str, Any]:
    """What the process says about something that it does alone."""
    with closing(open_line(load.port, **asked)) as line, line.makefile("rb") as answers:
        answer: dict[str, Any] = json.loads(answers.readline())
        return answer


def frame_bytes(load: Load) -> int:
    """How many bytes the generator sends for an entry, in the mean."""
    block = Block.make(load.shape, load.seed)
    return len(block.frames) // len(block.ends)


def group_bytes(load: Load) -> int:
    """How many bytes penstock writes at once in a load, at most."""
    outstanding = load.window * load.connections * frame_bytes(load)
    return max(frame_bytes(load), min(outstanding // 2, LogLimits().commit_bytes_max))


def part(load: Load, role: str, nbytes: int) -> float:
    """Measure what the process does alone in groups of so many bytes, in MB of payload a second."""
    done = told(load, role=role, group_bytes=nbytes, seconds=min(load.seconds, PART_S_MAX))
    return float(done["bytes"] / done["seconds"] / frame_bytes(load) * load.shape.entry_bytes / 1e6)


def limited(load: Load, role: str, sent_bytes: int, answer_bytes: int, *, disk: bool = True) -> Figures:
    """Measure all parts of a load; its figures are those of the slowest part."""
    line = Line(load, role, sent_bytes, answer_bytes)
    with closing(line.socket):
        start, end = measure(load, lambda: line.entries, line.turn)
    taken = without_costs(start.until(end, load))
    parts = {LOOPBACK: taken[VOLUME], **({DISK: part(load, "write", group_bytes(load))} if disk else {})}
    volume = min(parts.values())
    if disk:
        parts[DISK_BY_READS] = part(load, "write", min(SOCKET_RECEIVE_BYTES, group_bytes(load)))
    parts[COPY] = part(load, "copy", group_bytes(load))
    rate = volume * 1e6 / load.shape.entry_bytes
    return {
        **taken,
        RATE: rate,
        "messages/s": rate * load.shape.messages,
        VOLUME: volume,
        **parts,
    }


def publish(load: Load) -> Figures:
    """Entries come, are written, and have their receipts."""
    return limited(load, "take", frame_bytes(load), len(RECEIPT))


def tail(load: Load) -> Figures:
    """Entries come, are written, and go on."""
    return limited(load, "echo", frame_bytes(load), frame_bytes(load))


def backlog(load: Load) -> Figures:
    """Store as many bytes as the entries have."""
    return {"bytes": float(told(load, role="fill", bytes=load.entries * frame_bytes(load))["bytes"])}


def catch_up(load: Load) -> Figures:
    """Entries go from the file to the socket."""
    return limited(load, "give", 0, frame_bytes(load), disk=False)


def latency(load: Load) -> Figures:
    """Send an entry by the clock, whatever the answers do; time each from its due moment."""
    nbytes, interval_ns, count = frame_bytes(load), NS_PER_S // LATENCY_PER_S, round(load.seconds * LATENCY_PER_S)
    warm, entry, taken_ns, came = round(count * WARM_UP_RATIO), bytes(frame_bytes(load)), list[int](), 0
    with closing(open_line(load.port, role="sync", entry_bytes=nbytes)) as line:
        line.settimeout(TIMEOUT_S)
        line.sendall(entry)  # The first one waits until the file is there.
        line.recv(len(RECEIPT), socket.MSG_WAITALL)
        begin_ns = time.monotonic_ns() + interval_ns
        start = Reading.take(load, 0)

        def take(timeout_s: float) -> None:
            nonlocal came
            if select.select([line], [], [], timeout_s)[0]:
                before, came = came // len(RECEIPT), came + len(line.recv(READ_BYTES))
                now_ns = time.monotonic_ns()
                taken_ns.extend(now_ns - begin_ns - row * interval_ns for row in range(before, came // len(RECEIPT)))

        for row in range(warm + count):
            while (left_ns := begin_ns + row * interval_ns - time.monotonic_ns()) > 0:
                take(max(0, left_ns - POLL_NS) / NS_PER_S)
            line.sendall(entry)
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(taken_ns) < warm + count:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{warm + count - len(taken_ns)} entries were not answered within {TIMEOUT_S:g} s")
            take(0.05)
        end = Reading.take(load, len(taken_ns))
    return without_costs(start.until(end, load, percentiles(sorted(ns / 1e6 for ns in taken_ns[warm:]))))


def without_costs(taken: Figures) -> Figures:
    """Leave out processor times: both ends of the line are the machine, and neither makes a load void."""
    return {figure: value for figure, value in taken.items() if figure not in {COST, "broker core", "generator core"}}


MODES: Final[dict[str, Callable[[Load], Figures]]] = {
    "publish": publish,
    "backlog": backlog,
    "catch-up": catch_up,
    "latency": latency,
    "tail": tail,
    "exclusive": tail,
    "shared-1": tail,
    "shared-10": tail,
}


def main() -> None:
    """Drive one load and print its result."""
    mode, load = parse_load()
    print(json.dumps(MODES[mode](load)))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""What an entry costs when few come: publishes by the clock, and reads the processor time of the broker's threads.

Why: at full speed hundreds of entries share a read, a sync and a receipt. At a thousand a second each has its own, and
the cost of waking threads decides. Processor time is what differs between versions; the latency must not grow for it.
Where: `run` drives the rows `low-rate-…` with it.

Options: `rate`, entries a second over all connections; `one_by_one`, whether an entry that is due while a receipt is
outstanding is left out. Then each sync is for one entry, also on a disk that is slow at times.
"""

from __future__ import annotations

import json
import select
import selectors
import time
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks.generator import POLL_NS, Publisher
from benchmarks.loads import LOOP_COST, OTHERS_COST
from benchmarks.measure import DRAIN_TIMEOUT_S, NS_PER_S, WARM_UP_RATIO, Figures, Load, Reading, parse_load, percentiles


class Paced:
    """Connections that publish in turns, one entry each time one is due."""

    def __init__(self, load: Load, stack: ExitStack) -> None:
        self.publishers = [Publisher(load, row) for row in range(load.connections)]
        self.selector = stack.enter_context(selectors.DefaultSelector())
        for row, publisher in enumerate(self.publishers):
            stack.enter_context(closing(publisher.client))
            self.selector.register(publisher.client, selectors.EVENT_READ, row)
        self.sockets = [publisher.client.socket for publisher in self.publishers]
        self.due_ns: list[list[int]] = [[] for _ in self.publishers]
        self.answered = [0] * load.connections
        self.taken_ns: list[int] = []

    @property
    def outstanding(self) -> bool:
        """Whether a receipt is missing."""
        return any(publisher.outstanding for publisher in self.publishers)

    def take(self, timeout_s: float) -> None:
        """Take receipts, and how long each took from the moment at which its entry was due."""
        for key, _ in self.selector.select(timeout_s):
            row, publisher = key.data, self.publishers[key.data]
            publisher.receive()
            now_ns, count = time.monotonic_ns(), publisher.receipts.count
            self.taken_ns += [now_ns - due_ns for due_ns in self.due_ns[row][self.answered[row] : count]]
            self.answered[row] = count

    def wait(self, due_ns: int, poll_ns: int) -> None:
        """Take receipts until an entry is due; the last part is spent polling, for a sleeping process wakes late."""
        while (left_ns := due_ns - time.monotonic_ns()) > 0:
            if left_ns <= poll_ns or select.select(self.sockets, [], [], (left_ns - poll_ns) / NS_PER_S)[0]:
                self.take(0)

    def send(self, turn: int, due_ns: int) -> None:
        """Publish one entry on the connection whose turn it is."""
        row = turn % len(self.publishers)
        self.due_ns[row].append(due_ns)
        self.publishers[row].pump(self.publishers[row].released + 1)


def paced(load: Load) -> Figures:
    """Publish at a rate; return the usual figures, and the processor time of the loop and of the other threads."""
    rate, one_by_one = int(load.options["rate"]), bool(load.options.get("one_by_one"))
    interval_ns, count = NS_PER_S // rate, round(load.seconds * rate)
    poll_ns = min(POLL_NS, interval_ns // 4)
    warm = round(count * WARM_UP_RATIO)
    with ExitStack() as stack:
        clients = Paced(load, stack)
        begin_ns = time.monotonic_ns() + interval_ns
        start, threads, first = Reading.take(load, 0), thread_cpu_ns(load.broker_pid), 0
        for turn in range(warm + count):
            if turn == warm:
                first = len(clients.taken_ns)
                start, threads = Reading.take(load, first), thread_cpu_ns(load.broker_pid)
            clients.wait(begin_ns + turn * interval_ns, poll_ns)
            if not (one_by_one and clients.outstanding):
                clients.send(turn, begin_ns + turn * interval_ns)
        deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
        while clients.outstanding:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"receipts still missing {DRAIN_TIMEOUT_S:.0f} s after the load ended")
            clients.take(0.05)
        end, later = Reading.take(load, len(clients.taken_ns)), thread_cpu_ns(load.broker_pid)
    entries = len(clients.taken_ns) - first
    spent_ns = {thread: ns - threads.get(thread, 0) for thread, ns in later.items()}
    loop_ns = spent_ns.pop(load.broker_pid or 0, 0)
    return {
        **start.until(end, load, percentiles([ns / 1e6 for ns in sorted(clients.taken_ns[first:])])),
        LOOP_COST: loop_ns / 1e3 / entries,
        OTHERS_COST: sum(spent_ns.values()) / 1e3 / entries,
    }


def thread_cpu_ns(pid: int | None) -> dict[int, int]:
    """Return the processor time of each thread; the main one, which has the id of the process, runs the loop."""
    if pid is None:
        return {}
    return {
        int(task.name): int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()
    }


if __name__ == "__main__":
    _, given = parse_load()
    print(json.dumps(paced(given)))

# SPDX-License-Identifier: Apache-2.0
"""What adaptive throttling costs a broker that has no pressure: processor time for the same messages, off and on.

Both brokers do the same work in turns: a block of messages is sent to one and all its receipts awaited, then to the
other. So what else runs on the machine slows both alike. Processor time is that of the whole broker, in nanoseconds. It
includes what a broker does while it waits for its turn: all evaluations of the pressures, for half of the messages.

Why so many brokers: two processes of the same program differ by a percent or two, by where their memory lies. So each
pair of brokers is new, and gives one figure, the median over its rounds. The mean of these figures has a confidence
interval; without one, a mean says nothing.
"""

from __future__ import annotations

import math
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.throttled import MIB, PREFIX, broker
from penstock.testing.client import RawClient, Type, entry, frame, send

if TYPE_CHECKING:
    import argparse

    from penstock.testing.process import BrokerProcess

RATIO: Final = 0.99
BLOCK: Final = 2_000
PAYLOAD: Final = bytes(1_000)
IDLE_S: Final = 5.0
# Of Student's distribution, two-sided, by degrees of freedom; above ten, 2.2 is a little wide.
_T_95: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_T_95_MORE: Final = 2.2


class Work:
    """A client of one broker that repeats a block of messages."""

    def __init__(self, process: BrokerProcess) -> None:
        self.process = process
        self.client = RawClient(process.port)
        self.client.produce("persistent://public/default/t")
        self._block = b"".join(send(0, row, entry(PAYLOAD, sequence_id=row)) for row in range(BLOCK))

    def publish(self) -> float:
        """Publish a block; returns the seconds until all of it was durable."""
        began_s = time.monotonic()
        self.client.write(self._block)
        self._await_receipts()
        return time.monotonic() - began_s

    def _await_receipts(self) -> None:
        """Count frames without decoding them, which would take longer than the broker needs."""
        rest, count = b"", 0
        while count < BLOCK:
            rest += self.client.socket.recv(MIB)
            at = 0
            while at + 4 <= len(rest) and (end := at + 4 + int.from_bytes(rest[at : at + 4], "big")) <= len(rest):
                # The lengths of frame and command, then the tag of the command's type.
                if rest[at + 9] == Type.PING:
                    self.client.write(frame(Type.PONG))
                else:
                    assert rest[at + 9] == Type.SEND_RECEIPT, "only receipts come"
                    count += 1
                at = end
            rest = rest[at:]


def measure(works: dict[bool, Work], blocks: int) -> tuple[float, float]:
    """Publish to both brokers in turns; returns logarithms of disabled by enabled: of processor time, and of time."""
    before = {enabled: processor_s(work.process.pid) for enabled, work in works.items()}
    wall = dict.fromkeys(works, 0.0)
    for number in range(blocks):
        for enabled in (False, True) if number % 2 else (True, False):
            wall[enabled] += works[enabled].publish()
    used = {enabled: processor_s(work.process.pid) - before[enabled] for enabled, work in works.items()}
    return math.log(used[False] / used[True]), math.log(wall[False] / wall[True])


def processor_s(pid: int) -> float:
    """Seconds of processor time that the threads of a process have used, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def interval(values: list[float]) -> tuple[float, float]:
    """The mean, and half of its confidence interval of 95 %."""
    freedom = len(values) - 1
    if freedom < 1:
        return values[0], math.inf
    t = _T_95[freedom - 1] if freedom <= len(_T_95) else _T_95_MORE
    return statistics.mean(values), t * statistics.stdev(values) / math.sqrt(len(values))


def pair(options: argparse.Namespace) -> tuple[float, float, float]:
    """Two new brokers; returns disabled by enabled: of processor time, and of time; and what enabled uses idle."""
    with ExitStack() as stack:
        works = {
            enabled: Work(stack.enter_context(broker({f"{PREFIX}Enabled": str(enabled).lower()})))
            for enabled in (False, True)
        }
        for work in works.values():
            stack.callback(work.client.socket.close)
        measure(works, options.blocks)  # Warms up.
        rounds = [measure(works, options.blocks) for _ in range(options.rounds)]
        processor, wall = ([one[kind] for one in rounds] for kind in (0, 1))
        before = {enabled: processor_s(work.process.pid) for enabled, work in works.items()}
        time.sleep(IDLE_S)
        idle = {enabled: processor_s(work.process.pid) - before[enabled] for enabled, work in works.items()}
    return statistics.median(processor), statistics.median(wall), (idle[True] - idle[False]) / IDLE_S


def calm(options: argparse.Namespace) -> list[str]:
    """Compare, and return what does not hold."""
    pairs = []
    for number in range(options.pairs):
        pairs.append(pair(options))
        processor, wall, idle = pairs[-1]
        print(
            f"pair {number + 1}: ratio of processor time {math.exp(processor):.4f}, "
            f"of throughput {math.exp(wall):.4f}; idle, enabled uses {idle * 1e3:.2f} ms/s more",
            flush=True,
        )
    low, high = _printed("processor time", [one[0] for one in pairs])
    _printed("throughput", [one[1] for one in pairs])
    cycle_s, half_s = interval([one[2] for one in pairs])
    print(f"idle, enabled uses {cycle_s * 1e3:.2f} ± {half_s * 1e3:.2f} ms of processor time per second more")
    if low >= RATIO:
        return []
    if high < RATIO:
        return [f"enabled costs more: the ratio is at most {high:.4f}"]
    return [f"not shown: the ratio is between {low:.4f} and {high:.4f}; other work on the machine, or too few pairs"]


def _printed(what: str, logarithms: list[float]) -> tuple[float, float]:
    mean, half = interval(logarithms)
    low, high = math.exp(mean - half), math.exp(mean + half)
    print(f"{what}, disabled by enabled: {math.exp(mean):.4f}, with 95 % confidence {low:.4f} to {high:.4f}")
    return low, high

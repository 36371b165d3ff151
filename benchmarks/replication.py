# SPDX-License-Identifier: Apache-2.0
"""What replication costs: idle topics, one topic at full speed, publishers beside it, a cluster that was away.

    python -m benchmarks.replication idle|topic|beside|away [--peer pulsar]

All brokers run on this machine, so what the other cluster takes is missing here: ratios are lower than between two
machines. With `--peer pulsar`, `topic` also measures Apache Pulsar's own replicator, to another penstock like ours.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.brokers import BROKERS, add_peer_option, chosen
from benchmarks.footprint import answers
from benchmarks.process import allow_many_sockets, ask, usage
from benchmarks.report import PENSTOCK
from penstock.core.units import KIB
from penstock.testing.client import RawClient, Type, entry, frame, send
from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.process import Address

SPACE: Final = "bench/replicated"
ALONE: Final = "bench/alone"
NAMES: Final = {"penstock": "east", "pulsar": "standalone"}
REMOTE: Final = "remote"
STORED: Final = entry(b"x" * KIB)
# Sent before receipts are waited for.
WINDOW: Final = 1_000
ASKED_AT_ONCE: Final = 100
# A producer of a replicator that had nothing to send is closed after a minute.
IDLE_S: Final = 75.0
PATIENCE_S: Final = 300.0


class Pair(NamedTuple):
    """A cluster that replicates, and the other one."""

    source: Address
    remote: BrokerProcess


def name_clusters(source: Address, name: str, remote: BrokerProcess) -> None:
    """Tell both of each other, and make the namespaces. Only the source replicates."""
    ask(source.admin_port, "PUT", f"clusters/{REMOTE}", urls(remote.admin_port, remote.port))
    for port, own in ((source.admin_port, [name, REMOTE]), (remote.admin_port, [REMOTE])):
        ask(port, "PUT", "tenants/bench", {"adminRoles": [], "allowedClusters": own})
        for space in (SPACE, ALONE):
            ask(port, "PUT", f"namespaces/{space}", {"replication_clusters": own[:1]})


def urls(admin_port: int, port: int) -> dict[str, str]:
    """The data of a cluster on this machine."""
    return {"serviceUrl": f"http://127.0.0.1:{admin_port}", "brokerServiceUrl": f"pulsar://127.0.0.1:{port}"}


def replicate(source: Address, name: str) -> None:
    """Replicate the namespace from now on."""
    ask(source.admin_port, "POST", f"namespaces/{SPACE}/replication", [name, REMOTE])


def open_pair(stack: ExitStack, subject: str) -> Pair:
    """Start both clusters; topics are replicated from their beginning."""
    home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="replication-")))
    settings = {"clusterName": NAMES[subject], "replicationStartAt": "earliest"}
    source = stack.enter_context(BROKERS[subject](settings=settings))
    config = home / "remote.conf"
    config.write_text(f"clusterName={REMOTE}\n")
    remote = stack.enter_context(BrokerProcess(home / REMOTE, ["--config", str(config)]))
    name_clusters(source, NAMES[subject], remote)
    return Pair(source, remote)


def arrived(remote: BrokerProcess, topic: str) -> int:
    """How many messages of a topic the other cluster has had since its start."""
    try:
        stats = ask(remote.admin_port, "GET", f"{topic.replace('://', '/')}/stats")
    except OSError:
        return 0
    return int(stats["msgInCounter"])


def wait_until(what: Callable[[], bool], pause_s: float = 0.05, patience_s: float = PATIENCE_S) -> None:
    """Return once it is so. Raises TimeoutError."""
    deadline_s = time.monotonic() + patience_s
    while not what():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {patience_s:g} s")
        time.sleep(pause_s)


def wait_for(remote: BrokerProcess, topic: str, messages: int) -> None:
    """Return once so many messages of a topic have arrived. Raises TimeoutError."""
    wait_until(lambda: arrived(remote, topic) >= messages)


def publish(port: int, topic: str, entries: int, *, rate: int = 0, until: threading.Event | None = None) -> float:
    """Publish and wait for receipts; returns entries per second. Args: rate: entries a second; 0: all that go."""
    with RawClient(port) as client:
        client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=topic)  # Apache Pulsar loads nothing before that.
        client.produce(topic)
        began_s, sent, step = time.monotonic(), 0, max(1, min(WINDOW, rate // 50 or WINDOW))
        while sent < entries and not (until is not None and until.is_set()):
            count = min(step, entries - sent)
            client.write(b"".join(send(0, sent + number, STORED) for number in range(count)))
            answers(client, Type.SEND_RECEIPT, Type.SEND_ERROR, count)
            sent += count
            if rate:
                time.sleep(max(0.0, began_s + sent / rate - time.monotonic()))
        return sent / (time.monotonic() - began_s)


# -- idle topics -------------------------------------------------------------------------------------------------------


def idle(options: argparse.Namespace) -> None:
    """Measure the processor time of many replicated topics of which few are active."""
    with ExitStack() as stack:
        pair = open_pair(stack, PENSTOCK)
        if options.replicated:
            replicate(pair.source, NAMES[PENSTOCK])
        client = RawClient(pair.source.port)
        stack.callback(client.close)
        began_s = time.monotonic()
        names = [f"persistent://{SPACE}/t{number}" for number in range(options.topics)]
        for start in range(0, len(names), ASKED_AT_ONCE):
            open_producers(client, names, range(start, min(start + ASKED_AT_ONCE, len(names))))
        if options.replicated:
            wait_until(lambda: arrived(pair.remote, names[-1]) == 1, patience_s=2 * PATIENCE_S)
        say(f"{options.topics:,} topics have a message each after {time.monotonic() - began_s:.1f} s")
        say(f"RSS {usage(pair.source.pid).rss_mib:.0f} MiB; the producers of replicators close")
        cpu_of(pair, client, 0, IDLE_S, options.every_s)
        for what, active in (("idle", 0), (f"{options.active} active", options.active)):
            source, remote = cpu_of(pair, client, active, options.seconds, options.every_s)
            say(f"{what}: source {source:.2%} of a core, the other cluster {remote:.2%}")


def open_producers(client: RawClient, names: Sequence[str], window: range) -> None:
    """Open a producer on each of these topics, and publish a message."""
    left = list(window)
    while left:
        for number in left:
            client.write(frame(Type.PRODUCER, topic=names[number], producer_id=number, request_id=number))
        left = answers(client, Type.PRODUCER_SUCCESS, Type.ERROR, len(left))
    client.write(b"".join(send(number, 0, STORED) for number in window))
    answers(client, Type.SEND_RECEIPT, Type.SEND_ERROR, len(window))


def cpu_of(pair: Pair, client: RawClient, active: int, seconds: float, every_s: float) -> list[float]:
    """Return the share of a core of both clusters while so many topics get a message each `every_s`."""
    pids = (pair.source.pid, pair.remote.pid)
    before, began_s = [usage(pid).cpu_s for pid in pids], time.monotonic()
    turn = 0
    while (now_s := time.monotonic()) < began_s + seconds:
        if active:
            # One after another: a hundred at once would be cheaper than what clients do.
            client.write(send(turn % active, 1 + turn // active, STORED))
            answers(client, Type.SEND_RECEIPT, Type.SEND_ERROR, 1)
            turn += 1
            time.sleep(max(0.0, began_s + turn * every_s / active - now_s))
        else:
            try:
                client.read(min(5.0, began_s + seconds - now_s))  # PINGs are answered.
            except TimeoutError:
                continue
    took_s = time.monotonic() - began_s
    return [(usage(pid).cpu_s - one) / took_s for pid, one in zip(pids, before, strict=True)]


# -- one topic ---------------------------------------------------------------------------------------------------------


def topic(options: argparse.Namespace) -> None:
    """Measure how fast what one topic has is replicated."""
    for subject in chosen(options):
        with ExitStack() as stack:
            pair = open_pair(stack, subject)
            name = f"persistent://{SPACE}/topic"
            publish(pair.source.port, name, options.entries)
            before_s, began_s = usage(pair.source.pid).cpu_s, time.monotonic()
            replicate(pair.source, NAMES[subject])
            wait_for(pair.remote, name, options.entries)
            took_s = time.monotonic() - began_s
            cpu_us = (usage(pair.source.pid).cpu_s - before_s) * 1e6 / options.entries
            say(f"{subject}: {options.entries / took_s:,.0f} entries/s of 1 KiB, {cpu_us:.0f} µs of processor each")


def beside(options: argparse.Namespace) -> None:
    """Measure a publisher at full speed alone, and on a topic that is replicated."""
    with ExitStack() as stack:
        pair = open_pair(stack, PENSTOCK)
        replicate(pair.source, NAMES[PENSTOCK])
        rates: dict[str, list[float]] = {ALONE: [], SPACE: []}
        for number in range(options.rounds):
            for space, measured in rates.items():
                name = f"persistent://{space}/beside-{number}"
                measured.append(publish(pair.source.port, name, options.entries))
                if space == SPACE:
                    wait_for(pair.remote, name, options.entries)
        alone, replicated = (statistics.median(rates[space]) for space in (ALONE, SPACE))
        say(f"publish alone {alone:,.0f}/s, replicated {replicated:,.0f}/s: {replicated / alone:.2f}")


# -- a cluster that is away --------------------------------------------------------------------------------------------


def away(options: argparse.Namespace) -> None:
    """Stop the other cluster for a while, and measure memory meanwhile, and how fast it is caught up."""
    with ExitStack() as stack:
        pair = open_pair(stack, PENSTOCK)
        replicate(pair.source, NAMES[PENSTOCK])
        name, done = f"persistent://{SPACE}/away", threading.Event()
        live = threading.Thread(
            target=publish, args=(pair.source.port, name, sys.maxsize), kwargs={"rate": options.rate, "until": done}
        )
        live.start()
        stack.callback(live.join)
        stack.callback(done.set)
        wait_until(lambda: arrived(pair.remote, name) > 0)
        ports = {"port": pair.remote.port, "admin_port": pair.remote.admin_port}
        pair.remote.stop()
        samples = []
        for _ in range(max(2, round(options.seconds / 5))):
            time.sleep(5)
            samples.append(usage(pair.source.pid).rss_mib)
        say(f"away {options.seconds:g} s at {options.rate:,}/s: RSS {samples[0]:.0f} … {samples[-1]:.0f} MiB")
        pair.remote.start(**ports)
        wait_until(lambda: arrived(pair.remote, name) > 0)
        began_s, first = time.monotonic(), arrived(pair.remote, name)
        wait_until(lambda: backlog(pair.source, name) < options.rate, patience_s=2 * PATIENCE_S)
        took_s, last = time.monotonic() - began_s, arrived(pair.remote, name)
        rate = (last - first) / took_s
        say(f"caught up in {took_s:.1f} s at {rate:,.0f}/s, {rate / options.rate:.1f} × the live rate")
        say(f"RSS {usage(pair.source.pid).rss_mib:.0f} MiB")


def backlog(source: Address, topic: str) -> int:
    """How many entries wait for the other cluster."""
    stats = ask(source.admin_port, "GET", f"{topic.replace('://', '/')}/stats")
    return int(stats["replication"][REMOTE]["replicationBacklog"])


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Measure what is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = {"idle": idle, "topic": topic, "beside": beside, "away": away}
    parser.add_argument("what", choices=list(kinds))
    parser.add_argument("--topics", type=int, default=10_000, help="idle: that are replicated")
    parser.add_argument("--active", type=int, default=100, help="idle: of these")
    parser.add_argument("--every-s", type=float, default=10.0, help="idle: between two messages of an active topic")
    parser.add_argument("--no-replication", dest="replicated", action="store_false", help="idle: the same without")
    parser.add_argument("--seconds", type=float, default=60.0, help="idle: of each measurement; away: how long")
    parser.add_argument("--entries", type=int, default=200_000, help="topic, beside: of 1 KiB")
    parser.add_argument("--rounds", type=int, default=3, help="beside")
    parser.add_argument("--rate", type=int, default=5_000, help="away: messages a second")
    add_peer_option(parser)
    options = parser.parse_args()
    allow_many_sockets()
    kinds[options.what](options)
    return 0


if __name__ == "__main__":
    sys.exit(main())

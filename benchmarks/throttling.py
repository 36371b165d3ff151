# SPDX-License-Identifier: Apache-2.0
"""What adaptive publish throttling does to a live broker, with producers of the official client.

    python -m benchmarks.throttling backlog [--quota-mib 1024]
    python -m benchmarks.throttling memory [--limit-mb 200]
    python -m benchmarks.throttling calm [--pairs 12] [--rounds 10]

`backlog`: a topic with a backlog quota, whose consumer stops when 70 % of it are used, and producers at full speed;
once without and once with throttling. The quota must be reached at least 4 times later; nobody publishes less than the
floor; when the consumer returns, all is released within 10 cycles of the end of the pressure, and it receives every
message that was acknowledged. A quota below 1 GiB is filled faster, so the interval is scaled down with it.

`memory`: a broker with little memory, a tenant whose readers do not read, and a calm tenant. The loud one must be
slowed, the calm one keep 90 % of its rate; then observe-only is switched on and off. Printed are the bytes that the
broker owns, with the resident size beside them.

`calm`: processor time of the broker per message, with throttling disabled and enabled (`throttling_calm`).

Exits 1 if something does not hold.
"""

from __future__ import annotations

import argparse
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pulsar

from benchmarks.process import ask
from benchmarks.throttled import MIB, PREFIX, Metrics, broker, connected, set_key
from benchmarks.throttling_calm import calm
from penstock.testing.client import Type, frame

if TYPE_CHECKING:
    from penstock.testing.process import BrokerProcess

GIB_MIB: Final = 1024
PAYLOAD_BYTES: Final = 2_000
IN_FLIGHT: Final = 500
FLOOR: Final = 0.10
CYCLES_TO_RELEASE: Final = 10
LATER: Final = 4.0
# Freed memory that no row has accounted for is forgiven after a minute, little by little.
RELEASE_S_MAX: Final = 180.0
CALM_KEEPS: Final = 0.90
# A run that takes longer than this has answered the question.
RUN_S_MAX: Final = 240.0


class Producer:
    """Publishes numbered messages as fast as it may, or at a rate; remembers which were acknowledged."""

    def __init__(self, client: pulsar.Client, topic: str, *, per_s: float | None = None) -> None:
        self.topic = topic
        self.acknowledged: set[int] = set()
        self.per_s = per_s
        self._sent = 0
        self._ended = threading.Event()
        self._producer = client.create_producer(
            topic,
            batching_enabled=False,
            block_if_queue_full=True,
            max_pending_messages=IN_FLIGHT,
            send_timeout_millis=0,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        body = bytes(PAYLOAD_BYTES - 8)
        began_s = time.monotonic()
        while not self._ended.is_set():
            if self.per_s is not None:
                time.sleep(max(0.0, began_s + self._sent / self.per_s - time.monotonic()))
            number = self._sent
            self._sent += 1
            self._producer.send_async(
                number.to_bytes(8, "big") + body, lambda result, _id, n=number: self._told(result, n)
            )

    def _told(self, result: pulsar.Result, number: int) -> None:
        if result == pulsar.Result.Ok:
            self.acknowledged.add(number)

    def stop(self) -> None:
        """Send nothing more; what is in flight may still be answered."""
        self._ended.set()


def lines(process: BrokerProcess) -> list[str]:
    """What the broker logged of its throttle."""
    return [line for line in process.log_path.read_text(encoding="utf-8").splitlines() if "[AdaptiveThrottle]" in line]


# -- backlog


def backlog_once(quota_mib: int, per_s: float | None, *, throttled: bool) -> dict[str, float]:
    """Fill a quota; returns figures."""
    interval_ms = max(50, 1_000 * quota_mib // GIB_MIB)
    quota = quota_mib * MIB
    settings = {f"{PREFIX}Enabled": str(throttled).lower(), f"{PREFIX}IntervalMs": interval_ms}
    settings |= {f"{PREFIX}PerTopicMetricsEnabled": "true", "backlogQuotaCheckIntervalInSeconds": 1}
    topic = "persistent://public/default/t"
    with ExitStack() as stack:
        process = stack.enter_context(broker(settings))
        client = stack.enter_context(connected(process))
        ask(
            process.admin_port,
            "POST",
            "namespaces/public/default/backlogQuota",
            {"limitSize": quota, "policy": "producer_request_hold"},
        )
        consumer = client.subscribe(topic, "s", receiver_queue_size=0, consumer_type=pulsar.ConsumerType.Exclusive)
        producers = [Producer(client, topic, per_s=per_s and per_s / 2) for _ in range(2)]
        stack.callback(lambda: [one.stop() for one in producers])
        samples: list[tuple[float, float]] = []
        began_s = at_70_s = full_s = 0.0
        slowest = natural = 0.0
        ends_s = time.monotonic() + RUN_S_MAX
        while time.monotonic() < ends_s:
            used = Metrics(process.admin_port).value("pulsar_in_bytes_total", topic)
            now_s = time.monotonic()
            samples.append((now_s, used))
            began_s = began_s or now_s
            if not at_70_s and used >= 0.7 * quota:
                at_70_s = now_s
            if used >= quota:
                full_s = now_s
                break
            time.sleep(interval_ms / 1_000 / 2)
        # Other work on the machine makes one run slower than the other: each is compared with its own speed before.
        speed = _speed(samples, 0.3 * quota, 0.7 * quota)
        took_s = (full_s or time.monotonic()) - at_70_s
        later = took_s / (0.3 * quota / speed)
        figures = {"MiB/s before": speed / MIB, "reached after s": took_s, "times later": later}
        if throttled:
            metrics = Metrics(process.admin_port)
            natural = metrics.value("pulsar_broker_topic_adaptive_throttle_natural_publish_rate") * PAYLOAD_BYTES
            slowest = _slowest(samples, 6 * interval_ms / 1_000)
            figures |= {"natural MiB/s": natural / MIB, "slowest part of natural": slowest / natural}
        # The consumer returns, and receives everything.
        watch = stack.enter_context(ThreadPoolExecutor(1)).submit(_released, process, interval_ms)
        for one in producers:
            one.stop()
        consumer.close()
        consumer = client.subscribe(topic, "s", receiver_queue_size=1_000)
        received = 0
        while True:
            try:
                message = consumer.receive(timeout_millis=3_000)
            except pulsar.Timeout:
                break
            received += 1
            consumer.acknowledge_cumulative(message) if received % 500 == 0 else None
            last = message
        consumer.acknowledge_cumulative(last)
        acknowledged = sum(len(one.acknowledged) for one in producers)
        figures |= {"acknowledged": float(acknowledged), "lost": float(max(0, acknowledged - received))}
        if throttled:
            figures["cycles to release"] = watch.result()
    return figures


def _speed(samples: list[tuple[float, float]], begin: float, end: float) -> float:
    """Bytes per second while a counter went from one value to another."""
    between = [sample for sample in samples if begin <= sample[1] <= end]
    (began_s, first), (ended_s, last) = between[0], between[-1]
    return (last - first) / (ended_s - began_s)


def _slowest(samples: list[tuple[float, float]], window_s: float) -> float:
    """Bytes per second of the slowest window."""
    slowest = float("inf")
    start = 0
    for at_s, count in samples:
        while at_s - samples[start][0] >= window_s:
            before_s, before = samples[start]
            slowest = min(slowest, (count - before) / (at_s - before_s))
            start += 1
    return slowest


def _released(process: BrokerProcess, interval_ms: int) -> float:
    """Cycles from the end of the pressure until no topic is throttled."""
    calm_s: float | None = None
    ends_s = time.monotonic() + 60
    while time.monotonic() < ends_s:
        metrics = Metrics(process.admin_port)
        if calm_s is None and metrics.value("pulsar_broker_topic_adaptive_throttle_backlog_pressure") == 0:
            calm_s = time.monotonic()
        if metrics.value("pulsar_broker_adaptive_throttle_active_topic_count") == 0:
            return (time.monotonic() - (calm_s or time.monotonic())) * 1_000 / interval_ms
        time.sleep(interval_ms / 1_000 / 4)
    return float("inf")


def backlog(options: argparse.Namespace) -> list[str]:
    without = backlog_once(options.quota_mib, options.per_s, throttled=False)
    print("without:", _told(without))
    throttled = backlog_once(options.quota_mib, options.per_s, throttled=True)
    print("with:   ", _told(throttled))
    ratio = throttled["times later"] / without["times later"]
    raw = throttled["reached after s"] / without["reached after s"]
    print(
        f"from 70 % of the quota to the quota: {ratio:.1f} times later, at the same speed; {raw:.1f} times in seconds"
    )
    return [
        *([f"only {ratio:.1f} times later, want {LATER}"] if ratio < LATER else []),
        *(["below the floor"] if throttled["slowest part of natural"] < 0.9 * FLOOR else []),
        *(["acknowledged messages are lost"] if without["lost"] or throttled["lost"] else []),
        *(["released too late"] if throttled["cycles to release"] > CYCLES_TO_RELEASE else []),
    ]


# -- memory


def slow_reader(process: BrokerProcess, topic: str) -> socket.socket:
    """A consumer that asks for everything, and reads nothing."""
    sock = socket.create_connection(("127.0.0.1", process.port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.sendall(frame(Type.CONNECT, client_version="bench", protocol_version=19))
    sock.sendall(
        frame(
            Type.SUBSCRIBE,
            topic=topic,
            subscription=f"s{id(sock)}",
            consumer_id=0,
            subType=0,
            request_id=1,
            durable=False,
        )
    )
    time.sleep(0.2)
    sock.sendall(frame(Type.FLOW, consumer_id=0, messagePermits=1_000_000))
    return sock


def memory(options: argparse.Namespace) -> list[str]:
    settings = {
        "memoryLimitMB": options.limit_mb,
        f"{PREFIX}Enabled": "true",
        f"{PREFIX}ObserveOnly": "true",
        f"{PREFIX}MemoryLowWatermarkPct": options.low,
        f"{PREFIX}MemoryHighWatermarkPct": options.high,
        f"{PREFIX}PerTopicMetricsEnabled": "true",
    }
    loud, calm = "persistent://loud/ns/t", "persistent://calm/ns/t"
    with ExitStack() as stack:
        process = stack.enter_context(broker(settings))
        client = stack.enter_context(connected(process))
        (cluster,) = ask(process.admin_port, "GET", "clusters")
        for tenant in ("loud", "calm"):
            ask(process.admin_port, "PUT", f"tenants/{tenant}", {"adminRoles": [], "allowedClusters": [cluster]})
            ask(process.admin_port, "PUT", f"namespaces/{tenant}/ns")
        producers = [Producer(client, loud, per_s=options.loud_per_s), Producer(client, calm, per_s=options.calm_per_s)]
        stack.callback(lambda: [one.stop() for one in producers])
        time.sleep(5)
        rates = {"before": _rates(process, options.seconds, loud, calm)}
        readers = [slow_reader(process, loud) for _ in range(options.readers)]
        time.sleep(5)
        rates["pressure, observe-only"] = _rates(process, options.seconds, loud, calm)
        observed = _active(process)
        set_key(process, "ObserveOnly", "false")
        time.sleep(6)
        rates["throttled"] = _rates(process, options.seconds, loud, calm)
        _print_memory(process)
        active = _active(process)
        set_key(process, "ObserveOnly", "true")
        time.sleep(2)
        rates["let go"] = _rates(process, options.seconds, loud, calm)
        held = _active(process)
        set_key(process, "ObserveOnly", "false")
        time.sleep(6)
        _print_memory(process)
        for reader in readers:
            reader.close()
        ended_s = time.monotonic()
        while _active(process) and time.monotonic() < ended_s + RELEASE_S_MAX:
            time.sleep(1)
        released_s = time.monotonic() - ended_s
        print(f"released {released_s:.1f} s after the readers had gone")
        _print_memory(process)
        for phase, (of_loud, of_calm) in rates.items():
            print(f"{phase:<24} loud {of_loud:8.1f}/s   calm {of_calm:8.1f}/s")
        print("\n".join(lines(process)[:8]))
        _, observe, slowed, released = rates.values()
        before = (options.loud_per_s, options.calm_per_s)  # What they want; a producer that was late catches up.
    return [
        *(["no pressure: nothing was shown"] if not active else []),
        *(["observe-only slowed somebody"] if observe[0] < 0.9 * before[0] else []),
        *(["observe-only counted an active topic"] if observed or held else []),
        *(["the loud tenant was not slowed"] if slowed[0] > 0.6 * before[0] else []),
        *([f"the calm tenant kept {slowed[1] / before[1]:.0%}"] if slowed[1] < CALM_KEEPS * before[1] else []),
        *(["it was not released"] if released_s > RELEASE_S_MAX else []),
        *(["observe-only did not let go"] if released[0] < 0.9 * before[0] else []),
    ]


def _rates(process: BrokerProcess, seconds: float, *topics: str) -> tuple[float, ...]:
    """Messages per second that each topic accepts."""
    before, began_s = Metrics(process.admin_port), time.monotonic()
    time.sleep(seconds)
    after, elapsed_s = Metrics(process.admin_port), time.monotonic() - began_s
    name = "pulsar_in_messages_total"
    return tuple((after.value(name, topic) - before.value(name, topic)) / elapsed_s for topic in topics)


def _active(process: BrokerProcess) -> float:
    return Metrics(process.admin_port).value("pulsar_broker_adaptive_throttle_active_topic_count")


def _print_memory(process: BrokerProcess) -> None:
    metrics = Metrics(process.admin_port)
    owners = ("requests", "outbound", "tailCache", "delayed", "listings", "others")
    owned = {one: metrics.value("penstock_adaptive_throttle_memory_owner_bytes", f'owner="{one}"') for one in owners}
    print(
        f"memory pressure {metrics.value('pulsar_broker_adaptive_throttle_memory_pressure'):.2f}: "
        f"in use {metrics.value('penstock_adaptive_throttle_memory_used_bytes') / MIB:.0f} of "
        f"{metrics.value('penstock_adaptive_throttle_memory_limit_bytes') / MIB:.0f} MiB, "
        f"resident {metrics.value('process_resident_memory_bytes') / MIB:.0f} MiB; "
        + ", ".join(f"{one} {nbytes / MIB:.1f}" for one, nbytes in owned.items())
    )


def _told(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in figures.items())


def main() -> int:
    """Measure and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = parser.add_subparsers(required=True)
    one = cases.add_parser("backlog")
    one.add_argument("--quota-mib", type=int, default=GIB_MIB)
    one.add_argument("--per-s", type=float, help="messages per second of the producers; default: full speed")
    one.set_defaults(case=backlog)
    one = cases.add_parser("memory")
    one.add_argument("--limit-mb", type=int, default=200)
    one.add_argument("--low", type=float, default=0.52)
    one.add_argument("--high", type=float, default=0.60)
    one.add_argument("--readers", type=int, default=40)
    one.add_argument("--loud-per-s", type=float, default=600)
    one.add_argument("--calm-per-s", type=float, default=40)
    one.add_argument("--seconds", type=float, default=8)
    one.set_defaults(case=memory)
    one = cases.add_parser("calm")
    one.add_argument("--pairs", type=int, default=12, help="of brokers")
    one.add_argument("--rounds", type=int, default=10, help="with each pair")
    one.add_argument("--blocks", type=int, default=40, help="of 2,000 messages in a round")
    one.set_defaults(case=calm)
    options = parser.parse_args()
    broken = options.case(options)
    for line in broken:
        print(f"FAILED: {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

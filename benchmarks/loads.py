# SPDX-License-Identifier: Apache-2.0
"""Every load that is measured, and what penstock must reach in it: the two tables that `run` follows.

Why: what is measured, and what counts as good, should be read in one place.

A ratio is always "how many times better than the peer": more entries a second, or fewer milliseconds or MiB.

To add a row, add a `Plan`. If no tool drives it yet, write a module in `benchmarks` that reads its load with
`measure.parse_load` and prints a line of JSON, the figures by name; `Plan.tool` names it, `Plan.options` is handed on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.cli.bench_frames import Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

# The figures that have targets or are shown.
RATE, VOLUME, P50, P99, COST = "entries/s", "MB/s", "p50 ms", "p99 ms", "broker µs/entry"
MESSAGES = "messages/s"
PROXY_COST = "proxy µs/entry"
FIRST, RSS, CORE = "first acknowledged s", "RSS MiB", "core %"
# What the parts of the machine reach in a load, in MB of payload a second.
DISK, DISK_BY_READS, LOOPBACK, COPY = "disk MB/s", "disk by reads MB/s", "loopback MB/s", "copy MB/s"

ONE_KIB = Shape(1024)
SMALL_BATCH = Shape(100, 100)
LARGE_BATCH = Shape(1024, 128)
# 16 KiB, as clients of Kafka send by default.
KAFKA_BATCH = Shape(1024, 16)

# How penstock is started for a load, if not as it comes; `brokers.setups` knows how. The peer always runs as one.
PLAIN, TLS, TWO_BROKERS = "plain", "tls", "two brokers"
LOAD_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One named load: which tool drives it, and how."""

    name: str
    mode: str  # what the tool does
    text: str = ""  # what it measures, for readers of the table
    tool: str = "generator"  # the module of `benchmarks` that drives it
    options: Mapping[str, object] = field(default_factory=dict)  # what else the tool must know
    figures: tuple[str, ...] = ()  # shown in the table; the first is what the row is about
    setup: str = PLAIN
    once: bool = False  # in the first round only, because it takes long to set up
    timeout_s: float = LOAD_TIMEOUT_S
    shape: Shape = ONE_KIB
    window: int = 1_000
    producers: int = 1
    connections: int = 1
    subscriptions: int = 0
    policies: Mapping[str, object] = field(default_factory=dict)  # of the namespace; with any, a new one
    backlog_per_s: int = 0  # entries that the tool's mode "backlog" publishes first, for every second of the load
    restarted: bool = False  # the broker is restarted between backlog and catch-up: nothing is in its own memory
    cold: bool = False  # the same, and its page cache dropped

    @property
    def shown(self) -> tuple[str, ...]:
        """Name the figures that matter in this load, for the table."""
        if self.figures:
            return *self.figures, COST
        if self.mode == "latency":
            return P50, P99, COST
        return (VOLUME if self.shape == LARGE_BATCH else RATE), COST


PUBLISH: Final = "publish"
TAIL: Final = "tail"
CATCH_UP: Final = "catch-up"
LATENCY: Final = "latency"

# What many of something cost, at a rate that both brokers reach.
MEAN = "mean ms"
AT_RATE = (MEAN, P99)
CROWDS: tuple[Plan, ...] = tuple(
    Plan(tool="crowd", mode="drive", **each)
    for each in (
        {
            "name": "paced-20k",
            "text": "20,000 msg/s end to end on one topic",
            "options": {"rate": 20_000},
            "figures": AT_RATE,
        },
        {
            "name": "tls-20k",
            "text": "20,000 msg/s end to end with TLS",
            "options": {"rate": 20_000},
            "figures": AT_RATE,
            "setup": TLS,
        },
        {
            "name": "64-partitions-20k",
            "text": "20,000 msg/s over 64 partitions",
            "options": {"rate": 20_000, "topics": 64, "partitioned": True},
            "figures": AT_RATE,
        },
        {
            "name": "64-partitions",
            "text": "64 partitions at full speed",
            "options": {"topics": 64, "partitioned": True},
            "figures": (RATE,),
            "window": 5_000,
        },
        {
            "name": "1000-consumers-20k",
            "text": "20,000 msg/s to 1,000 consumers of one shared subscription",
            "options": {"rate": 20_000, "consumers": 1_000, "shared": True, "links": 10, "permits": 100},
            "figures": AT_RATE,
        },
        {
            "name": "1000-consumers",
            "text": "1,000 consumers of one shared subscription at full speed",
            "options": {"consumers": 1_000, "shared": True, "links": 10},
            "figures": (RATE,),
            "window": 5_000,
        },
        {
            "name": "two-brokers-20k",
            "text": "20,000 msg/s over eight topics of two brokers (Apache Pulsar: one)",
            "options": {"rate": 20_000, "topics": 8, "look_up": True},
            "figures": AT_RATE,
            "setup": TWO_BROKERS,
        },
    )
)

# Takes minutes to open at the peer, which is slow to restart afterwards.
MANY: tuple[Plan, ...] = tuple(
    Plan(tool="crowd", mode="drive", figures=AT_RATE, once=True, **each)  # type: ignore[arg-type]
    for each in (
        {
            "name": "5000-connections",
            "text": "4,000 msg/s over 1,250 topics with a connection for each producer and consumer; 2,500 idle ones",
            "options": {"rate": 4_000, "topics": 1_250, "links": 1_250, "idle": 2_500},
            "timeout_s": 240.0,
        },
        {
            "name": "10000-topics",
            "text": "20,000 msg/s over 10,000 topics with a producer and a consumer each",
            "options": {"rate": 20_000, "topics": 10_000, "links": 10},
            "timeout_s": 400.0,
        },
    )
)

# Catch-up where the entries of topics alternate, and on one topic in the same way. With one reader the topics are read
# one after the other; but a cold one only once, for that brings the others' entries into memory.
ALTERNATING: tuple[Plan, ...] = tuple(
    Plan(
        name=f"catch-up-{name}{'-20-readers' * (readers > 1)}{'-cold' * cold}",
        text=f"{'twenty readers' if readers > 1 else 'one reader'} of {text}, after a restart{', cold' * cold}",
        mode=CATCH_UP,
        tool="alternating",
        options={
            "readers": readers,
            "consumers": readers if cold else max(readers, topics),
            "filler": 40_000 if window == 1 else 0,
        },
        producers=topics,
        window=window,
        backlog_per_s=per_s,
        restarted=True,
        cold=cold,
        once=window == 1,
    )
    for name, text, topics, window, per_s in (
        ("lone", "one topic", 1, 1_000, 60_000),
        ("interleaved-50", "50 topics that were written in turns", 50, 20_000, 60_000),
        ("trickle-16", "16 topics with one entry a sync", 16, 1, 1_600),
    )
    for readers in ((1, 20) if topics > 1 else (1,))
    for cold in (False, True)
)

# Deliveries at full speed by type of subscription; `fan_out` says what each is.
FAN_OUTS: tuple[Plan, ...] = tuple(
    Plan(name=f"fan-out-{mode}", text=text, tool="fan_out_row", mode=mode, figures=(RATE,), window=10_000)
    for mode, text in (
        ("exclusive", "deliveries to one consumer with cumulative acknowledgements"),
        ("shared-1", "deliveries to one shared consumer, acknowledged one by one in groups of 100"),
        ("shared-10", "deliveries to ten consumers of one shared subscription"),
        ("shared-10-single-acks", "the same, with a command for each acknowledgement"),
        ("ten-exclusive", "deliveries to ten exclusive subscriptions"),
        ("ten-shared", "deliveries to ten shared subscriptions"),
        ("key-shared-1", "deliveries to one Key_Shared consumer, 10,000 keys"),
        ("key-shared-10", "deliveries to ten Key_Shared consumers, 10,000 keys"),
    )
)

# What an entry costs when few come; ten connections publish a hundred a second each.
LOOP_COST, OTHERS_COST = "loop µs/entry", "other threads µs/entry"
LOW_RATES: tuple[Plan, ...] = (
    *(
        Plan(
            name=f"low-rate-{name}",
            text=text,
            mode="paced",
            tool="low_rate",
            options=options,
            connections=connections,
            figures=(P50, P99, LOOP_COST, OTHERS_COST),
        )
        for name, text, options, connections in (
            ("100", "100 entries/s", {"rate": 100}, 1),
            ("1k", "1,000 entries/s", {"rate": 1_000}, 1),
            ("1k-one-by-one", "at most 1,000 entries/s, one at a time", {"rate": 1_000, "one_by_one": True}, 1),
            ("10k", "10,000 entries/s", {"rate": 10_000}, 1),
            ("10-connections", "1,000 entries/s of ten connections", {"rate": 1_000}, 10),
        )
    ),
    Plan(
        name="low-rate-end-to-end",
        text="1,000 msg/s end to end",
        tool="crowd",
        mode="drive",
        options={"rate": 1_000},
        figures=AT_RATE,
    ),
)

# What services do: many producers, each of which waits for its receipts.
FEW_OUTSTANDING: tuple[Plan, ...] = (
    *(
        Plan(
            name=f"publish-1k-{connections}-connections-1-each",
            text=f"publish 1 KiB on {connections} connections, one entry without a receipt on each",
            mode=PUBLISH,
            connections=connections,
            window=1,
        )
        for connections in (50, 500)
    ),
    Plan(
        name="publish-1k-50-producers-20-each",
        text="publish 1 KiB, 50 producers in turns on one connection, 20 entries without a receipt for each",
        mode=PUBLISH,
        producers=50,
        window=1_000,
    ),
)

PLANS: tuple[Plan, ...] = (
    Plan(name="publish-1k-w1000", text="publish 1 KiB, 1,000 entries without a receipt", mode=PUBLISH),
    Plan(name="publish-1k-w20000", text="publish 1 KiB, 20,000 entries without a receipt", mode=PUBLISH, window=20_000),
    Plan(
        name="publish-1k-50-producers",
        text="publish 1 KiB, 50 producers in turns on one connection",
        mode=PUBLISH,
        producers=50,
        window=20_000,
    ),
    Plan(
        name="publish-1k-50-connections",
        text="publish 1 KiB on 50 connections",
        mode=PUBLISH,
        connections=50,
        window=400,
    ),
    *FEW_OUTSTANDING,
    Plan(name="publish-100b-batched", text="publish batches of 100 messages of 100 B", mode=PUBLISH, shape=SMALL_BATCH),
    Plan(
        name="publish-1k-batched",
        text="publish batches of 16 messages of 1 KiB, as clients of Kafka make them",
        mode=PUBLISH,
        shape=KAFKA_BATCH,
        figures=(MESSAGES,),
    ),
    Plan(name="publish-128k", text="publish batches of 128 KiB", mode=PUBLISH, shape=LARGE_BATCH),
    Plan(
        name="publish-1k-3-subscriptions",
        text="publish 1 KiB beside three idle subscriptions",
        mode=PUBLISH,
        subscriptions=3,
    ),
    Plan(name="tail-1k", text="publish and consume 1 KiB", mode=TAIL),
    Plan(
        name="tail-1k-3-subscriptions",
        text="publish and consume 1 KiB on three subscriptions",
        mode=TAIL,
        subscriptions=3,
    ),
    Plan(name="tail-128k", text="publish and consume batches of 128 KiB", mode=TAIL, shape=LARGE_BATCH),
    Plan(name="catch-up-1k", text="read a backlog of 1 KiB entries", mode=CATCH_UP, backlog_per_s=60_000),
    Plan(
        name="catch-up-100b-batched",
        text="read a backlog of batches of 100 messages",
        mode=CATCH_UP,
        shape=SMALL_BATCH,
        backlog_per_s=10_000,
    ),
    Plan(
        name="catch-up-128k",
        text="read a backlog of batches of 128 KiB",
        mode=CATCH_UP,
        shape=LARGE_BATCH,
        backlog_per_s=2_000,
    ),
    Plan(name="latency-1k", text="receipts at 1,000 entries a second", mode=LATENCY),
    Plan(
        name="py-publish-100b-batched",
        text="publish batches through the Python client",
        mode=PUBLISH,
        shape=SMALL_BATCH,
        tool="pyclient",
    ),
    Plan(
        name="py-catch-up-100b-batched",
        text="read batches through the Python client",
        mode=CATCH_UP,
        shape=SMALL_BATCH,
        backlog_per_s=200,
        tool="pyclient",
    ),
    Plan(
        name="py-latency-1k",
        text="end to end through the Python client, 1,000 messages a second",
        mode=LATENCY,
        tool="pyclient",
    ),
    Plan(name="publish-1k-tls", text="publish 1 KiB with TLS", mode=PUBLISH, setup=TLS),
    Plan(name="tail-1k-tls", text="publish and consume 1 KiB with TLS", mode=TAIL, setup=TLS),
    Plan(
        name="publish-1k-deduplication",
        text="publish 1 KiB with deduplication",
        mode=PUBLISH,
        policies={"deduplication": True},
    ),
    *FAN_OUTS,
    *LOW_RATES,
    *CROWDS,
    Plan(
        name="compaction",
        text="compaction of 1 KiB entries with 1,000 keys",
        mode="compact",
        tool="compaction",
        options={"keys": 1_000, "entries_per_s": 20_000},
        figures=(RATE,),
    ),
    # Behind the others, because they restart the brokers: whatever had warmed up in them is cold again.
    Plan(
        name="catch-up-1k-cold",
        text="read 1 KiB entries after a restart, from the disk",
        mode=CATCH_UP,
        backlog_per_s=60_000,
        cold=True,
    ),
    Plan(
        name="catch-up-10-readers-cold",
        text="ten readers at ten places of a topic at once, from the disk, beside 5,000 msg/s end to end",
        mode=CATCH_UP,
        tool="readers",
        options={"readers": 10, "rate": 5_000},
        figures=("read entries/s", "tail p50 ms", "tail p99 ms"),
        backlog_per_s=60_000,
        cold=True,
    ),
    Plan(
        name="catch-up-128k-cold",
        text="read batches of 128 KiB after a restart, from the disk",
        mode=CATCH_UP,
        shape=LARGE_BATCH,
        backlog_per_s=2_000,
        cold=True,
    ),
    *MANY,
    *ALTERNATING,
)

# Every kind of work for a while, so that a virtual machine has compiled its hot paths before it is measured: Apache
# Pulsar reaches a steady rate after some 15 s of load. Penstock, which compiles nothing, gets less of it.
WARM_UP_S = 5.0
PENSTOCK_WARM_UP_S = 1.0
WARM_UP = (
    Plan(name="warm-up-publish-1k", mode=PUBLISH),
    Plan(name="warm-up-tail-1k", mode=TAIL),
    Plan(name="warm-up-tail-128k", mode=TAIL, shape=LARGE_BATCH),
    Plan(name="warm-up-catch-up-1k", mode=CATCH_UP, backlog_per_s=20_000),
)

# A smoke test of the benchmarks themselves: every tool, every mode.
QUICK = (
    "publish-1k-w1000",
    "publish-1k-50-producers",
    "tail-128k",
    "catch-up-1k",
    "latency-1k",
    "low-rate-1k-one-by-one",
    "py-catch-up-100b-batched",
    "py-latency-1k",
    "publish-1k-deduplication",
    "fan-out-shared-10",
    "tls-20k",
    "64-partitions",
    "1000-consumers-20k",
    "two-brokers-20k",
    "compaction",
    "catch-up-1k-cold",
    "catch-up-10-readers-cold",
)


@dataclass(frozen=True, slots=True)
class Target:
    """How many times better than the peer a figure must be, and should be; or a bound of its own."""

    load: str
    figure: str
    floor: float | None = None
    goal: float | None = None
    at_most: float | None = None


TARGETS: tuple[Target, ...] = (
    Target("publish-1k-w1000", RATE, 1.2, 4),
    Target("publish-1k-w20000", RATE, 1.2, 4),
    Target("publish-1k-50-producers", RATE, 0.8, 2),
    Target("publish-1k-50-connections", RATE, 0.8, 2),
    Target("publish-128k", VOLUME, 2.5, 4),
    Target("catch-up-1k", RATE, 10, 50),
    Target("catch-up-128k", VOLUME, 3, 7),
    Target("latency-1k", P50, 2, 3),
    Target("latency-1k", P99, 1, 2),
    Target("py-latency-1k", P50, 2),
    Target("py-latency-1k", P99, 2),
    Target("start", FIRST, 10),
    Target("idle", RSS, 5),
    Target("idle", CORE, at_most=1),
    Target("peak", RSS, 4, 8),
)

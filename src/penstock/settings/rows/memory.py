# SPDX-License-Identifier: Apache-2.0
"""Settings of durability and memory. `sources` computes their defaults; `model.Settings` joins the groups."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.policies.policy_defaults import MessageDefaults
from penstock.core.setting import any_number, choice, dynamic, row, size, switch, whole
from penstock.core.units import parse_bytes


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Keeping:
    """Durability."""

    durability: str = row(
        "durability",
        choice("fsync", "relaxed"),
        "fsync",
        "`fsync`: a receipt is sent when the message is on disk. `relaxed`: receipts do not wait for the disk; a crash "
        "of the machine may lose acknowledged messages.",
    )
    skip_missing: bool = row(
        "autoSkipNonRecoverableData",
        switch,
        False,
        "How a start handles segments of the log whose files are missing or cut short. `false`: their messages stay in "
        "the backlogs, are skipped, and are delivered after a later start that finds the files. `true`: their messages "
        "count as damaged for good; subscriptions acknowledge them.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Memory(MessageDefaults):
    """Memory."""

    memory_limit_mb: int = row(
        "memoryLimitMB",
        whole(1),
        "<the smaller of the control group's limit and half of RAM>",
        "Memory limit in MiB, which penstock divides among its parts.",
        flag="--memory-limit-mb",
    )
    request_bytes_max: int = row(
        "queued.max.request.bytes",
        parse_bytes,
        "<maxMessagePublishBufferSizeInMB, else its row of the memory budget>",
        "Limit of the bytes of requests that were read and not yet answered; at the limit, penstock stops reading. 0 "
        "or less: no limit.",
    )
    requests_max: int = row(
        "queued.max.requests",
        any_number,
        "<queued.max.request.bytes / 32, at least 20000; off when that is off>",
        "Limit of the requests that were read and not yet answered; at the limit, penstock stops reading. 0 or less: "
        "no limit; otherwise at least 20000, the most that one producer may have pending.",
    )
    frame_bytes_max: int = row(
        "socket.request.max.bytes",
        size(1),
        "<maxMessageSize + 10 KiB>",
        "Size of the largest request in bytes; a client that announces a larger one is disconnected.",
    )
    outbound_mb: int = row(
        "outboundMB",
        whole(1),
        "<managedLedgerMaxReadsInFlightSizeInMB, else its row of the memory budget>",
        "MiB of unsent data to all clients.",
    )
    sessions_mb: int = row(
        "sessionsMB",
        whole(1),
        "<its row of the memory budget>",
        "MiB for producers, consumers and watchers, with their names and metadata; most take about 1 KiB. Further ones "
        "are refused.",
    )
    metadata_mb: int = row(
        "metadataMB",
        whole(1),
        "<its row of the memory budget>",
        "MiB for stored metadata that outlives its client: schemas, long names and properties of subscriptions, names "
        "of producers that deduplication remembers. Requests beyond it are refused.",
    )
    tail_cache_mb: int = dynamic(
        "tailCacheMB",
        whole(0),
        "<managedLedgerCacheSizeMB, else its row of the memory budget>",
        "MiB of newest entries, cached for consumers that keep up.",
    )
    max_publish_buffer_mb: int | None = row(
        "maxMessagePublishBufferSizeInMB",
        any_number,
        "<none>",
        "Pulsar's name of queued.max.request.bytes, in MiB; used if that is not set. 0 or less: no limit.",
    )
    max_reads_in_flight_mb: int | None = row(
        "managedLedgerMaxReadsInFlightSizeInMB",
        whole(0),
        "<none>",
        "Pulsar's name of outboundMB; used if that is not set. 0: not set.",
    )
    ledger_cache_mb: int | None = dynamic(
        "managedLedgerCacheSizeMB", whole(0), "<none>", "Pulsar's name of tailCacheMB; used if that is not set."
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Listings:
    """Memory of topic listings."""

    listings_heap_mb: int = dynamic(
        "maxTopicListInFlightHeapMemSizeMB",
        any_number,
        "<its row of the memory budget, at most 100>",
        "MiB of topic listings that are being created, and of the state of watchers; at the limit, requests wait. 0 or "
        "less: no limit.",
    )
    listings_heap_timeout_ms: int = dynamic(
        "maxTopicListInFlightHeapMemSizePermitsAcquireTimeoutMillis",
        whole(0),
        25_000,
        "How long a listing waits for this memory before it is refused, in ms.",
    )
    listings_heap_queue_max: int = dynamic(
        "maxTopicListInFlightHeapMemSizePermitsAcquireQueueSize",
        any_number,
        10_000,
        "How many may wait for it at the same time. 0 or less: no bound.",
    )
    listings_direct_mb: int = dynamic(
        "maxTopicListInFlightDirectMemSizeMB",
        any_number,
        "<its row of the memory budget, at most 100>",
        "MiB of encoded topic listings that clients have not read yet; at the limit, responses wait. 0 or less: no "
        "limit.",
    )
    listings_direct_timeout_ms: int = dynamic(
        "maxTopicListInFlightDirectMemSizePermitsAcquireTimeoutMillis",
        whole(0),
        25_000,
        "How long an encoded listing waits for this memory before it is refused, in ms.",
    )
    listings_direct_queue_max: int = dynamic(
        "maxTopicListInFlightDirectMemSizePermitsAcquireQueueSize",
        any_number,
        10_000,
        "How many may wait for it at the same time. 0 or less: no bound.",
    )

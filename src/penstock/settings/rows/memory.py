# SPDX-License-Identifier: Apache-2.0
"""Rows on what is kept and on memory. `sources` works out their defaults; `model.Settings` joins the groups."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.policies.policy_defaults import MessageDefaults
from penstock.core.setting import any_number, choice, row, size, switch, whole
from penstock.core.units import parse_bytes


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """What is kept, and how safely."""

    durability: str = row(
        "durability",
        choice("fsync", "relaxed"),
        "fsync",
        "`fsync`: a receipt is sent after the disk has the message. `relaxed`: receipts do not wait; a crash of the "
        "machine may lose messages that were acknowledged.",
    )
    skip_missing: bool = row(
        "autoSkipNonRecoverableData",
        switch,
        False,
        "What a start does about segments of the log whose files are missing or cut short. `false`: their messages "
        "stay in the backlogs, are passed over, and are served again by a later start that finds the files. `true`: "
        "they are given up for good and count as damaged; subscriptions acknowledge them.",
    )


@dataclass(frozen=True, kw_only=True)
class Memory(MessageDefaults):
    """Memory."""

    memory_limit_mb: int = row(
        "memoryLimitMB",
        whole(1),
        "<the smaller of the control group's limit and half of RAM>",
        "Memory in MiB that penstock divides among its parts.",
        flag="--memory-limit-mb",
    )
    request_bytes_max: int = row(
        "queued.max.request.bytes",
        parse_bytes,
        "<maxMessagePublishBufferSizeInMB, else its row of the memory budget>",
        "Bytes of requests read and not yet answered; at the bound, penstock stops reading. 0 or less: no bound.",
    )
    requests_max: int = row(
        "queued.max.requests",
        any_number,
        "<queued.max.request.bytes / 32, at least 20000; off when that is off>",
        "Requests read and not yet answered; at the bound, penstock stops reading. 0 or less: no bound; else 20000 or "
        "more, the most that one producer may have in flight.",
    )
    frame_bytes_max: int = row(
        "socket.request.max.bytes",
        size(1),
        "<maxMessageSize + 10 KiB>",
        "The largest single request; a client that announces a larger one is disconnected.",
    )
    outbound_mb: int = row(
        "outboundMB",
        whole(1),
        "<managedLedgerMaxReadsInFlightSizeInMB, else its row of the memory budget>",
        "MiB of data on its way to clients, over all of them.",
    )
    sessions_mb: int = row(
        "sessionsMB",
        whole(1),
        "<its row of the memory budget>",
        "MiB for producers, consumers and watchers, with their names and metadata; most take 1 KiB or a little more. "
        "Newcomers beyond it are refused.",
    )
    metadata_mb: int = row(
        "metadataMB",
        whole(1),
        "<its row of the memory budget>",
        "MiB for stored metadata that outlasts its client: schemas, long names and properties of subscriptions, names "
        "of producers that deduplication remembers. More is refused.",
    )
    tail_cache_mb: int = row(
        "tailCacheMB",
        whole(0),
        "<managedLedgerCacheSizeMB, else its row of the memory budget>",
        "MiB of newest entries kept for consumers that keep up.",
        dynamic=True,
    )
    max_publish_buffer_mb: int | None = row(
        "maxMessagePublishBufferSizeInMB",
        any_number,
        "<none>",
        "Pulsar's word for queued.max.request.bytes, in MiB; counts when that is not set. 0 or less: no bound.",
    )
    max_reads_in_flight_mb: int | None = row(
        "managedLedgerMaxReadsInFlightSizeInMB",
        whole(0),
        "<none>",
        "Pulsar's word for outboundMB; counts when that is not set. 0: not set.",
    )
    ledger_cache_mb: int | None = row(
        "managedLedgerCacheSizeMB",
        whole(0),
        "<none>",
        "Pulsar's word for tailCacheMB; counts when that is not set.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True)
class Listings:
    """Memory of topic listings."""

    listings_heap_mb: int = row(
        "maxTopicListInFlightHeapMemSizeMB",
        any_number,
        "<its row of the memory budget, at most 100>",
        "MiB of topic listings being made at the same time, and of what watchers know; who finds none left waits. 0 or "
        "less: no bound.",
        dynamic=True,
    )
    listings_heap_timeout_ms: int = row(
        "maxTopicListInFlightHeapMemSizePermitsAcquireTimeoutMillis",
        whole(0),
        25_000,
        "How long a listing waits for such memory before it is refused, in ms.",
        dynamic=True,
    )
    listings_heap_queue_max: int = row(
        "maxTopicListInFlightHeapMemSizePermitsAcquireQueueSize",
        any_number,
        10_000,
        "How many may wait for it at the same time. 0 or less: no bound.",
        dynamic=True,
    )
    listings_direct_mb: int = row(
        "maxTopicListInFlightDirectMemSizeMB",
        any_number,
        "<its row of the memory budget, at most 100>",
        "MiB of encoded topic listings that clients have not read yet; what finds none left waits. 0 or less: no "
        "bound.",
        dynamic=True,
    )
    listings_direct_timeout_ms: int = row(
        "maxTopicListInFlightDirectMemSizePermitsAcquireTimeoutMillis",
        whole(0),
        25_000,
        "How long an encoded listing waits for such memory before it is refused, in ms.",
        dynamic=True,
    )
    listings_direct_queue_max: int = row(
        "maxTopicListInFlightDirectMemSizePermitsAcquireQueueSize",
        any_number,
        10_000,
        "How many may wait for it at the same time. 0 or less: no bound.",
        dynamic=True,
    )

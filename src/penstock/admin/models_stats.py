# SPDX-License-Identifier: Apache-2.0
"""Statistics as the admin port gives them, for `/openapi.json`: the broker makes dicts, which go out as they are.

Members that only some topics or subscriptions have are optional; all others are always there.
"""

from __future__ import annotations

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from penstock.admin.models import Model, PartitionedMetadata


class Stats(Model):
    """An object whose members are spelled in camel case."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class PublisherStats(Stats):
    """A producer; of several partitions together, only the numbers."""

    access_mode: str | None = None
    msg_rate_in: float
    msg_throughput_in: float
    average_msg_size: float
    chunked_message_rate: float
    producer_id: int
    supports_partial_producer: bool
    producer_name: str | None = None
    address: str | None = None
    connected_since: str | None = None
    client_version: str | None = None
    metadata: dict[str, str] | None = None


class DrainingHash(Stats):
    """A slot of keys that went to another consumer while this one still owes messages of it."""

    hash: int
    unack_msgs: int
    blocked_attempts: int


class ConsumerStats(Stats):
    """A consumer; of several partitions together, only the numbers and the name."""

    msg_rate_out: float
    msg_throughput_out: float
    bytes_out_counter: int
    msg_out_counter: int
    msg_rate_redeliver: float
    message_ack_rate: float
    chunked_message_rate: float
    consumer_name: str
    available_permits: int
    unacked_messages: int
    avg_messages_per_entry: int
    blocked_consumer_on_unacked_msgs: bool
    draining_hashes_count: int
    draining_hashes_cleared_total: int
    draining_hashes_unacked_messages: int
    draining_hashes: list[DrainingHash] | None = None
    key_hash_range_arrays: list[list[int]] | None = None
    address: str | None = None
    connected_since: str | None = None
    client_version: str | None = None
    last_acked_timestamp: int
    last_consumed_timestamp: int
    first_messages_sent_timestamp: int
    last_consumed_flow_timestamp: int
    first_consumed_flow_timestamp: int
    metadata: dict[str, str] | None = None
    last_acked_time: str | None = None
    last_consumed_time: str | None = None


class SubscriptionStats(Stats):
    """A subscription."""

    msg_rate_out: float
    msg_throughput_out: float
    bytes_out_counter: int
    msg_out_counter: int
    msg_rate_redeliver: float
    message_ack_rate: float
    chunked_message_rate: float
    msg_backlog: int
    backlog_size: int
    earliest_msg_publish_time_in_backlog: int
    msg_backlog_no_delayed: int
    blocked_subscription_on_unacked_msgs: bool
    msg_delayed: int
    msg_in_replay: int
    unacked_messages: int
    type: str
    active_consumer_name: str | None = None
    msg_rate_expired: float
    msg_expired: int
    total_msg_expired: int
    last_expire_timestamp: int
    last_consumed_flow_timestamp: int
    last_consumed_timestamp: int
    last_acked_timestamp: int
    last_mark_delete_advanced_timestamp: int
    consumers: list[ConsumerStats]
    is_durable: bool
    is_replicated: bool
    allow_out_of_order_delivery: bool
    key_shared_mode: str | None = None
    consumers_after_mark_delete_position: dict[str, str]
    draining_hashes_count: int
    draining_hashes_cleared_total: int
    draining_hashes_unacked_messages: int
    non_contiguous_deleted_messages_ranges: int
    non_contiguous_deleted_messages_ranges_serialized_size: int
    delayed_message_index_size_in_bytes: int
    next_delayed_delivery_time: int
    furthest_delayed_delivery_time: int
    subscription_properties: dict[str, str]
    filter_processed_msg_count: int
    filter_accepted_msg_count: int
    filter_rejected_msg_count: int
    filter_rescheduled_msg_count: int
    dispatch_throttled_msg_events_by_subscription_limit: int
    dispatch_throttled_bytes_events_by_subscription_limit: int
    dispatch_throttled_msg_events_by_topic_limit: int
    dispatch_throttled_bytes_events_by_topic_limit: int
    dispatch_throttled_msg_events_by_broker_limit: int
    dispatch_throttled_bytes_events_by_broker_limit: int
    msg_drop_rate: float | None = None
    durable: bool
    replicated: bool


class CompactionStats(Stats):
    """What the last compaction did."""

    last_compaction_removed_event_count: int
    last_compaction_succeed_timestamp: int
    last_compaction_failed_timestamp: int
    last_compaction_duration_time_in_mills: int


class TopicTotals(Stats):
    """What a topic and a partitioned topic both have.

    Counters start when the topic is loaded; rates are of the last 30 to 60 seconds.
    """

    msg_rate_in: float
    msg_throughput_in: float
    msg_rate_out: float
    msg_throughput_out: float
    bytes_in_counter: int
    msg_in_counter: int
    system_topic_bytes_in_counter: int
    bytes_out_counter: int
    msg_out_counter: int
    bytes_out_internal_counter: int
    average_msg_size: float
    msg_chunk_published: bool
    storage_size: int
    backlog_size: int
    backlog_quota_limit_size: int
    backlog_quota_limit_time: int
    oldest_backlog_message_age_seconds: int
    oldest_backlog_message_subscription_name: str | None = None
    publish_rate_limited_times: int
    earliest_msg_publish_time_in_backlogs: int
    offloaded_storage_size: int
    last_offload_ledger_id: int
    last_offload_success_time_stamp: int
    last_offload_failure_time_stamp: int
    ongoing_txn_count: int
    aborted_txn_count: int
    committed_txn_count: int
    publishers: list[PublisherStats]
    waiting_publishers: int
    subscriptions: dict[str, SubscriptionStats]
    replication: dict[str, str]
    deduplication_status: str | None = None
    topic_epoch: int | None = None
    non_contiguous_deleted_messages_ranges: int
    non_contiguous_deleted_messages_ranges_serialized_size: int
    delayed_message_index_size_in_bytes: int
    next_delayed_delivery_time: int
    furthest_delayed_delivery_time: int
    compaction: CompactionStats
    owner_broker: str | None = None
    topic_creation_time_stamp: int
    last_publish_time_stamp: int
    msg_drop_rate: float | None = None


class TopicStats(TopicTotals):
    """A topic without partitions, or a partition."""


class PartitionedTopicStats(TopicTotals):
    """A partitioned topic: sums, and each partition."""

    metadata: PartitionedMetadata
    partitions: dict[str, TopicStats]


class LedgerInfo(Stats):
    """A ledger: what a topic's entries are counted in."""

    ledger_id: int
    entries: int
    size: int
    offloaded: bool
    under_replicated: bool
    metadata: str | None = None


class CursorStats(Stats):
    """A subscription's progress."""

    mark_delete_position: str | None = None
    read_position: str | None = None
    waiting_read_op: bool
    pending_read_ops: int
    messages_consumed_counter: int
    cursor_ledger: int
    cursor_ledger_last_entry: int
    individually_deleted_messages: str | None = None
    last_ledger_switch_timestamp: str | None = None
    state: str | None = None
    active: bool
    number_of_entries_since_first_not_acked_message: int
    total_non_contiguous_deleted_messages_range: int
    subscription_have_pending_read: bool
    subscription_have_pending_replay_read: bool
    properties: dict[str, int] | None = None


class InternalStats(Stats):
    """What lies below a topic."""

    entries_added_counter: int
    number_of_entries: int
    total_size: int
    current_ledger_entries: int
    current_ledger_size: int
    last_ledger_created_timestamp: str | None = None
    waiting_cursors_count: int
    pending_add_entries_count: int
    last_confirmed_entry: str | None = None
    state: str | None = None
    ledgers: list[LedgerInfo] | None = None
    cursors: dict[str, CursorStats]
    properties: dict[str, str] | None = None
    schema_ledgers: list[LedgerInfo] | None = None
    compacted_ledger: LedgerInfo | None = None


class PartitionedInternalStats(Stats):
    """The same of each partition."""

    metadata: PartitionedMetadata
    partitions: dict[str, InternalStats]


class StoredPosition(Stats):
    """A position as it is stored."""

    ledger_id: int
    entry_id: int


class StoredLedger(Stats):
    """A ledger as it is stored."""

    ledger_id: int
    entries: int | None = None
    timestamp: int
    is_offloaded: bool


class StoredCursor(Stats):
    """A cursor as it is stored."""

    version: int
    creation_date: str
    modification_date: str
    cursors_ledger_id: int
    mark_delete: StoredPosition


class InternalInfo(Stats):
    """What is stored about a topic."""

    version: int
    creation_date: str
    modification_date: str
    ledgers: list[StoredLedger]
    cursors: dict[str, StoredCursor]


class PartitionedInternalInfo(Stats):
    """The same of each partition."""

    partitions: dict[str, InternalInfo]


class BacklogAnalysis(Stats):
    """What a backlog consists of."""

    entries: int
    messages: int
    marker_messages: int
    filter_rejected_entries: int
    filter_accepted_entries: int
    filter_rescheduled_entries: int
    filter_rejected_messages: int
    filter_accepted_messages: int
    filter_rescheduled_messages: int
    aborted: bool


class WaitingListing(Stats):
    """A request that waits for memory; one of the admin port has no address."""

    tenant: str
    address: str | None
    wants_bytes: int
    has_bytes: int
    waited_millis: int


class ListingMemory(Stats):
    """One memory of topic listings; limits of 0 are none."""

    limit_bytes: int
    used_bytes: int
    queue_size: int
    queue_max_size: int
    timeout_millis: int
    longest_wait_millis: int
    timeouts: int
    refused_queue_full: int
    refused_beyond_limit: int
    cancelled: int
    waiting: list[WaitingListing]


class ListingMemories(Stats):
    """Memory of topic listings: being made, and on their way to clients."""

    heap: ListingMemory
    direct: ListingMemory


class MutedConnection(Stats):
    """A connection that is not read."""

    address: str
    muted_millis: int
    reasons: list[str]
    wanted_bytes: int
    held_bytes: int
    command_bytes: int
    unsent_bytes: int


class MutedConnections(Stats):
    """Connections that are not read: how many, and the first thousand of them, the longest muted first."""

    count: int
    connections: list[MutedConnection]

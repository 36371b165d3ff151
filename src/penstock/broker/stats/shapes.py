# SPDX-License-Identifier: Apache-2.0
"""Types of statistics: each member's name in Pulsar's JSON, its type, and how partitions are summed.

Members that only some topics or subscriptions have are not required; all others are always present.
Where: `stats` and its neighbours produce these, checked by the type checker; `stats_partitioned` sums them; the admin
API derives the models of `/openapi.json` from them.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Final, NotRequired, TypedDict, get_args, get_origin, get_type_hints

from penstock.broker.publishing.limiters import ThrottledEvents


class Adds(Enum):
    """How the values of several partitions are combined; the default is the sum."""

    LEAST = "the least that is not 0"
    MOST = "the most"
    MEAN = "the mean of those that are not 0"
    OF_ONE = "left out: it differs from one to the next, and says nothing of all of them"


LEAST: Final = Adds.LEAST
MOST: Final = Adds.MOST
MEAN: Final = Adds.MEAN
OF_ONE: Final = Adds.OF_ONE


class Delayed(TypedDict):
    """The index of delayed messages, shared by all subscriptions of a topic."""

    delayedMessageIndexSizeInBytes: int
    nextDelayedDeliveryTime: Annotated[int, LEAST]
    furthestDelayedDeliveryTime: Annotated[int, MOST]


class Draining(TypedDict):
    """Hash slots assigned to other consumers while the previous ones have unacknowledged messages of them."""

    drainingHashesCount: int
    drainingHashesClearedTotal: int
    drainingHashesUnackedMessages: int


class Oldest(TypedDict):
    """Age of the oldest unacknowledged entry, if requested."""

    earliestMsgPublishTimeInBacklogs: Annotated[int, LEAST]
    oldestBacklogMessageAgeSeconds: Annotated[int, MOST]
    oldestBacklogMessageSubscriptionName: NotRequired[Annotated[str, OF_ONE]]


class PublisherStats(TypedDict):
    """A producer; for a partitioned topic, only the numbers."""

    accessMode: NotRequired[Annotated[str, OF_ONE]]
    msgRateIn: float
    msgThroughputIn: float
    averageMsgSize: Annotated[float, MEAN]
    chunkedMessageRate: float
    producerId: int
    supportsPartialProducer: bool
    producerName: NotRequired[Annotated[str, OF_ONE]]
    address: NotRequired[Annotated[str, OF_ONE]]
    connectedSince: NotRequired[Annotated[str, OF_ONE]]
    clientVersion: NotRequired[Annotated[str, OF_ONE]]
    metadata: NotRequired[Annotated[dict[str, str], OF_ONE]]


class DrainingHash(TypedDict):
    """A hash slot assigned to another consumer while this one has unacknowledged messages of it."""

    hash: int
    unackMsgs: int
    blockedAttempts: int


class KeySharing(TypedDict):
    """Members of consumers of Key_Shared subscriptions only."""

    drainingHashes: NotRequired[Annotated[list[DrainingHash], OF_ONE]]
    keyHashRangeArrays: NotRequired[Annotated[list[list[int]], OF_ONE]]


class ConsumerStats(Draining, KeySharing):
    """A consumer; for a partitioned topic, only the numbers and the name."""

    msgRateOut: float
    msgThroughputOut: float
    bytesOutCounter: int
    msgOutCounter: int
    msgRateRedeliver: float
    messageAckRate: float
    chunkedMessageRate: float
    consumerName: str
    availablePermits: int
    unackedMessages: int
    avgMessagesPerEntry: Annotated[int, MEAN]
    blockedConsumerOnUnackedMsgs: bool
    address: NotRequired[Annotated[str, OF_ONE]]
    connectedSince: NotRequired[Annotated[str, OF_ONE]]
    clientVersion: NotRequired[Annotated[str, OF_ONE]]
    lastAckedTimestamp: Annotated[int, MOST]
    lastConsumedTimestamp: Annotated[int, MOST]
    firstMessagesSentTimestamp: Annotated[int, MOST]
    lastConsumedFlowTimestamp: Annotated[int, MOST]
    firstConsumedFlowTimestamp: Annotated[int, MOST]
    metadata: NotRequired[Annotated[dict[str, str], OF_ONE]]
    lastAckedTime: NotRequired[Annotated[str, OF_ONE]]
    lastConsumedTime: NotRequired[Annotated[str, OF_ONE]]


class OfItsType(TypedDict):
    """Members of some subscription types, or of non-persistent topics, only."""

    activeConsumerName: NotRequired[str]
    keySharedMode: NotRequired[str]
    msgDropRate: NotRequired[float]


class SubscriptionStats(Delayed, Draining, ThrottledEvents, OfItsType):
    """A subscription."""

    msgRateOut: float
    msgThroughputOut: float
    bytesOutCounter: int
    msgOutCounter: int
    msgRateRedeliver: float
    messageAckRate: float
    chunkedMessageRate: float
    msgBacklog: int
    backlogSize: int
    earliestMsgPublishTimeInBacklog: Annotated[int, LEAST]
    msgBacklogNoDelayed: int
    blockedSubscriptionOnUnackedMsgs: bool
    msgDelayed: int
    msgInReplay: int
    unackedMessages: int
    type: str
    msgRateExpired: float
    msgExpired: int
    totalMsgExpired: int
    lastExpireTimestamp: Annotated[int, MOST]
    lastConsumedFlowTimestamp: Annotated[int, MOST]
    lastConsumedTimestamp: Annotated[int, MOST]
    lastAckedTimestamp: Annotated[int, MOST]
    lastMarkDeleteAdvancedTimestamp: Annotated[int, MOST]
    consumers: list[ConsumerStats]
    isDurable: bool
    isReplicated: bool
    allowOutOfOrderDelivery: bool
    consumersAfterMarkDeletePosition: dict[str, str]
    nonContiguousDeletedMessagesRanges: int
    nonContiguousDeletedMessagesRangesSerializedSize: int
    subscriptionProperties: dict[str, str]
    filterProcessedMsgCount: int
    filterAcceptedMsgCount: int
    filterRejectedMsgCount: int
    filterRescheduledMsgCount: int
    durable: bool
    replicated: bool


class CompactionStats(TypedDict):
    """The last compaction of a topic."""

    lastCompactionRemovedEventCount: int
    lastCompactionSucceedTimestamp: int
    lastCompactionFailedTimestamp: int
    lastCompactionDurationTimeInMills: int


class TopicCounts(Delayed):
    """Counters and rates of a topic.

    Counters start when the topic is loaded; rates are means over the last 30 to 60 seconds.
    """

    msgRateIn: float
    msgThroughputIn: float
    msgRateOut: float
    msgThroughputOut: float
    bytesInCounter: int
    msgInCounter: int
    systemTopicBytesInCounter: int
    bytesOutCounter: int
    msgOutCounter: int
    bytesOutInternalCounter: int
    averageMsgSize: Annotated[float, MEAN]
    msgChunkPublished: bool
    backlogQuotaLimitSize: Annotated[int, MOST]
    backlogQuotaLimitTime: Annotated[int, MOST]
    publishRateLimitedTimes: int
    offloadedStorageSize: int
    lastOffloadLedgerId: Annotated[int, MOST]
    lastOffloadSuccessTimeStamp: Annotated[int, MOST]
    lastOffloadFailureTimeStamp: Annotated[int, MOST]
    ongoingTxnCount: int
    abortedTxnCount: int
    committedTxnCount: int
    deduplicationStatus: NotRequired[Annotated[str, OF_ONE]]
    nonContiguousDeletedMessagesRanges: int
    nonContiguousDeletedMessagesRangesSerializedSize: int
    compaction: CompactionStats
    ownerBroker: NotRequired[Annotated[str, OF_ONE]]
    topicCreationTimeStamp: Annotated[int, LEAST]


class OfItsKind(TypedDict):
    """Members of topics that had an exclusive producer, or of non-persistent topics, only."""

    topicEpoch: NotRequired[Annotated[int, OF_ONE]]
    msgDropRate: NotRequired[float]


class ReplicatorStats(TypedDict):
    """Replication of a topic to one other cluster: what comes from there, and what goes there."""

    msgRateIn: float
    msgInCount: int
    msgThroughputIn: float
    bytesInCount: int
    msgRateOut: float
    msgOutCount: int
    msgThroughputOut: float
    bytesOutCount: int
    msgRateExpired: float
    msgExpiredCount: int
    replicationBacklog: int
    connected: bool
    replicationDelayInSeconds: int
    inboundConnection: str
    inboundConnectedSince: str
    outboundConnection: str
    outboundConnectedSince: str


class TopicTotals(TopicCounts, Oldest, OfItsKind):
    """Members of both topics and partitioned topics."""

    storageSize: int
    backlogSize: int
    publishers: list[PublisherStats]
    waitingPublishers: int
    subscriptions: dict[str, SubscriptionStats]
    replication: dict[str, ReplicatorStats]
    lastPublishTimeStamp: Annotated[int, MOST]


class TopicStats(TopicTotals):
    """A topic without partitions, or a partition."""


class PartitionedTopicMetadata(TypedDict):
    """Metadata of a partitioned topic."""

    partitions: int
    deleted: bool
    properties: NotRequired[dict[str, str]]


class PartitionedTopicStats(TopicTotals):
    """A partitioned topic: sums, and each partition."""

    metadata: PartitionedTopicMetadata
    partitions: dict[str, TopicStats]


class LedgerInfo(TypedDict):
    """A ledger of a topic."""

    ledgerId: int
    entries: int
    size: int
    offloaded: bool
    underReplicated: bool
    metadata: NotRequired[str]


class CursorStats(TypedDict):
    """A subscription's progress."""

    markDeletePosition: NotRequired[str]
    readPosition: NotRequired[str]
    waitingReadOp: bool
    pendingReadOps: int
    messagesConsumedCounter: int
    cursorLedger: int
    cursorLedgerLastEntry: int
    individuallyDeletedMessages: NotRequired[str]
    lastLedgerSwitchTimestamp: NotRequired[str]
    state: NotRequired[str]
    active: bool
    numberOfEntriesSinceFirstNotAckedMessage: int
    totalNonContiguousDeletedMessagesRange: int
    subscriptionHavePendingRead: bool
    subscriptionHavePendingReplayRead: bool
    properties: NotRequired[dict[str, int]]


class InternalStats(TypedDict):
    """Internal statistics of a topic."""

    entriesAddedCounter: int
    numberOfEntries: int
    totalSize: int
    currentLedgerEntries: int
    currentLedgerSize: int
    lastLedgerCreatedTimestamp: NotRequired[str]
    waitingCursorsCount: int
    pendingAddEntriesCount: int
    lastConfirmedEntry: NotRequired[str]
    state: NotRequired[str]
    ledgers: NotRequired[list[LedgerInfo]]
    cursors: dict[str, CursorStats]
    properties: NotRequired[dict[str, str]]
    schemaLedgers: NotRequired[list[LedgerInfo]]
    compactedLedger: NotRequired[LedgerInfo]


class Unanswered(TypedDict):
    """Members of an answer that does not have all its parts."""

    unansweredPartitions: NotRequired[list[str]]  # their brokers do not answer


class PartitionedInternalStats(Unanswered):
    """Internal statistics of each partition."""

    metadata: PartitionedTopicMetadata
    partitions: dict[str, InternalStats]


class StoredPosition(TypedDict):
    """A position as it is stored."""

    ledgerId: int
    entryId: int


class StoredLedger(TypedDict):
    """A ledger as it is stored."""

    ledgerId: int
    entries: NotRequired[int]
    timestamp: int
    isOffloaded: bool


class StoredCursor(TypedDict):
    """A cursor as it is stored."""

    version: int
    creationDate: str
    modificationDate: str
    cursorsLedgerId: int
    markDelete: StoredPosition


class InternalInfo(TypedDict):
    """Stored metadata of a topic."""

    version: int
    creationDate: str
    modificationDate: str
    ledgers: list[StoredLedger]
    cursors: dict[str, StoredCursor]


class PartitionedInternalInfo(Unanswered):
    """Stored metadata of each partition."""

    partitions: dict[str, InternalInfo]


class BacklogAnalysis(TypedDict):
    """Result of analyzing a backlog."""

    entries: int
    messages: int
    markerMessages: int
    filterRejectedEntries: int
    filterAcceptedEntries: int
    filterRescheduledEntries: int
    filterRejectedMessages: int
    filterAcceptedMessages: int
    filterRescheduledMessages: int
    aborted: bool


class WaitingListing(TypedDict):
    """A request that waits for memory; requests of the admin API have no address."""

    tenant: str
    address: str | None
    wantsBytes: int
    hasBytes: int
    waitedMillis: int


class ListingMemory(TypedDict):
    """One memory of topic listings; a limit of 0 is no limit."""

    limitBytes: int
    usedBytes: int
    queueSize: int
    queueMaxSize: int
    timeoutMillis: int
    longestWaitMillis: int
    timeouts: int
    refusedQueueFull: int
    refusedBeyondLimit: int
    cancelled: int
    waiting: list[WaitingListing]


class ListingMemories(TypedDict):
    """Memory of topic listings: while gathered (heap), and while sent (direct)."""

    heap: ListingMemory
    direct: ListingMemory


class MutedConnection(TypedDict):
    """A connection that is not read at the moment."""

    address: str
    mutedMillis: int
    reasons: list[str]
    wantedBytes: int
    heldBytes: int
    commandBytes: int
    unsentBytes: int


class MutedConnections(TypedDict):
    """Connections that are not read: their number, and the thousand that were muted the longest."""

    count: int
    connections: list[MutedConnection]


def adding(*kinds: type) -> dict[str, Adds]:
    """How members are combined, by name; summed members are left out."""
    found: dict[str, Adds] = {}
    for kind in kinds:
        for name, hint in get_type_hints(kind, include_extras=True).items():
            if get_origin(hint) is NotRequired:
                (hint,) = get_args(hint)  # noqa: PLW2901
            for how in getattr(hint, "__metadata__", ()):
                found[name] = how
    return found


def required(kind: Any, name: str) -> bool:  # noqa: ANN401 -- a TypedDict
    return get_origin(get_type_hints(kind, include_extras=True)[name]) is not NotRequired

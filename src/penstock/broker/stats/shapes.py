# SPDX-License-Identifier: Apache-2.0
"""What statistics consist of: each member's name in Pulsar's JSON, its type, and how it adds up over partitions.

Members that only some topics or subscriptions have are not required; all others are always there.
Where: `stats` and its neighbours make these, and the type checker compares; `stats_partitioned` adds them up; the admin
port makes the models of `/openapi.json` of them.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Final, NotRequired, TypedDict, get_args, get_origin, get_type_hints

from penstock.broker.publishing.dispatch_gate import ThrottledEvents


class Adds(Enum):
    """How a member of several partitions becomes one; others are summed."""

    LEAST = "the least that is not 0"
    MOST = "the most"
    MEAN = "the mean of those that are not 0"
    OF_ONE = "left out: it differs from one to the next, and says nothing of all of them"


LEAST: Final = Adds.LEAST
MOST: Final = Adds.MOST
MEAN: Final = Adds.MEAN
OF_ONE: Final = Adds.OF_ONE


class Delayed(TypedDict):
    """The index of delayed messages, which all subscriptions of a topic share."""

    delayedMessageIndexSizeInBytes: int
    nextDelayedDeliveryTime: Annotated[int, LEAST]
    furthestDelayedDeliveryTime: Annotated[int, MOST]


class Draining(TypedDict):
    """Slots of keys that went to others while consumers still owe messages of them."""

    drainingHashesCount: int
    drainingHashesClearedTotal: int
    drainingHashesUnackedMessages: int


class Oldest(TypedDict):
    """How old the oldest entry is that a subscription has not acknowledged, if that was asked for."""

    earliestMsgPublishTimeInBacklogs: Annotated[int, LEAST]
    oldestBacklogMessageAgeSeconds: Annotated[int, MOST]
    oldestBacklogMessageSubscriptionName: NotRequired[Annotated[str, OF_ONE]]


class PublisherStats(TypedDict):
    """A producer; of several partitions together, only the numbers."""

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
    """A slot of keys that went to another consumer while this one still owes messages of it."""

    hash: int
    unackMsgs: int
    blockedAttempts: int


class KeySharing(TypedDict):
    """What only a consumer of a Key_Shared subscription has."""

    drainingHashes: NotRequired[Annotated[list[DrainingHash], OF_ONE]]
    keyHashRangeArrays: NotRequired[Annotated[list[list[int]], OF_ONE]]


class ConsumerStats(Draining, KeySharing):
    """A consumer; of several partitions together, only the numbers and the name."""

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
    """What only subscriptions of some types, or of topics that are not persistent, have."""

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
    """What the last compaction did."""

    lastCompactionRemovedEventCount: int
    lastCompactionSucceedTimestamp: int
    lastCompactionFailedTimestamp: int
    lastCompactionDurationTimeInMills: int


class TopicCounts(Delayed):
    """What is counted for a topic.

    Counters start when the topic is loaded; rates are of the last 30 to 60 seconds.
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
    """What only topics that had an exclusive producer, or that are not persistent, have."""

    topicEpoch: NotRequired[Annotated[int, OF_ONE]]
    msgDropRate: NotRequired[float]


class TopicTotals(TopicCounts, Oldest, OfItsKind):
    """What a topic and a partitioned topic both have."""

    storageSize: int
    backlogSize: int
    publishers: list[PublisherStats]
    waitingPublishers: int
    subscriptions: dict[str, SubscriptionStats]
    replication: dict[str, str]
    lastPublishTimeStamp: Annotated[int, MOST]


class TopicStats(TopicTotals):
    """A topic without partitions, or a partition."""


class PartitionedTopicMetadata(TypedDict):
    """How many partitions a topic has."""

    partitions: int
    deleted: bool
    properties: NotRequired[dict[str, str]]


class PartitionedTopicStats(TopicTotals):
    """A partitioned topic: sums, and each partition."""

    metadata: PartitionedTopicMetadata
    partitions: dict[str, TopicStats]


class LedgerInfo(TypedDict):
    """A ledger: what a topic's entries are counted in."""

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
    """What lies below a topic."""

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


class PartitionedInternalStats(TypedDict):
    """The same of each partition."""

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
    """What is stored about a topic."""

    version: int
    creationDate: str
    modificationDate: str
    ledgers: list[StoredLedger]
    cursors: dict[str, StoredCursor]


class PartitionedInternalInfo(TypedDict):
    """The same of each partition."""

    partitions: dict[str, InternalInfo]


class BacklogAnalysis(TypedDict):
    """What a backlog consists of."""

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
    """A request that waits for memory; one of the admin port has no address."""

    tenant: str
    address: str | None
    wantsBytes: int
    hasBytes: int
    waitedMillis: int


class ListingMemory(TypedDict):
    """One memory of topic listings; limits of 0 are none."""

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
    """Memory of topic listings: being made, and on their way to clients."""

    heap: ListingMemory
    direct: ListingMemory


class MutedConnection(TypedDict):
    """A connection that is not read."""

    address: str
    mutedMillis: int
    reasons: list[str]
    wantedBytes: int
    heldBytes: int
    commandBytes: int
    unsentBytes: int


class MutedConnections(TypedDict):
    """Connections that are not read: how many, and the first thousand of them, the longest muted first."""

    count: int
    connections: list[MutedConnection]


def adding(*kinds: type) -> dict[str, Adds]:
    """How members of these add up, by name; those that are summed are left out."""
    found: dict[str, Adds] = {}
    for kind in kinds:
        for name, hint in get_type_hints(kind, include_extras=True).items():
            if get_origin(hint) is NotRequired:
                (hint,) = get_args(hint)  # noqa: PLW2901
            for how in getattr(hint, "__metadata__", ()):
                found[name] = how
    return found


def required(kind: Any, name: str) -> bool:  # noqa: ANN401 -- a TypedDict
    """Whether a member is always there."""
    return get_origin(get_type_hints(kind, include_extras=True)[name]) is not NotRequired

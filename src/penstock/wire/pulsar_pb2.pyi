# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
from collections.abc import Iterable, Mapping
from typing import ClassVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer, RepeatedScalarFieldContainer
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

DESCRIPTOR: FileDescriptor

class AuthMethod(int, metaclass=EnumTypeWrapper):
    AuthMethodNone: ClassVar[AuthMethod]
    AuthMethodYcaV1: ClassVar[AuthMethod]
    AuthMethodAthens: ClassVar[AuthMethod]

class CompressionType(int, metaclass=EnumTypeWrapper):
    NONE: ClassVar[CompressionType]
    LZ4: ClassVar[CompressionType]
    ZLIB: ClassVar[CompressionType]
    ZSTD: ClassVar[CompressionType]
    SNAPPY: ClassVar[CompressionType]

class KeySharedMode(int, metaclass=EnumTypeWrapper):
    AUTO_SPLIT: ClassVar[KeySharedMode]
    STICKY: ClassVar[KeySharedMode]

class ProducerAccessMode(int, metaclass=EnumTypeWrapper):
    Shared: ClassVar[ProducerAccessMode]
    Exclusive: ClassVar[ProducerAccessMode]
    WaitForExclusive: ClassVar[ProducerAccessMode]
    ExclusiveWithFencing: ClassVar[ProducerAccessMode]

class ProtocolVersion(int, metaclass=EnumTypeWrapper):
    v0: ClassVar[ProtocolVersion]
    v1: ClassVar[ProtocolVersion]
    v2: ClassVar[ProtocolVersion]
    v3: ClassVar[ProtocolVersion]
    v4: ClassVar[ProtocolVersion]
    v5: ClassVar[ProtocolVersion]
    v6: ClassVar[ProtocolVersion]
    v7: ClassVar[ProtocolVersion]
    v8: ClassVar[ProtocolVersion]
    v9: ClassVar[ProtocolVersion]
    v10: ClassVar[ProtocolVersion]
    v11: ClassVar[ProtocolVersion]
    v12: ClassVar[ProtocolVersion]
    v13: ClassVar[ProtocolVersion]
    v14: ClassVar[ProtocolVersion]
    v15: ClassVar[ProtocolVersion]
    v16: ClassVar[ProtocolVersion]
    v17: ClassVar[ProtocolVersion]
    v18: ClassVar[ProtocolVersion]
    v19: ClassVar[ProtocolVersion]
    v20: ClassVar[ProtocolVersion]
    v21: ClassVar[ProtocolVersion]

class ScalableConsumerType(int, metaclass=EnumTypeWrapper):
    STREAM: ClassVar[ScalableConsumerType]
    CHECKPOINT: ClassVar[ScalableConsumerType]

class SegmentState(int, metaclass=EnumTypeWrapper):
    ACTIVE: ClassVar[SegmentState]
    SEALED: ClassVar[SegmentState]

class ServerError(int, metaclass=EnumTypeWrapper):
    UnknownError: ClassVar[ServerError]
    MetadataError: ClassVar[ServerError]
    PersistenceError: ClassVar[ServerError]
    AuthenticationError: ClassVar[ServerError]
    AuthorizationError: ClassVar[ServerError]
    ConsumerBusy: ClassVar[ServerError]
    ServiceNotReady: ClassVar[ServerError]
    ProducerBlockedQuotaExceededError: ClassVar[ServerError]
    ProducerBlockedQuotaExceededException: ClassVar[ServerError]
    ChecksumError: ClassVar[ServerError]
    UnsupportedVersionError: ClassVar[ServerError]
    TopicNotFound: ClassVar[ServerError]
    SubscriptionNotFound: ClassVar[ServerError]
    ConsumerNotFound: ClassVar[ServerError]
    TooManyRequests: ClassVar[ServerError]
    TopicTerminatedError: ClassVar[ServerError]
    ProducerBusy: ClassVar[ServerError]
    InvalidTopicName: ClassVar[ServerError]
    IncompatibleSchema: ClassVar[ServerError]
    ConsumerAssignError: ClassVar[ServerError]
    TransactionCoordinatorNotFound: ClassVar[ServerError]
    InvalidTxnStatus: ClassVar[ServerError]
    NotAllowedError: ClassVar[ServerError]
    TransactionConflict: ClassVar[ServerError]
    TransactionNotFound: ClassVar[ServerError]
    ProducerFenced: ClassVar[ServerError]

class TxnAction(int, metaclass=EnumTypeWrapper):
    COMMIT: ClassVar[TxnAction]
    ABORT: ClassVar[TxnAction]

class AuthData(Message):
    auth_method_name: str
    auth_data: bytes
    def __init__(self, auth_method_name: str | None = ..., auth_data: bytes | None = ...) -> None: ...

class BaseCommand(Message):
    class Type(int, metaclass=EnumTypeWrapper):
        CONNECT: ClassVar[BaseCommand.Type]
        CONNECTED: ClassVar[BaseCommand.Type]
        SUBSCRIBE: ClassVar[BaseCommand.Type]
        PRODUCER: ClassVar[BaseCommand.Type]
        SEND: ClassVar[BaseCommand.Type]
        SEND_RECEIPT: ClassVar[BaseCommand.Type]
        SEND_ERROR: ClassVar[BaseCommand.Type]
        MESSAGE: ClassVar[BaseCommand.Type]
        ACK: ClassVar[BaseCommand.Type]
        FLOW: ClassVar[BaseCommand.Type]
        UNSUBSCRIBE: ClassVar[BaseCommand.Type]
        SUCCESS: ClassVar[BaseCommand.Type]
        ERROR: ClassVar[BaseCommand.Type]
        CLOSE_PRODUCER: ClassVar[BaseCommand.Type]
        CLOSE_CONSUMER: ClassVar[BaseCommand.Type]
        PRODUCER_SUCCESS: ClassVar[BaseCommand.Type]
        PING: ClassVar[BaseCommand.Type]
        PONG: ClassVar[BaseCommand.Type]
        REDELIVER_UNACKNOWLEDGED_MESSAGES: ClassVar[BaseCommand.Type]
        PARTITIONED_METADATA: ClassVar[BaseCommand.Type]
        PARTITIONED_METADATA_RESPONSE: ClassVar[BaseCommand.Type]
        LOOKUP: ClassVar[BaseCommand.Type]
        LOOKUP_RESPONSE: ClassVar[BaseCommand.Type]
        CONSUMER_STATS: ClassVar[BaseCommand.Type]
        CONSUMER_STATS_RESPONSE: ClassVar[BaseCommand.Type]
        REACHED_END_OF_TOPIC: ClassVar[BaseCommand.Type]
        SEEK: ClassVar[BaseCommand.Type]
        GET_LAST_MESSAGE_ID: ClassVar[BaseCommand.Type]
        GET_LAST_MESSAGE_ID_RESPONSE: ClassVar[BaseCommand.Type]
        ACTIVE_CONSUMER_CHANGE: ClassVar[BaseCommand.Type]
        GET_TOPICS_OF_NAMESPACE: ClassVar[BaseCommand.Type]
        GET_TOPICS_OF_NAMESPACE_RESPONSE: ClassVar[BaseCommand.Type]
        GET_SCHEMA: ClassVar[BaseCommand.Type]
        GET_SCHEMA_RESPONSE: ClassVar[BaseCommand.Type]
        AUTH_CHALLENGE: ClassVar[BaseCommand.Type]
        AUTH_RESPONSE: ClassVar[BaseCommand.Type]
        ACK_RESPONSE: ClassVar[BaseCommand.Type]
        GET_OR_CREATE_SCHEMA: ClassVar[BaseCommand.Type]
        GET_OR_CREATE_SCHEMA_RESPONSE: ClassVar[BaseCommand.Type]
        NEW_TXN: ClassVar[BaseCommand.Type]
        NEW_TXN_RESPONSE: ClassVar[BaseCommand.Type]
        ADD_PARTITION_TO_TXN: ClassVar[BaseCommand.Type]
        ADD_PARTITION_TO_TXN_RESPONSE: ClassVar[BaseCommand.Type]
        ADD_SUBSCRIPTION_TO_TXN: ClassVar[BaseCommand.Type]
        ADD_SUBSCRIPTION_TO_TXN_RESPONSE: ClassVar[BaseCommand.Type]
        END_TXN: ClassVar[BaseCommand.Type]
        END_TXN_RESPONSE: ClassVar[BaseCommand.Type]
        END_TXN_ON_PARTITION: ClassVar[BaseCommand.Type]
        END_TXN_ON_PARTITION_RESPONSE: ClassVar[BaseCommand.Type]
        END_TXN_ON_SUBSCRIPTION: ClassVar[BaseCommand.Type]
        END_TXN_ON_SUBSCRIPTION_RESPONSE: ClassVar[BaseCommand.Type]
        TC_CLIENT_CONNECT_REQUEST: ClassVar[BaseCommand.Type]
        TC_CLIENT_CONNECT_RESPONSE: ClassVar[BaseCommand.Type]
        WATCH_TOPIC_LIST: ClassVar[BaseCommand.Type]
        WATCH_TOPIC_LIST_SUCCESS: ClassVar[BaseCommand.Type]
        WATCH_TOPIC_UPDATE: ClassVar[BaseCommand.Type]
        WATCH_TOPIC_LIST_CLOSE: ClassVar[BaseCommand.Type]
        TOPIC_MIGRATED: ClassVar[BaseCommand.Type]
        SCALABLE_TOPIC_LOOKUP: ClassVar[BaseCommand.Type]
        SCALABLE_TOPIC_UPDATE: ClassVar[BaseCommand.Type]
        SCALABLE_TOPIC_CLOSE: ClassVar[BaseCommand.Type]
        SCALABLE_TOPIC_SUBSCRIBE: ClassVar[BaseCommand.Type]
        SCALABLE_TOPIC_SUBSCRIBE_RESPONSE: ClassVar[BaseCommand.Type]
        SCALABLE_TOPIC_ASSIGNMENT_UPDATE: ClassVar[BaseCommand.Type]
        WATCH_SCALABLE_TOPICS: ClassVar[BaseCommand.Type]
        WATCH_SCALABLE_TOPICS_UPDATE: ClassVar[BaseCommand.Type]
        WATCH_SCALABLE_TOPICS_CLOSE: ClassVar[BaseCommand.Type]
        WATCH_TC_ASSIGNMENTS: ClassVar[BaseCommand.Type]
        WATCH_TC_ASSIGNMENTS_UPDATE: ClassVar[BaseCommand.Type]
        WATCH_TC_ASSIGNMENTS_CLOSE: ClassVar[BaseCommand.Type]
    CONNECT: BaseCommand.Type
    CONNECTED: BaseCommand.Type
    SUBSCRIBE: BaseCommand.Type
    PRODUCER: BaseCommand.Type
    SEND: BaseCommand.Type
    SEND_RECEIPT: BaseCommand.Type
    SEND_ERROR: BaseCommand.Type
    MESSAGE: BaseCommand.Type
    ACK: BaseCommand.Type
    FLOW: BaseCommand.Type
    UNSUBSCRIBE: BaseCommand.Type
    SUCCESS: BaseCommand.Type
    ERROR: BaseCommand.Type
    CLOSE_PRODUCER: BaseCommand.Type
    CLOSE_CONSUMER: BaseCommand.Type
    PRODUCER_SUCCESS: BaseCommand.Type
    PING: BaseCommand.Type
    PONG: BaseCommand.Type
    REDELIVER_UNACKNOWLEDGED_MESSAGES: BaseCommand.Type
    PARTITIONED_METADATA: BaseCommand.Type
    PARTITIONED_METADATA_RESPONSE: BaseCommand.Type
    LOOKUP: BaseCommand.Type
    LOOKUP_RESPONSE: BaseCommand.Type
    CONSUMER_STATS: BaseCommand.Type
    CONSUMER_STATS_RESPONSE: BaseCommand.Type
    REACHED_END_OF_TOPIC: BaseCommand.Type
    SEEK: BaseCommand.Type
    GET_LAST_MESSAGE_ID: BaseCommand.Type
    GET_LAST_MESSAGE_ID_RESPONSE: BaseCommand.Type
    ACTIVE_CONSUMER_CHANGE: BaseCommand.Type
    GET_TOPICS_OF_NAMESPACE: BaseCommand.Type
    GET_TOPICS_OF_NAMESPACE_RESPONSE: BaseCommand.Type
    GET_SCHEMA: BaseCommand.Type
    GET_SCHEMA_RESPONSE: BaseCommand.Type
    AUTH_CHALLENGE: BaseCommand.Type
    AUTH_RESPONSE: BaseCommand.Type
    ACK_RESPONSE: BaseCommand.Type
    GET_OR_CREATE_SCHEMA: BaseCommand.Type
    GET_OR_CREATE_SCHEMA_RESPONSE: BaseCommand.Type
    NEW_TXN: BaseCommand.Type
    NEW_TXN_RESPONSE: BaseCommand.Type
    ADD_PARTITION_TO_TXN: BaseCommand.Type
    ADD_PARTITION_TO_TXN_RESPONSE: BaseCommand.Type
    ADD_SUBSCRIPTION_TO_TXN: BaseCommand.Type
    ADD_SUBSCRIPTION_TO_TXN_RESPONSE: BaseCommand.Type
    END_TXN: BaseCommand.Type
    END_TXN_RESPONSE: BaseCommand.Type
    END_TXN_ON_PARTITION: BaseCommand.Type
    END_TXN_ON_PARTITION_RESPONSE: BaseCommand.Type
    END_TXN_ON_SUBSCRIPTION: BaseCommand.Type
    END_TXN_ON_SUBSCRIPTION_RESPONSE: BaseCommand.Type
    TC_CLIENT_CONNECT_REQUEST: BaseCommand.Type
    TC_CLIENT_CONNECT_RESPONSE: BaseCommand.Type
    WATCH_TOPIC_LIST: BaseCommand.Type
    WATCH_TOPIC_LIST_SUCCESS: BaseCommand.Type
    WATCH_TOPIC_UPDATE: BaseCommand.Type
    WATCH_TOPIC_LIST_CLOSE: BaseCommand.Type
    TOPIC_MIGRATED: BaseCommand.Type
    SCALABLE_TOPIC_LOOKUP: BaseCommand.Type
    SCALABLE_TOPIC_UPDATE: BaseCommand.Type
    SCALABLE_TOPIC_CLOSE: BaseCommand.Type
    SCALABLE_TOPIC_SUBSCRIBE: BaseCommand.Type
    SCALABLE_TOPIC_SUBSCRIBE_RESPONSE: BaseCommand.Type
    SCALABLE_TOPIC_ASSIGNMENT_UPDATE: BaseCommand.Type
    WATCH_SCALABLE_TOPICS: BaseCommand.Type
    WATCH_SCALABLE_TOPICS_UPDATE: BaseCommand.Type
    WATCH_SCALABLE_TOPICS_CLOSE: BaseCommand.Type
    WATCH_TC_ASSIGNMENTS: BaseCommand.Type
    WATCH_TC_ASSIGNMENTS_UPDATE: BaseCommand.Type
    WATCH_TC_ASSIGNMENTS_CLOSE: BaseCommand.Type
    type: BaseCommand.Type
    connect: CommandConnect
    connected: CommandConnected
    subscribe: CommandSubscribe
    producer: CommandProducer
    send: CommandSend
    send_receipt: CommandSendReceipt
    send_error: CommandSendError
    message: CommandMessage
    ack: CommandAck
    flow: CommandFlow
    unsubscribe: CommandUnsubscribe
    success: CommandSuccess
    error: CommandError
    close_producer: CommandCloseProducer
    close_consumer: CommandCloseConsumer
    producer_success: CommandProducerSuccess
    ping: CommandPing
    pong: CommandPong
    redeliverUnacknowledgedMessages: CommandRedeliverUnacknowledgedMessages
    partitionMetadata: CommandPartitionedTopicMetadata
    partitionMetadataResponse: CommandPartitionedTopicMetadataResponse
    lookupTopic: CommandLookupTopic
    lookupTopicResponse: CommandLookupTopicResponse
    consumerStats: CommandConsumerStats
    consumerStatsResponse: CommandConsumerStatsResponse
    reachedEndOfTopic: CommandReachedEndOfTopic
    seek: CommandSeek
    getLastMessageId: CommandGetLastMessageId
    getLastMessageIdResponse: CommandGetLastMessageIdResponse
    active_consumer_change: CommandActiveConsumerChange
    getTopicsOfNamespace: CommandGetTopicsOfNamespace
    getTopicsOfNamespaceResponse: CommandGetTopicsOfNamespaceResponse
    getSchema: CommandGetSchema
    getSchemaResponse: CommandGetSchemaResponse
    authChallenge: CommandAuthChallenge
    authResponse: CommandAuthResponse
    ackResponse: CommandAckResponse
    getOrCreateSchema: CommandGetOrCreateSchema
    getOrCreateSchemaResponse: CommandGetOrCreateSchemaResponse
    newTxn: CommandNewTxn
    newTxnResponse: CommandNewTxnResponse
    addPartitionToTxn: CommandAddPartitionToTxn
    addPartitionToTxnResponse: CommandAddPartitionToTxnResponse
    addSubscriptionToTxn: CommandAddSubscriptionToTxn
    addSubscriptionToTxnResponse: CommandAddSubscriptionToTxnResponse
    endTxn: CommandEndTxn
    endTxnResponse: CommandEndTxnResponse
    endTxnOnPartition: CommandEndTxnOnPartition
    endTxnOnPartitionResponse: CommandEndTxnOnPartitionResponse
    endTxnOnSubscription: CommandEndTxnOnSubscription
    endTxnOnSubscriptionResponse: CommandEndTxnOnSubscriptionResponse
    tcClientConnectRequest: CommandTcClientConnectRequest
    tcClientConnectResponse: CommandTcClientConnectResponse
    watchTopicList: CommandWatchTopicList
    watchTopicListSuccess: CommandWatchTopicListSuccess
    watchTopicUpdate: CommandWatchTopicUpdate
    watchTopicListClose: CommandWatchTopicListClose
    topicMigrated: CommandTopicMigrated
    scalableTopicLookup: CommandScalableTopicLookup
    scalableTopicUpdate: CommandScalableTopicUpdate
    scalableTopicClose: CommandScalableTopicClose
    scalableTopicSubscribe: CommandScalableTopicSubscribe
    scalableTopicSubscribeResponse: CommandScalableTopicSubscribeResponse
    scalableTopicAssignmentUpdate: CommandScalableTopicAssignmentUpdate
    watchScalableTopics: CommandWatchScalableTopics
    watchScalableTopicsUpdate: CommandWatchScalableTopicsUpdate
    watchScalableTopicsClose: CommandWatchScalableTopicsClose
    watchTcAssignments: CommandWatchTcAssignments
    watchTcAssignmentsUpdate: CommandWatchTcAssignmentsUpdate
    watchTcAssignmentsClose: CommandWatchTcAssignmentsClose
    def __init__(self, type: BaseCommand.Type | str | None = ..., connect: CommandConnect | Mapping | None = ..., connected: CommandConnected | Mapping | None = ..., subscribe: CommandSubscribe | Mapping | None = ..., producer: CommandProducer | Mapping | None = ..., send: CommandSend | Mapping | None = ..., send_receipt: CommandSendReceipt | Mapping | None = ..., send_error: CommandSendError | Mapping | None = ..., message: CommandMessage | Mapping | None = ..., ack: CommandAck | Mapping | None = ..., flow: CommandFlow | Mapping | None = ..., unsubscribe: CommandUnsubscribe | Mapping | None = ..., success: CommandSuccess | Mapping | None = ..., error: CommandError | Mapping | None = ..., close_producer: CommandCloseProducer | Mapping | None = ..., close_consumer: CommandCloseConsumer | Mapping | None = ..., producer_success: CommandProducerSuccess | Mapping | None = ..., ping: CommandPing | Mapping | None = ..., pong: CommandPong | Mapping | None = ..., redeliverUnacknowledgedMessages: CommandRedeliverUnacknowledgedMessages | Mapping | None = ..., partitionMetadata: CommandPartitionedTopicMetadata | Mapping | None = ..., partitionMetadataResponse: CommandPartitionedTopicMetadataResponse | Mapping | None = ..., lookupTopic: CommandLookupTopic | Mapping | None = ..., lookupTopicResponse: CommandLookupTopicResponse | Mapping | None = ..., consumerStats: CommandConsumerStats | Mapping | None = ..., consumerStatsResponse: CommandConsumerStatsResponse | Mapping | None = ..., reachedEndOfTopic: CommandReachedEndOfTopic | Mapping | None = ..., seek: CommandSeek | Mapping | None = ..., getLastMessageId: CommandGetLastMessageId | Mapping | None = ..., getLastMessageIdResponse: CommandGetLastMessageIdResponse | Mapping | None = ..., active_consumer_change: CommandActiveConsumerChange | Mapping | None = ..., getTopicsOfNamespace: CommandGetTopicsOfNamespace | Mapping | None = ..., getTopicsOfNamespaceResponse: CommandGetTopicsOfNamespaceResponse | Mapping | None = ..., getSchema: CommandGetSchema | Mapping | None = ..., getSchemaResponse: CommandGetSchemaResponse | Mapping | None = ..., authChallenge: CommandAuthChallenge | Mapping | None = ..., authResponse: CommandAuthResponse | Mapping | None = ..., ackResponse: CommandAckResponse | Mapping | None = ..., getOrCreateSchema: CommandGetOrCreateSchema | Mapping | None = ..., getOrCreateSchemaResponse: CommandGetOrCreateSchemaResponse | Mapping | None = ..., newTxn: CommandNewTxn | Mapping | None = ..., newTxnResponse: CommandNewTxnResponse | Mapping | None = ..., addPartitionToTxn: CommandAddPartitionToTxn | Mapping | None = ..., addPartitionToTxnResponse: CommandAddPartitionToTxnResponse | Mapping | None = ..., addSubscriptionToTxn: CommandAddSubscriptionToTxn | Mapping | None = ..., addSubscriptionToTxnResponse: CommandAddSubscriptionToTxnResponse | Mapping | None = ..., endTxn: CommandEndTxn | Mapping | None = ..., endTxnResponse: CommandEndTxnResponse | Mapping | None = ..., endTxnOnPartition: CommandEndTxnOnPartition | Mapping | None = ..., endTxnOnPartitionResponse: CommandEndTxnOnPartitionResponse | Mapping | None = ..., endTxnOnSubscription: CommandEndTxnOnSubscription | Mapping | None = ..., endTxnOnSubscriptionResponse: CommandEndTxnOnSubscriptionResponse | Mapping | None = ..., tcClientConnectRequest: CommandTcClientConnectRequest | Mapping | None = ..., tcClientConnectResponse: CommandTcClientConnectResponse | Mapping | None = ..., watchTopicList: CommandWatchTopicList | Mapping | None = ..., watchTopicListSuccess: CommandWatchTopicListSuccess | Mapping | None = ..., watchTopicUpdate: CommandWatchTopicUpdate | Mapping | None = ..., watchTopicListClose: CommandWatchTopicListClose | Mapping | None = ..., topicMigrated: CommandTopicMigrated | Mapping | None = ..., scalableTopicLookup: CommandScalableTopicLookup | Mapping | None = ..., scalableTopicUpdate: CommandScalableTopicUpdate | Mapping | None = ..., scalableTopicClose: CommandScalableTopicClose | Mapping | None = ..., scalableTopicSubscribe: CommandScalableTopicSubscribe | Mapping | None = ..., scalableTopicSubscribeResponse: CommandScalableTopicSubscribeResponse | Mapping | None = ..., scalableTopicAssignmentUpdate: CommandScalableTopicAssignmentUpdate | Mapping | None = ..., watchScalableTopics: CommandWatchScalableTopics | Mapping | None = ..., watchScalableTopicsUpdate: CommandWatchScalableTopicsUpdate | Mapping | None = ..., watchScalableTopicsClose: CommandWatchScalableTopicsClose | Mapping | None = ..., watchTcAssignments: CommandWatchTcAssignments | Mapping | None = ..., watchTcAssignmentsUpdate: CommandWatchTcAssignmentsUpdate | Mapping | None = ..., watchTcAssignmentsClose: CommandWatchTcAssignmentsClose | Mapping | None = ...) -> None: ...

class BrokerEntryMetadata(Message):
    broker_timestamp: int
    index: int
    def __init__(self, broker_timestamp: int | None = ..., index: int | None = ...) -> None: ...

class ClusterMessageId(Message):
    cluster: str
    message_id: MarkersMessageIdData
    def __init__(self, cluster: str | None = ..., message_id: MarkersMessageIdData | Mapping | None = ...) -> None: ...

class CommandAck(Message):
    class AckType(int, metaclass=EnumTypeWrapper):
        Individual: ClassVar[CommandAck.AckType]
        Cumulative: ClassVar[CommandAck.AckType]
    Individual: CommandAck.AckType
    Cumulative: CommandAck.AckType
    class ValidationError(int, metaclass=EnumTypeWrapper):
        UncompressedSizeCorruption: ClassVar[CommandAck.ValidationError]
        DecompressionError: ClassVar[CommandAck.ValidationError]
        ChecksumMismatch: ClassVar[CommandAck.ValidationError]
        BatchDeSerializeError: ClassVar[CommandAck.ValidationError]
        DecryptionError: ClassVar[CommandAck.ValidationError]
    UncompressedSizeCorruption: CommandAck.ValidationError
    DecompressionError: CommandAck.ValidationError
    ChecksumMismatch: CommandAck.ValidationError
    BatchDeSerializeError: CommandAck.ValidationError
    DecryptionError: CommandAck.ValidationError
    consumer_id: int
    ack_type: CommandAck.AckType
    message_id: RepeatedCompositeFieldContainer[MessageIdData]
    validation_error: CommandAck.ValidationError
    properties: RepeatedCompositeFieldContainer[KeyLongValue]
    txnid_least_bits: int
    txnid_most_bits: int
    request_id: int
    def __init__(self, consumer_id: int | None = ..., ack_type: CommandAck.AckType | str | None = ..., message_id: Iterable[MessageIdData | Mapping] | None = ..., validation_error: CommandAck.ValidationError | str | None = ..., properties: Iterable[KeyLongValue | Mapping] | None = ..., txnid_least_bits: int | None = ..., txnid_most_bits: int | None = ..., request_id: int | None = ...) -> None: ...

class CommandAckResponse(Message):
    consumer_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    error: ServerError
    message: str
    request_id: int
    def __init__(self, consumer_id: int | None = ..., txnid_least_bits: int | None = ..., txnid_most_bits: int | None = ..., error: ServerError | str | None = ..., message: str | None = ..., request_id: int | None = ...) -> None: ...

class CommandActiveConsumerChange(Message):
    consumer_id: int
    is_active: bool
    def __init__(self, consumer_id: int | None = ..., is_active: bool | None = ...) -> None: ...

class CommandAddPartitionToTxn(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    partitions: RepeatedScalarFieldContainer[str]
    scalable: bool
    def __init__(self, request_id: int | None = ..., txnid_least_bits: int | None = ..., txnid_most_bits: int | None = ..., partitions: Iterable[str] | None = ..., scalable: bool | None = ...) -> None: ...

class CommandAddPartitionToTxnResponse(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    error: ServerError
    message: str
    def __init__(self, request_id: int | None = ..., txnid_least_bits: int | None = ..., txnid_most_bits: int | None = ..., error: ServerError | str | None = ..., message: str | None = ...) -> None: ...

class CommandAddSubscriptionToTxn(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    subscription: RepeatedCompositeFieldContainer[Subscription]
    scalable: bool
    def __init__(self, request_id: int | None = ..., txnid_least_bits: int | None = ..., txnid_most_bits: int | None = ..., subscription: Iterable[Subscription | Mapping] | None = ..., scalable: bool | None = ...) -> None: ...

class CommandAddSubscriptionToTxnResponse(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    error: ServerError
    message: str
    def __init__(self, request_id: int | None = ..., txnid_least_bits: int | None = ..., txnid_most_bits: int | None = ..., error: ServerError | str | None = ..., message: str | None = ...) -> None: ...

class CommandAuthChallenge(Message):
    server_version: str
    challenge: AuthData
    protocol_version: int
    def __init__(self, server_version: str | None = ..., challenge: AuthData | Mapping | None = ..., protocol_version: int | None = ...) -> None: ...

class CommandAuthResponse(Message):
    client_version: str
    response: AuthData
    protocol_version: int
    def __init__(self, client_version: str | None = ..., response: AuthData | Mapping | None = ..., protocol_version: int | None = ...) -> None: ...

class CommandCloseConsumer(Message):
    consumer_id: int
    request_id: int
    assignedBrokerServiceUrl: str
    assignedBrokerServiceUrlTls: str
    def __init__(self, consumer_id: int | None = ..., request_id: int | None = ..., assignedBrokerServiceUrl: str | None = ..., assignedBrokerServiceUrlTls: str | None = ...) -> None: ...

class CommandCloseProducer(Message):
    producer_id: int
    request_id: int
    assignedBrokerServiceUrl: str
    assignedBrokerServiceUrlTls: str
    def __init__(self, producer_id: int | None = ..., request_id: int | None = ..., assignedBrokerServiceUrl: str | None = ..., assignedBrokerServiceUrlTls: str | None = ...) -> None: ...

class CommandConnect(Message):
    client_version: str
    auth_method: AuthMethod
    auth_data: bytes
    protocol_version: int
    auth_method_name: str
    proxy_to_broker_url: str
    original_principal: str
    original_auth_data: str
    original_auth_method: str
    feature_flags: FeatureFlags
    proxy_version: str
    def __init__(self, client_version: str | None = ..., auth_method: AuthMethod | str | None = ..., auth_data: bytes | None = ..., protocol_version: int | None = ..., auth_method_name: str | None = ..., proxy_to_broker_url: str | None = ..., original_principal: str | None = ..., original_auth_data: str | None = ..., original_auth_method: str | None = ..., feature_flags: FeatureFlags | Mapping | None = ..., proxy_version: str | None = ...) -> None: ...

class CommandConnected(Message):
    server_version: str
    protocol_version: int
    max_message_size: int
    feature_flags: FeatureFlags
    def __init__(self, server_version: str | None = ..., protocol_version: int | None = ..., max_message_size: int | None = ..., feature_flags: FeatureFlags | Mapping | None = ...) -> None: ...

class CommandConsumerStats(Message):
    request_id: int
    consumer_id: int
    def __init__(self, request_id: int | None = ..., consumer_id: int | None = ...) -> None: ...

class CommandConsumerStatsResponse(Message):
    request_id: int
    error_code: ServerError
    error_message: str
    msgRateOut: float
    msgThroughputOut: float
    msgRateRedeliver: float
    consumerName: str
    availablePermits: int
    unackedMessages: int
    blockedConsumerOnUnackedMsgs: bool
    address: str
    connectedSince: str
    type: str
    msgRateExpired: float
    msgBacklog: int
    messageAckRate: float
    def __init__(self, request_id: int | None = ..., error_code: ServerError | str | None = ..., error_message: str | None = ..., msgRateOut: float | None = ..., msgThroughputOut: float | None = ..., msgRateRedeliver: float | None = ..., consumerName: str | None = ..., availablePermits: int | None = ..., unackedMessages: int | None = ..., blockedConsumerOnUnackedMsgs: bool | None = ..., address: str | None = ..., connectedSince: str | None = ..., type: str | None = ..., msgRateExpired: float | None = ..., msgBacklog: int | None = ..., messageAckRate: float | None = ...) -> None: ...

class CommandEndTxn(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    txn_action: TxnAction
    scalable: bool
    def __init__(self, request_id: int | None = ..., txnid_least_bits: int | None = ..., txnid_most_bits: int | None = ..., txn_action: TxnAction | str | None = ..., scalable: bool | None = ...) -> None: ...

class CommandEndTxnOnPartition(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    topic: str
    txn_action: TxnAction
    txnid_least_bits_of_low_watermark: int
    def __init__(self, request_id: int | None = ..., txnid_least_bits: int | None = ..., txnid_most_bits: int | None = ..., topic: str | None = ..., txn_action: TxnAction | str | None = ..., txnid_least_bits_of_low_watermark: int | None = ...) -> None: ...

class CommandEndTxnOnPartitionResponse(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    error: ServerError
    message: str
    def __init__(self, request_id: int | None = ..., txnid_least_bits: int | None = ..., txnid_most_bits: int | None = ..., error: ServerError | str | None = ..., message: str | None = ...) -> None: ...

class CommandEndTxnOnSubscription(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    subscription: Subscription
    txn_action: TxnAction
    txnid_least_bits_of_low_watermark: int
    def __init__(self, request_id: int | None = ..., txnid_least_bits: int | None = ..., txnid_most_bits: int | None = ..., subscription: Subscription | Mapping | None = ..., txn_action: TxnAction | str | None = ..., txnid_least_bits_of_low_watermark: int | None = ...) -> None: ...

class CommandEndTxnOnSubscriptionResponse(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    error: ServerError
    message: str
    def __init__(self, request_id: int | None = ..., txnid_least_bits: int | None = ..., txnid_most_bits: int | None = ..., error: ServerError | str | None = ..., message: str | None = ...) -> None: ...

class CommandEndTxnResponse(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    error: ServerError
    message: str
    def __init__(self, request_id: int | None = ..., txnid_least_bits: int | None = ..., txnid_most_bits: int | None = ..., error: ServerError | str | None = ..., message: str | None = ...) -> None: ...

class CommandError(Message):
    request_id: int
    error: ServerError
    message: str
    def __init__(self, request_id: int | None = ..., error: ServerError | str | None = ..., message: str | None = ...) -> None: ...

class CommandFlow(Message):
    consumer_id: int
    messagePermits: int
    def __init__(self, consumer_id: int | None = ..., messagePermits: int | None = ...) -> None: ...

class CommandGetLastMessageId(Message):
    consumer_id: int
    request_id: int
    count: MessageCountQuery
    def __init__(self, consumer_id: int | None = ..., request_id: int | None = ..., count: MessageCountQuery | Mapping | None = ...) -> None: ...

class CommandGetLastMessageIdResponse(Message):
    last_message_id: MessageIdData
    request_id: int
    consumer_mark_delete_position: MessageIdData
    counted: MessageCount
    def __init__(self, last_message_id: MessageIdData | Mapping | None = ..., request_id: int | None = ..., consumer_mark_delete_position: MessageIdData | Mapping | None = ..., counted: MessageCount | Mapping | None = ...) -> None: ...

class CommandGetOrCreateSchema(Message):
    request_id: int
    topic: str
    schema: Schema
    producerName: str
    def __init__(self, request_id: int | None = ..., topic: str | None = ..., schema: Schema | Mapping | None = ..., producerName: str | None = ...) -> None: ...

class CommandGetOrCreateSchemaResponse(Message):
    request_id: int
    error_code: ServerError
    error_message: str
    schema_version: bytes
    def __init__(self, request_id: int | None = ..., error_code: ServerError | str | None = ..., error_message: str | None = ..., schema_version: bytes | None = ...) -> None: ...

class CommandGetSchema(Message):
    request_id: int
    topic: str
    schema_version: bytes
    def __init__(self, request_id: int | None = ..., topic: str | None = ..., schema_version: bytes | None = ...) -> None: ...

class CommandGetSchemaResponse(Message):
    request_id: int
    error_code: ServerError
    error_message: str
    schema: Schema
    schema_version: bytes
    def __init__(self, request_id: int | None = ..., error_code: ServerError | str | None = ..., error_message: str | None = ..., schema: Schema | Mapping | None = ..., schema_version: bytes | None = ...) -> None: ...

class CommandGetTopicsOfNamespace(Message):
    class Mode(int, metaclass=EnumTypeWrapper):
        PERSISTENT: ClassVar[CommandGetTopicsOfNamespace.Mode]
        NON_PERSISTENT: ClassVar[CommandGetTopicsOfNamespace.Mode]
        ALL: ClassVar[CommandGetTopicsOfNamespace.Mode]
    PERSISTENT: CommandGetTopicsOfNamespace.Mode
    NON_PERSISTENT: CommandGetTopicsOfNamespace.Mode
    ALL: CommandGetTopicsOfNamespace.Mode
    request_id: int
    namespace: str
    mode: CommandGetTopicsOfNamespace.Mode
    topics_pattern: str
    topics_hash: str
    properties: RepeatedCompositeFieldContainer[KeyValue]
    def __init__(self, request_id: int | None = ..., namespace: str | None = ..., mode: CommandGetTopicsOfNamespace.Mode | str | None = ..., topics_pattern: str | None = ..., topics_hash: str | None = ..., properties: Iterable[KeyValue | Mapping] | None = ...) -> None: ...

class CommandGetTopicsOfNamespaceResponse(Message):
    request_id: int
    topics: RepeatedScalarFieldContainer[str]
    filtered: bool
    topics_hash: str
    changed: bool
    def __init__(self, request_id: int | None = ..., topics: Iterable[str] | None = ..., filtered: bool | None = ..., topics_hash: str | None = ..., changed: bool | None = ...) -> None: ...

class CommandLookupTopic(Message):
    topic: str
    request_id: int
    authoritative: bool
    original_principal: str
    original_auth_data: str
    original_auth_method: str
    advertised_listener_name: str
    properties: RepeatedCompositeFieldContainer[KeyValue]
    def __init__(self, topic: str | None = ..., request_id: int | None = ..., authoritative: bool | None = ..., original_principal: str | None = ..., original_auth_data: str | None = ..., original_auth_method: str | None = ..., advertised_listener_name: str | None = ..., properties: Iterable[KeyValue | Mapping] | None = ...) -> None: ...

class CommandLookupTopicResponse(Message):
    class LookupType(int, metaclass=EnumTypeWrapper):
        Redirect: ClassVar[CommandLookupTopicResponse.LookupType]
        Connect: ClassVar[CommandLookupTopicResponse.LookupType]
        Failed: ClassVar[CommandLookupTopicResponse.LookupType]
    Redirect: CommandLookupTopicResponse.LookupType
    Connect: CommandLookupTopicResponse.LookupType
    Failed: CommandLookupTopicResponse.LookupType
    brokerServiceUrl: str
    brokerServiceUrlTls: str
    response: CommandLookupTopicResponse.LookupType
    request_id: int
    authoritative: bool
    error: ServerError
    message: str
    proxy_through_service_url: bool
    def __init__(self, brokerServiceUrl: str | None = ..., brokerServiceUrlTls: str | None = ..., response: CommandLookupTopicResponse.LookupType | str | None = ..., request_id: int | None = ..., authoritative: bool | None = ..., error: ServerError | str | None = ..., message: str | None = ..., proxy_through_service_url: bool | None = ...) -> None: ...

class CommandMessage(Message):
    consumer_id: int
    message_id: MessageIdData
    redelivery_count: int
    ack_set: RepeatedScalarFieldContainer[int]
    consumer_epoch: int
    def __init__(self, consumer_id: int | None = ..., message_id: MessageIdData | Mapping | None = ..., redelivery_count: int | None = ..., ack_set: Iterable[int] | None = ..., consumer_epoch: int | None = ...) -> None: ...

class CommandNewTxn(Message):
    request_id: int
    txn_ttl_seconds: int
    tc_id: int
    scalable: bool
    def __init__(self, request_id: int | None = ..., txn_ttl_seconds: int | None = ..., tc_id: int | None = ..., scalable: bool | None = ...) -> None: ...

class CommandNewTxnResponse(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    error: ServerError
    message: str
    def __init__(self, request_id: int | None = ..., txnid_least_bits: int | None = ..., txnid_most_bits: int | None = ..., error: ServerError | str | None = ..., message: str | None = ...) -> None: ...

class CommandPartitionedTopicMetadata(Message):
    topic: str
    request_id: int
    original_principal: str
    original_auth_data: str
    original_auth_method: str
    metadata_auto_creation_enabled: bool
    def __init__(self, topic: str | None = ..., request_id: int | None = ..., original_principal: str | None = ..., original_auth_data: str | None = ..., original_auth_method: str | None = ..., metadata_auto_creation_enabled: bool | None = ...) -> None: ...

class CommandPartitionedTopicMetadataResponse(Message):
    class LookupType(int, metaclass=EnumTypeWrapper):
        Success: ClassVar[CommandPartitionedTopicMetadataResponse.LookupType]
        Failed: ClassVar[CommandPartitionedTopicMetadataResponse.LookupType]
    Success: CommandPartitionedTopicMetadataResponse.LookupType
    Failed: CommandPartitionedTopicMetadataResponse.LookupType
    partitions: int
    request_id: int
    response: CommandPartitionedTopicMetadataResponse.LookupType
    error: ServerError
    message: str
    def __init__(self, partitions: int | None = ..., request_id: int | None = ..., response: CommandPartitionedTopicMetadataResponse.LookupType | str | None = ..., error: ServerError | str | None = ..., message: str | None = ...) -> None: ...

class CommandPing(Message):
    def __init__(self) -> None: ...

class CommandPong(Message):
    def __init__(self) -> None: ...

class CommandProducer(Message):
    topic: str
    producer_id: int
    request_id: int
    producer_name: str
    encrypted: bool
    metadata: RepeatedCompositeFieldContainer[KeyValue]
    schema: Schema
    epoch: int
    user_provided_producer_name: bool
    producer_access_mode: ProducerAccessMode
    topic_epoch: int
    txn_enabled: bool
    initial_subscription_name: str
    def __init__(self, topic: str | None = ..., producer_id: int | None = ..., request_id: int | None = ..., producer_name: str | None = ..., encrypted: bool | None = ..., metadata: Iterable[KeyValue | Mapping] | None = ..., schema: Schema | Mapping | None = ..., epoch: int | None = ..., user_provided_producer_name: bool | None = ..., producer_access_mode: ProducerAccessMode | str | None = ..., topic_epoch: int | None = ..., txn_enabled: bool | None = ..., initial_subscription_name: str | None = ...) -> None: ...

class CommandProducerSuccess(Message):
    request_id: int
    producer_name: str
    last_sequence_id: int
    schema_version: bytes
    topic_epoch: int
    producer_ready: bool
    def __init__(self, request_id: int | None = ..., producer_name: str | None = ..., last_sequence_id: int | None = ..., schema_version: bytes | None = ..., topic_epoch: int | None = ..., producer_ready: bool | None = ...) -> None: ...

class CommandReachedEndOfTopic(Message):
    consumer_id: int
    def __init__(self, consumer_id: int | None = ...) -> None: ...

class CommandRedeliverUnacknowledgedMessages(Message):
    consumer_id: int
    message_ids: RepeatedCompositeFieldContainer[MessageIdData]
    consumer_epoch: int
    def __init__(self, consumer_id: int | None = ..., message_ids: Iterable[MessageIdData | Mapping] | None = ..., consumer_epoch: int | None = ...) -> None: ...

class CommandScalableTopicAssignmentUpdate(Message):
    consumer_id: int
    assignment: ScalableConsumerAssignment
    def __init__(self, consumer_id: int | None = ..., assignment: ScalableConsumerAssignment | Mapping | None = ...) -> None: ...

class CommandScalableTopicClose(Message):
    session_id: int
    def __init__(self, session_id: int | None = ...) -> None: ...

class CommandScalableTopicLookup(Message):
    session_id: int
    topic: str
    def __init__(self, session_id: int | None = ..., topic: str | None = ...) -> None: ...

class CommandScalableTopicSubscribe(Message):
    request_id: int
    topic: str
    subscription: str
    consumer_name: str
    consumer_id: int
    consumer_type: ScalableConsumerType
    def __init__(self, request_id: int | None = ..., topic: str | None = ..., subscription: str | None = ..., consumer_name: str | None = ..., consumer_id: int | None = ..., consumer_type: ScalableConsumerType | str | None = ...) -> None: ...

class CommandScalableTopicSubscribeResponse(Message):
    request_id: int
    error: ServerError
    message: str
    assignment: ScalableConsumerAssignment
    def __init__(self, request_id: int | None = ..., error: ServerError | str | None = ..., message: str | None = ..., assignment: ScalableConsumerAssignment | Mapping | None = ...) -> None: ...

class CommandScalableTopicUpdate(Message):
    session_id: int
    dag: ScalableTopicDAG
    error: ServerError
    message: str
    resolved_topic_name: str
    def __init__(self, session_id: int | None = ..., dag: ScalableTopicDAG | Mapping | None = ..., error: ServerError | str | None = ..., message: str | None = ..., resolved_topic_name: str | None = ...) -> None: ...

class CommandSeek(Message):
    consumer_id: int
    request_id: int
    message_id: MessageIdData
    message_publish_time: int
    def __init__(self, consumer_id: int | None = ..., request_id: int | None = ..., message_id: MessageIdData | Mapping | None = ..., message_publish_time: int | None = ...) -> None: ...

class CommandSend(Message):
    producer_id: int
    sequence_id: int
    num_messages: int
    txnid_least_bits: int
    txnid_most_bits: int
    highest_sequence_id: int
    is_chunk: bool
    marker: bool
    message_id: MessageIdData
    def __init__(self, producer_id: int | None = ..., sequence_id: int | None = ..., num_messages: int | None = ..., txnid_least_bits: int | None = ..., txnid_most_bits: int | None = ..., highest_sequence_id: int | None = ..., is_chunk: bool | None = ..., marker: bool | None = ..., message_id: MessageIdData | Mapping | None = ...) -> None: ...

class CommandSendError(Message):
    producer_id: int
    sequence_id: int
    error: ServerError
    message: str
    def __init__(self, producer_id: int | None = ..., sequence_id: int | None = ..., error: ServerError | str | None = ..., message: str | None = ...) -> None: ...

class CommandSendReceipt(Message):
    producer_id: int
    sequence_id: int
    message_id: MessageIdData
    highest_sequence_id: int
    def __init__(self, producer_id: int | None = ..., sequence_id: int | None = ..., message_id: MessageIdData | Mapping | None = ..., highest_sequence_id: int | None = ...) -> None: ...

class CommandSubscribe(Message):
    class InitialPosition(int, metaclass=EnumTypeWrapper):
        Latest: ClassVar[CommandSubscribe.InitialPosition]
        Earliest: ClassVar[CommandSubscribe.InitialPosition]
    Latest: CommandSubscribe.InitialPosition
    Earliest: CommandSubscribe.InitialPosition
    class SubType(int, metaclass=EnumTypeWrapper):
        Exclusive: ClassVar[CommandSubscribe.SubType]
        Shared: ClassVar[CommandSubscribe.SubType]
        Failover: ClassVar[CommandSubscribe.SubType]
        Key_Shared: ClassVar[CommandSubscribe.SubType]
    Exclusive: CommandSubscribe.SubType
    Shared: CommandSubscribe.SubType
    Failover: CommandSubscribe.SubType
    Key_Shared: CommandSubscribe.SubType
    topic: str
    subscription: str
    subType: CommandSubscribe.SubType
    consumer_id: int
    request_id: int
    consumer_name: str
    priority_level: int
    durable: bool
    start_message_id: MessageIdData
    metadata: RepeatedCompositeFieldContainer[KeyValue]
    read_compacted: bool
    schema: Schema
    initialPosition: CommandSubscribe.InitialPosition
    replicate_subscription_state: bool
    force_topic_creation: bool
    start_message_rollback_duration_sec: int
    keySharedMeta: KeySharedMeta
    subscription_properties: RepeatedCompositeFieldContainer[KeyValue]
    consumer_epoch: int
    def __init__(self, topic: str | None = ..., subscription: str | None = ..., subType: CommandSubscribe.SubType | str | None = ..., consumer_id: int | None = ..., request_id: int | None = ..., consumer_name: str | None = ..., priority_level: int | None = ..., durable: bool | None = ..., start_message_id: MessageIdData | Mapping | None = ..., metadata: Iterable[KeyValue | Mapping] | None = ..., read_compacted: bool | None = ..., schema: Schema | Mapping | None = ..., initialPosition: CommandSubscribe.InitialPosition | str | None = ..., replicate_subscription_state: bool | None = ..., force_topic_creation: bool | None = ..., start_message_rollback_duration_sec: int | None = ..., keySharedMeta: KeySharedMeta | Mapping | None = ..., subscription_properties: Iterable[KeyValue | Mapping] | None = ..., consumer_epoch: int | None = ...) -> None: ...

class CommandSuccess(Message):
    request_id: int
    schema: Schema
    def __init__(self, request_id: int | None = ..., schema: Schema | Mapping | None = ...) -> None: ...

class CommandTcClientConnectRequest(Message):
    request_id: int
    tc_id: int
    scalable: bool
    def __init__(self, request_id: int | None = ..., tc_id: int | None = ..., scalable: bool | None = ...) -> None: ...

class CommandTcClientConnectResponse(Message):
    request_id: int
    error: ServerError
    message: str
    def __init__(self, request_id: int | None = ..., error: ServerError | str | None = ..., message: str | None = ...) -> None: ...

class CommandTopicMigrated(Message):
    class ResourceType(int, metaclass=EnumTypeWrapper):
        Producer: ClassVar[CommandTopicMigrated.ResourceType]
        Consumer: ClassVar[CommandTopicMigrated.ResourceType]
    Producer: CommandTopicMigrated.ResourceType
    Consumer: CommandTopicMigrated.ResourceType
    resource_id: int
    resource_type: CommandTopicMigrated.ResourceType
    brokerServiceUrl: str
    brokerServiceUrlTls: str
    def __init__(self, resource_id: int | None = ..., resource_type: CommandTopicMigrated.ResourceType | str | None = ..., brokerServiceUrl: str | None = ..., brokerServiceUrlTls: str | None = ...) -> None: ...

class CommandUnsubscribe(Message):
    consumer_id: int
    request_id: int
    force: bool
    def __init__(self, consumer_id: int | None = ..., request_id: int | None = ..., force: bool | None = ...) -> None: ...

class CommandWatchScalableTopics(Message):
    watch_id: int
    namespace: str
    property_filters: RepeatedCompositeFieldContainer[KeyValue]
    current_hash: str
    def __init__(self, watch_id: int | None = ..., namespace: str | None = ..., property_filters: Iterable[KeyValue | Mapping] | None = ..., current_hash: str | None = ...) -> None: ...

class CommandWatchScalableTopicsClose(Message):
    watch_id: int
    def __init__(self, watch_id: int | None = ...) -> None: ...

class CommandWatchScalableTopicsUpdate(Message):
    watch_id: int
    snapshot: ScalableTopicsSnapshot
    diff: ScalableTopicsDiff
    error: ServerError
    message: str
    def __init__(self, watch_id: int | None = ..., snapshot: ScalableTopicsSnapshot | Mapping | None = ..., diff: ScalableTopicsDiff | Mapping | None = ..., error: ServerError | str | None = ..., message: str | None = ...) -> None: ...

class CommandWatchTcAssignments(Message):
    watch_id: int
    def __init__(self, watch_id: int | None = ...) -> None: ...

class CommandWatchTcAssignmentsClose(Message):
    watch_id: int
    def __init__(self, watch_id: int | None = ...) -> None: ...

class CommandWatchTcAssignmentsUpdate(Message):
    watch_id: int
    snapshot: TcAssignmentsSnapshot
    error: ServerError
    message: str
    def __init__(self, watch_id: int | None = ..., snapshot: TcAssignmentsSnapshot | Mapping | None = ..., error: ServerError | str | None = ..., message: str | None = ...) -> None: ...

class CommandWatchTopicList(Message):
    request_id: int
    watcher_id: int
    namespace: str
    topics_pattern: str
    topics_hash: str
    def __init__(self, request_id: int | None = ..., watcher_id: int | None = ..., namespace: str | None = ..., topics_pattern: str | None = ..., topics_hash: str | None = ...) -> None: ...

class CommandWatchTopicListClose(Message):
    request_id: int
    watcher_id: int
    def __init__(self, request_id: int | None = ..., watcher_id: int | None = ...) -> None: ...

class CommandWatchTopicListSuccess(Message):
    request_id: int
    watcher_id: int
    topic: RepeatedScalarFieldContainer[str]
    topics_hash: str
    def __init__(self, request_id: int | None = ..., watcher_id: int | None = ..., topic: Iterable[str] | None = ..., topics_hash: str | None = ...) -> None: ...

class CommandWatchTopicUpdate(Message):
    watcher_id: int
    new_topics: RepeatedScalarFieldContainer[str]
    deleted_topics: RepeatedScalarFieldContainer[str]
    topics_hash: str
    def __init__(self, watcher_id: int | None = ..., new_topics: Iterable[str] | None = ..., deleted_topics: Iterable[str] | None = ..., topics_hash: str | None = ...) -> None: ...

class EncryptionKeys(Message):
    key: str
    value: bytes
    metadata: RepeatedCompositeFieldContainer[KeyValue]
    def __init__(self, key: str | None = ..., value: bytes | None = ..., metadata: Iterable[KeyValue | Mapping] | None = ...) -> None: ...

class FeatureFlags(Message):
    supports_auth_refresh: bool
    supports_broker_entry_metadata: bool
    supports_partial_producer: bool
    supports_topic_watchers: bool
    supports_get_partitioned_metadata_without_auto_creation: bool
    supports_repl_dedup_by_lid_and_eid: bool
    supports_topic_watcher_reconcile: bool
    supports_scalable_topics: bool
    supports_tc_metadata_discovery: bool
    def __init__(self, supports_auth_refresh: bool | None = ..., supports_broker_entry_metadata: bool | None = ..., supports_partial_producer: bool | None = ..., supports_topic_watchers: bool | None = ..., supports_get_partitioned_metadata_without_auto_creation: bool | None = ..., supports_repl_dedup_by_lid_and_eid: bool | None = ..., supports_topic_watcher_reconcile: bool | None = ..., supports_scalable_topics: bool | None = ..., supports_tc_metadata_discovery: bool | None = ...) -> None: ...

class IntRange(Message):
    start: int
    end: int
    def __init__(self, start: int | None = ..., end: int | None = ...) -> None: ...

class KeyLongValue(Message):
    key: str
    value: int
    def __init__(self, key: str | None = ..., value: int | None = ...) -> None: ...

class KeySharedMeta(Message):
    keySharedMode: KeySharedMode
    hashRanges: RepeatedCompositeFieldContainer[IntRange]
    allowOutOfOrderDelivery: bool
    def __init__(self, keySharedMode: KeySharedMode | str | None = ..., hashRanges: Iterable[IntRange | Mapping] | None = ..., allowOutOfOrderDelivery: bool | None = ...) -> None: ...

class KeyValue(Message):
    key: str
    value: str
    def __init__(self, key: str | None = ..., value: str | None = ...) -> None: ...

class MarkersMessageIdData(Message):
    ledger_id: int
    entry_id: int
    def __init__(self, ledger_id: int | None = ..., entry_id: int | None = ...) -> None: ...

class MessageCount(Message):
    ledger_id: int
    next_entry_id: int
    entries: int
    messages: int
    bytes: int
    next_messages: int
    next_publish_time: int
    def __init__(self, ledger_id: int | None = ..., next_entry_id: int | None = ..., entries: int | None = ..., messages: int | None = ..., bytes: int | None = ..., next_messages: int | None = ..., next_publish_time: int | None = ...) -> None: ...

class MessageCountQuery(Message):
    ledger_id: int
    entry_id: int
    messages_max: int
    bytes_max: int
    end_entry_id: int
    publish_time: bool
    def __init__(self, ledger_id: int | None = ..., entry_id: int | None = ..., messages_max: int | None = ..., bytes_max: int | None = ..., end_entry_id: int | None = ..., publish_time: bool | None = ...) -> None: ...

class MessageIdData(Message):
    ledgerId: int
    entryId: int
    partition: int
    batch_index: int
    ack_set: RepeatedScalarFieldContainer[int]
    batch_size: int
    first_chunk_message_id: MessageIdData
    def __init__(self, ledgerId: int | None = ..., entryId: int | None = ..., partition: int | None = ..., batch_index: int | None = ..., ack_set: Iterable[int] | None = ..., batch_size: int | None = ..., first_chunk_message_id: MessageIdData | Mapping | None = ...) -> None: ...

class MessageMetadata(Message):
    producer_name: str
    sequence_id: int
    publish_time: int
    properties: RepeatedCompositeFieldContainer[KeyValue]
    replicated_from: str
    partition_key: str
    replicate_to: RepeatedScalarFieldContainer[str]
    compression: CompressionType
    uncompressed_size: int
    num_messages_in_batch: int
    event_time: int
    encryption_keys: RepeatedCompositeFieldContainer[EncryptionKeys]
    encryption_algo: str
    encryption_param: bytes
    schema_version: bytes
    partition_key_b64_encoded: bool
    ordering_key: bytes
    deliver_at_time: int
    marker_type: int
    txnid_least_bits: int
    txnid_most_bits: int
    highest_sequence_id: int
    null_value: bool
    uuid: str
    num_chunks_from_msg: int
    total_chunk_msg_size: int
    chunk_id: int
    null_partition_key: bool
    compacted_batch_indexes: RepeatedScalarFieldContainer[int]
    schema_id: bytes
    def __init__(self, producer_name: str | None = ..., sequence_id: int | None = ..., publish_time: int | None = ..., properties: Iterable[KeyValue | Mapping] | None = ..., replicated_from: str | None = ..., partition_key: str | None = ..., replicate_to: Iterable[str] | None = ..., compression: CompressionType | str | None = ..., uncompressed_size: int | None = ..., num_messages_in_batch: int | None = ..., event_time: int | None = ..., encryption_keys: Iterable[EncryptionKeys | Mapping] | None = ..., encryption_algo: str | None = ..., encryption_param: bytes | None = ..., schema_version: bytes | None = ..., partition_key_b64_encoded: bool | None = ..., ordering_key: bytes | None = ..., deliver_at_time: int | None = ..., marker_type: int | None = ..., txnid_least_bits: int | None = ..., txnid_most_bits: int | None = ..., highest_sequence_id: int | None = ..., null_value: bool | None = ..., uuid: str | None = ..., num_chunks_from_msg: int | None = ..., total_chunk_msg_size: int | None = ..., chunk_id: int | None = ..., null_partition_key: bool | None = ..., compacted_batch_indexes: Iterable[int] | None = ..., schema_id: bytes | None = ...) -> None: ...

class ReplicatedSubscriptionsSnapshotRequest(Message):
    snapshot_id: str
    source_cluster: str
    def __init__(self, snapshot_id: str | None = ..., source_cluster: str | None = ...) -> None: ...

class ReplicatedSubscriptionsSnapshotResponse(Message):
    snapshot_id: str
    cluster: ClusterMessageId
    def __init__(self, snapshot_id: str | None = ..., cluster: ClusterMessageId | Mapping | None = ...) -> None: ...

class ReplicatedSubscriptionsUpdate(Message):
    subscription_name: str
    clusters: RepeatedCompositeFieldContainer[ClusterMessageId]
    def __init__(self, subscription_name: str | None = ..., clusters: Iterable[ClusterMessageId | Mapping] | None = ...) -> None: ...

class ResourceUsageBorrower(Message):
    broker: str
    sequence: int
    heard_ms_ago: int
    group_steps: RepeatedScalarFieldContainer[int]
    kinds: RepeatedScalarFieldContainer[int]
    amounts: RepeatedScalarFieldContainer[int]
    def __init__(self, broker: str | None = ..., sequence: int | None = ..., heard_ms_ago: int | None = ..., group_steps: Iterable[int] | None = ..., kinds: Iterable[int] | None = ..., amounts: Iterable[int] | None = ...) -> None: ...

class ResourceUsageInfo(Message):
    broker: str
    incarnation: int
    sequence: int
    published_ms: int
    covered_first: int
    covered_last: int
    asks: bool
    usages: bytes
    usages_size: int
    signature: bytes
    borrowers: RepeatedCompositeFieldContainer[ResourceUsageBorrower]
    heard_members: RepeatedScalarFieldContainer[int]
    heard_sequences: RepeatedScalarFieldContainer[int]
    urgent: bool
    def __init__(self, broker: str | None = ..., incarnation: int | None = ..., sequence: int | None = ..., published_ms: int | None = ..., covered_first: int | None = ..., covered_last: int | None = ..., asks: bool | None = ..., usages: bytes | None = ..., usages_size: int | None = ..., signature: bytes | None = ..., borrowers: Iterable[ResourceUsageBorrower | Mapping] | None = ..., heard_members: Iterable[int] | None = ..., heard_sequences: Iterable[int] | None = ..., urgent: bool | None = ...) -> None: ...

class ResourceUsages(Message):
    group_steps: RepeatedScalarFieldContainer[int]
    topics: RepeatedScalarFieldContainer[int]
    published_messages: RepeatedScalarFieldContainer[int]
    published_bytes: RepeatedScalarFieldContainer[int]
    dispatched_messages: RepeatedScalarFieldContainer[int]
    dispatched_bytes: RepeatedScalarFieldContainer[int]
    held_published_messages: RepeatedScalarFieldContainer[int]
    held_published_bytes: RepeatedScalarFieldContainer[int]
    held_dispatched_messages: RepeatedScalarFieldContainer[int]
    held_dispatched_bytes: RepeatedScalarFieldContainer[int]
    waiting_published_messages: RepeatedScalarFieldContainer[int]
    waiting_published_bytes: RepeatedScalarFieldContainer[int]
    waiting_dispatched_messages: RepeatedScalarFieldContainer[int]
    waiting_dispatched_bytes: RepeatedScalarFieldContainer[int]
    def __init__(self, group_steps: Iterable[int] | None = ..., topics: Iterable[int] | None = ..., published_messages: Iterable[int] | None = ..., published_bytes: Iterable[int] | None = ..., dispatched_messages: Iterable[int] | None = ..., dispatched_bytes: Iterable[int] | None = ..., held_published_messages: Iterable[int] | None = ..., held_published_bytes: Iterable[int] | None = ..., held_dispatched_messages: Iterable[int] | None = ..., held_dispatched_bytes: Iterable[int] | None = ..., waiting_published_messages: Iterable[int] | None = ..., waiting_published_bytes: Iterable[int] | None = ..., waiting_dispatched_messages: Iterable[int] | None = ..., waiting_dispatched_bytes: Iterable[int] | None = ...) -> None: ...

class ScalableAssignedSegment(Message):
    segment_id: int
    hash_start: int
    hash_end: int
    segment_topic: str
    def __init__(self, segment_id: int | None = ..., hash_start: int | None = ..., hash_end: int | None = ..., segment_topic: str | None = ...) -> None: ...

class ScalableConsumerAssignment(Message):
    layout_epoch: int
    segments: RepeatedCompositeFieldContainer[ScalableAssignedSegment]
    def __init__(self, layout_epoch: int | None = ..., segments: Iterable[ScalableAssignedSegment | Mapping] | None = ...) -> None: ...

class ScalableTopicDAG(Message):
    epoch: int
    segments: RepeatedCompositeFieldContainer[SegmentInfoProto]
    segment_brokers: RepeatedCompositeFieldContainer[SegmentBrokerAddress]
    controller_broker_url: str
    controller_broker_url_tls: str
    def __init__(self, epoch: int | None = ..., segments: Iterable[SegmentInfoProto | Mapping] | None = ..., segment_brokers: Iterable[SegmentBrokerAddress | Mapping] | None = ..., controller_broker_url: str | None = ..., controller_broker_url_tls: str | None = ...) -> None: ...

class ScalableTopicsDiff(Message):
    added: RepeatedScalarFieldContainer[str]
    removed: RepeatedScalarFieldContainer[str]
    def __init__(self, added: Iterable[str] | None = ..., removed: Iterable[str] | None = ...) -> None: ...

class ScalableTopicsSnapshot(Message):
    topics: RepeatedScalarFieldContainer[str]
    def __init__(self, topics: Iterable[str] | None = ...) -> None: ...

class Schema(Message):
    class Type(int, metaclass=EnumTypeWrapper):
        NoSchema: ClassVar[Schema.Type]
        String: ClassVar[Schema.Type]
        Json: ClassVar[Schema.Type]
        Protobuf: ClassVar[Schema.Type]
        Avro: ClassVar[Schema.Type]
        Bool: ClassVar[Schema.Type]
        Int8: ClassVar[Schema.Type]
        Int16: ClassVar[Schema.Type]
        Int32: ClassVar[Schema.Type]
        Int64: ClassVar[Schema.Type]
        Float: ClassVar[Schema.Type]
        Double: ClassVar[Schema.Type]
        Date: ClassVar[Schema.Type]
        Time: ClassVar[Schema.Type]
        Timestamp: ClassVar[Schema.Type]
        KeyValueSchema: ClassVar[Schema.Type]
        Instant: ClassVar[Schema.Type]
        LocalDate: ClassVar[Schema.Type]
        LocalTime: ClassVar[Schema.Type]
        LocalDateTime: ClassVar[Schema.Type]
        ProtobufNative: ClassVar[Schema.Type]
        AutoConsume: ClassVar[Schema.Type]
        External: ClassVar[Schema.Type]
    NoSchema: Schema.Type
    String: Schema.Type
    Json: Schema.Type
    Protobuf: Schema.Type
    Avro: Schema.Type
    Bool: Schema.Type
    Int8: Schema.Type
    Int16: Schema.Type
    Int32: Schema.Type
    Int64: Schema.Type
    Float: Schema.Type
    Double: Schema.Type
    Date: Schema.Type
    Time: Schema.Type
    Timestamp: Schema.Type
    KeyValueSchema: Schema.Type
    Instant: Schema.Type
    LocalDate: Schema.Type
    LocalTime: Schema.Type
    LocalDateTime: Schema.Type
    ProtobufNative: Schema.Type
    AutoConsume: Schema.Type
    External: Schema.Type
    name: str
    schema_data: bytes
    type: Schema.Type
    properties: RepeatedCompositeFieldContainer[KeyValue]
    def __init__(self, name: str | None = ..., schema_data: bytes | None = ..., type: Schema.Type | str | None = ..., properties: Iterable[KeyValue | Mapping] | None = ...) -> None: ...

class SegmentBrokerAddress(Message):
    segment_id: int
    broker_url: str
    broker_url_tls: str
    def __init__(self, segment_id: int | None = ..., broker_url: str | None = ..., broker_url_tls: str | None = ...) -> None: ...

class SegmentInfoProto(Message):
    segment_id: int
    hash_start: int
    hash_end: int
    state: SegmentState
    parent_ids: RepeatedScalarFieldContainer[int]
    child_ids: RepeatedScalarFieldContainer[int]
    created_at_epoch: int
    sealed_at_epoch: int
    created_at_ms: int
    sealed_at_ms: int
    legacy_topic_name: str
    def __init__(self, segment_id: int | None = ..., hash_start: int | None = ..., hash_end: int | None = ..., state: SegmentState | str | None = ..., parent_ids: Iterable[int] | None = ..., child_ids: Iterable[int] | None = ..., created_at_epoch: int | None = ..., sealed_at_epoch: int | None = ..., created_at_ms: int | None = ..., sealed_at_ms: int | None = ..., legacy_topic_name: str | None = ...) -> None: ...

class SingleMessageMetadata(Message):
    properties: RepeatedCompositeFieldContainer[KeyValue]
    partition_key: str
    payload_size: int
    compacted_out: bool
    event_time: int
    partition_key_b64_encoded: bool
    ordering_key: bytes
    sequence_id: int
    null_value: bool
    null_partition_key: bool
    def __init__(self, properties: Iterable[KeyValue | Mapping] | None = ..., partition_key: str | None = ..., payload_size: int | None = ..., compacted_out: bool | None = ..., event_time: int | None = ..., partition_key_b64_encoded: bool | None = ..., ordering_key: bytes | None = ..., sequence_id: int | None = ..., null_value: bool | None = ..., null_partition_key: bool | None = ...) -> None: ...

class Subscription(Message):
    topic: str
    subscription: str
    def __init__(self, topic: str | None = ..., subscription: str | None = ...) -> None: ...

class TcAssignment(Message):
    tc_id: int
    broker_service_url: str
    broker_service_url_tls: str
    def __init__(self, tc_id: int | None = ..., broker_service_url: str | None = ..., broker_service_url_tls: str | None = ...) -> None: ...

class TcAssignmentsSnapshot(Message):
    parallelism: int
    assignments: RepeatedCompositeFieldContainer[TcAssignment]
    def __init__(self, parallelism: int | None = ..., assignments: Iterable[TcAssignment | Mapping] | None = ...) -> None: ...

# SPDX-License-Identifier: Apache-2.0
"""Which class of bound each field of the protocol has.

Why generated: `wire` reads no files. Where: written by tools/generate_proto.py from tables/fields.tsv: change that and
run it again. `penstock.wire.bounds` says what the classes are.
"""

from __future__ import annotations

from typing import Final

from penstock.wire.pulsar_pb2 import DESCRIPTOR

# By message: the class of each of its fields, in the order of the definition.
_CLASSES: Final = {
    "AuthData": "word credentials",
    "BaseCommand": (
        "number parts answer parts parts parts answer answer answer parts parts parts answer answer parts "
        "parts answer parts parts parts parts answer parts answer parts answer answer parts parts answer "
        "answer parts answer parts answer answer parts answer parts answer parts answer parts answer parts "
        "answer parts answer parts answer parts answer parts answer parts answer answer parts answer parts "
        "answer parts parts answer answer parts answer parts parts answer parts "
    ),
    "BrokerEntryMetadata": "entry entry",
    "ClusterMessageId": "entry entry",
    "CommandAck": "number number ids number pairs number number number",
    "CommandAckResponse": "answer answer answer answer answer answer",
    "CommandActiveConsumerChange": "answer answer",
    "CommandAddPartitionToTxn": "number number number names number",
    "CommandAddPartitionToTxnResponse": "answer answer answer answer answer",
    "CommandAddSubscriptionToTxn": "number number number names number",
    "CommandAddSubscriptionToTxnResponse": "answer answer answer answer answer",
    "CommandAuthChallenge": "answer answer answer",
    "CommandAuthResponse": "word parts number",
    "CommandCloseConsumer": "number number word word",
    "CommandCloseProducer": "number number word word",
    "CommandConnect": "word number credentials number word word word credentials word parts word",
    "CommandConnected": "answer answer answer answer",
    "CommandConsumerStats": "number number",
    "CommandConsumerStatsResponse": (
        "answer answer answer answer answer answer answer answer answer answer answer answer answer answer "
        "answer answer "
    ),
    "CommandEndTxn": "number number number number number",
    "CommandEndTxnOnPartition": "number number number name number number",
    "CommandEndTxnOnPartitionResponse": "answer answer answer answer answer",
    "CommandEndTxnOnSubscription": "number number number parts number number",
    "CommandEndTxnOnSubscriptionResponse": "answer answer answer answer answer",
    "CommandEndTxnResponse": "answer answer answer answer answer",
    "CommandError": "answer answer answer",
    "CommandFlow": "number number",
    "CommandGetLastMessageId": "number number parts",
    "CommandGetLastMessageIdResponse": "answer answer answer answer",
    "CommandGetOrCreateSchema": "number name parts name",
    "CommandGetOrCreateSchemaResponse": "answer answer answer answer",
    "CommandGetSchema": "number name word",
    "CommandGetSchemaResponse": "answer answer answer answer answer",
    "CommandGetTopicsOfNamespace": "number name number pattern hash pairs",
    "CommandGetTopicsOfNamespaceResponse": "answer answer answer answer answer",
    "CommandLookupTopic": "name number number word credentials word name pairs",
    "CommandLookupTopicResponse": "answer answer answer answer answer answer answer answer",
    "CommandMessage": "answer answer answer answer answer",
    "CommandNewTxn": "number number number number",
    "CommandNewTxnResponse": "answer answer answer answer answer",
    "CommandPartitionedTopicMetadata": "name number word credentials word number",
    "CommandPartitionedTopicMetadataResponse": "answer answer answer answer answer",
    "CommandProducer": "name number number name number pairs parts number number number number number name",
    "CommandProducerSuccess": "answer answer answer answer answer answer",
    "CommandReachedEndOfTopic": "answer",
    "CommandRedeliverUnacknowledgedMessages": "number ids number",
    "CommandScalableTopicAssignmentUpdate": "answer answer",
    "CommandScalableTopicClose": "number",
    "CommandScalableTopicLookup": "number name",
    "CommandScalableTopicSubscribe": "number name name name number number",
    "CommandScalableTopicSubscribeResponse": "answer answer answer answer",
    "CommandScalableTopicUpdate": "answer answer answer answer answer",
    "CommandSeek": "number number parts number",
    "CommandSend": "number number number number number number number number parts",
    "CommandSendError": "answer answer answer answer",
    "CommandSendReceipt": "answer answer answer answer",
    "CommandSubscribe": (
        "name name number number number name number number parts pairs number parts number number number "
        "number parts pairs number "
    ),
    "CommandSuccess": "answer answer",
    "CommandTcClientConnectRequest": "number number number",
    "CommandTcClientConnectResponse": "answer answer answer",
    "CommandTopicMigrated": "answer answer answer answer",
    "CommandUnsubscribe": "number number number",
    "CommandWatchScalableTopics": "number name pairs hash",
    "CommandWatchScalableTopicsClose": "number",
    "CommandWatchScalableTopicsUpdate": "answer answer answer answer answer",
    "CommandWatchTcAssignments": "number",
    "CommandWatchTcAssignmentsClose": "number",
    "CommandWatchTcAssignmentsUpdate": "answer answer answer answer",
    "CommandWatchTopicList": "number number name pattern hash",
    "CommandWatchTopicListClose": "number number",
    "CommandWatchTopicListSuccess": "answer answer answer answer",
    "CommandWatchTopicUpdate": "answer answer answer answer",
    "EncryptionKeys": "entry entry entry",
    "FeatureFlags": "number number number number number number number number number",
    "IntRange": "held held",
    "KeyLongValue": "held held",
    "KeySharedMeta": "number ranges number",
    "KeyValue": "held held",
    "MarkersMessageIdData": "entry entry",
    "MessageCount": "answer answer answer answer answer answer answer",
    "MessageCountQuery": "number number number number number number",
    "MessageIdData": "number number number number ack-set number parts",
    "MessageMetadata": (
        "entry entry entry entry entry entry entry entry entry entry entry entry entry entry entry entry "
        "entry entry entry entry entry entry entry entry entry entry entry entry entry entry "
    ),
    "ReplicatedSubscriptionsSnapshotRequest": "entry entry",
    "ReplicatedSubscriptionsSnapshotResponse": "entry entry",
    "ReplicatedSubscriptionsUpdate": "entry entry",
    "ResourceUsageBorrower": "entry entry entry entry entry entry",
    "ResourceUsageInfo": "entry entry entry entry entry entry entry entry entry entry entry entry entry entry",
    "ResourceUsages": "entry entry entry entry entry entry entry entry entry entry entry entry entry entry",
    "ScalableAssignedSegment": "answer answer answer answer",
    "ScalableConsumerAssignment": "answer answer",
    "ScalableTopicDAG": "answer answer answer answer answer",
    "ScalableTopicsDiff": "answer answer",
    "ScalableTopicsSnapshot": "answer",
    "Schema": "name schema number pairs",
    "SegmentBrokerAddress": "answer answer answer",
    "SegmentInfoProto": "answer answer answer answer answer answer answer answer answer answer answer",
    "SingleMessageMetadata": "entry entry entry entry entry entry entry entry entry entry",
    "Subscription": "name name",
    "TcAssignment": "answer answer answer",
    "TcAssignmentsSnapshot": "answer answer",
}

CLASS_OF: Final[dict[str, dict[str, str]]] = {
    name: dict(
        zip((field.name for field in DESCRIPTOR.message_types_by_name[name].fields), classes.split(), strict=True)
    )
    for name, classes in _CLASSES.items()
}

# SPDX-License-Identifier: Apache-2.0
"""Errors: what can go wrong for a client, an administrator or the disk, and how each of them is told.

Why: one failure has three readers: a client that switches on the protocol's error code, an administrator who sees an
HTTP status, and a person who reads the message. An error class says all three once.
Where: raised anywhere, answered in two places: the broker's sessions (wire code) and the admin port (HTTP status).
Our own mistakes are not in this tree; they are assertions.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class WireCode(IntEnum):
    """The protocol's error codes (`ServerError`), by their names in upper case."""

    UNKNOWN_ERROR = 0
    METADATA_ERROR = 1
    PERSISTENCE_ERROR = 2
    AUTHENTICATION_ERROR = 3
    AUTHORIZATION_ERROR = 4
    CONSUMER_BUSY = 5
    SERVICE_NOT_READY = 6
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR = 7
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION = 8
    CHECKSUM_ERROR = 9
    UNSUPPORTED_VERSION_ERROR = 10
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    CONSUMER_NOT_FOUND = 13
    TOO_MANY_REQUESTS = 14
    TOPIC_TERMINATED_ERROR = 15
    PRODUCER_BUSY = 16
    INVALID_TOPIC_NAME = 17
    INCOMPATIBLE_SCHEMA = 18
    CONSUMER_ASSIGN_ERROR = 19
    TRANSACTION_COORDINATOR_NOT_FOUND = 20
    INVALID_TXN_STATUS = 21
    NOT_ALLOWED_ERROR = 22
    TRANSACTION_CONFLICT = 23
    TRANSACTION_NOT_FOUND = 24
    PRODUCER_FENCED = 25


class PenstockError(Exception):
    """Something a client, an administrator or the disk did, with the message to tell whoever asked."""

    wire_code: ClassVar[WireCode] = WireCode.UNKNOWN_ERROR
    http_status: ClassVar[int] = 500


class ConfigurationError(PenstockError):
    """A setting, flag or limit that cannot be; penstock does not start with it."""


class DataDirectoryLocked(PenstockError):
    """Another process has this data directory open."""


class InvalidTopicName(PenstockError):
    """A topic or namespace name that does not read as one."""

    wire_code, http_status = WireCode.INVALID_TOPIC_NAME, 412

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        super().__init__(f"invalid name {name!r}: {why}")


class TopicNotFound(PenstockError):
    """The topic does not exist and may not be created on the way."""

    wire_code, http_status = WireCode.TOPIC_NOT_FOUND, 404

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"Topic {topic} not found; create it first, or set allowAutoTopicCreation=true")


class SubscriptionNotFound(PenstockError):
    """The topic has no such subscription."""

    wire_code, http_status = WireCode.SUBSCRIPTION_NOT_FOUND, 404

    def __init__(self, topic: str, subscription: str) -> None:
        self.topic, self.subscription = topic, subscription
        super().__init__(f"Subscription {subscription} not found for topic {topic}")


class ConsumerBusy(PenstockError):
    """The subscription is taken, or of another type than this consumer wants."""

    wire_code, http_status = WireCode.CONSUMER_BUSY, 409


class ProducerBusy(PenstockError):
    """A producer of this name is connected, or the topic takes no more producers."""

    wire_code, http_status = WireCode.PRODUCER_BUSY, 409


class NotAllowed(PenstockError):
    """The request reads well but is not permitted on this topic, subscription or connection."""

    wire_code, http_status = WireCode.NOT_ALLOWED_ERROR, 405


class ServiceNotReady(PenstockError):
    """Not now: starting, stopping or still busy with the same thing. The client should try again."""

    wire_code, http_status = WireCode.SERVICE_NOT_READY, 503


class UnsupportedVersion(PenstockError):
    """The client speaks a protocol version, or asks for a command, that penstock does not serve."""

    wire_code, http_status = WireCode.UNSUPPORTED_VERSION_ERROR, 501


class PersistenceFailed(PenstockError):
    """The disk refused a write or a sync: nothing of it was acknowledged."""

    wire_code, http_status = WireCode.PERSISTENCE_ERROR, 500


class StorageReadOnly(PersistenceFailed):
    """An earlier failure left the log read-only; a restart leaves that state."""

    http_status = 503

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the entry log is read-only since: {reason}; mend the cause, then restart penstock")


class ReadFailed(PenstockError):
    """The disk could not read what is stored. Nothing counts as lost: whoever asked should try again."""

    wire_code, http_status = WireCode.SERVICE_NOT_READY, 503


class MetadataFailed(PenstockError):
    """The catalog (topics, cursors, policies) could not be read or written."""

    wire_code, http_status = WireCode.METADATA_ERROR, 500


class AuthenticationFailed(PenstockError):
    """The client did not show who it is. The message says no more than that: the reason goes to the log."""

    wire_code, http_status = WireCode.AUTHENTICATION_ERROR, 401


class AuthorizationFailed(PenstockError):
    """The client is known, and may not do this."""

    wire_code, http_status = WireCode.AUTHORIZATION_ERROR, 403


class TenantNotFound(PenstockError):
    """There is no such tenant."""

    wire_code, http_status = WireCode.TOPIC_NOT_FOUND, 404

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        super().__init__(f"Tenant {tenant} does not exist; create it first")


class NamespaceNotFound(PenstockError):
    """There is no such namespace."""

    wire_code, http_status = WireCode.TOPIC_NOT_FOUND, 404

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        super().__init__(f"Namespace not found: {namespace} does not exist; create it first")


class NotFound(PenstockError):
    """Something else that an administrator named does not exist."""

    wire_code, http_status = WireCode.METADATA_ERROR, 404


class AlreadyExists(PenstockError):
    """What should be made is there already, or in the way."""

    wire_code, http_status = WireCode.METADATA_ERROR, 409


class NothingToDo(PenstockError):
    """The request reads well, and leaves everything as it is: whoever asked should know."""

    wire_code, http_status = WireCode.METADATA_ERROR, 409


class PreconditionFailed(PenstockError):
    """The request reads well, and what it wants does not fit what is there; or a value cannot be."""

    wire_code, http_status = WireCode.METADATA_ERROR, 412


class NotAcceptable(PenstockError):
    """A number that Pulsar answers with 406: so many partitions cannot be."""

    wire_code, http_status = WireCode.METADATA_ERROR, 406


class Unprocessable(PenstockError):
    """A change that reads well and leads nowhere, which Pulsar answers with 422."""

    wire_code, http_status = WireCode.METADATA_ERROR, 422


class TooManyRequests(PenstockError):
    """Others are being served; the client should back off and try again."""

    wire_code, http_status = WireCode.TOO_MANY_REQUESTS, 429


class TopicTerminated(PenstockError):
    """The topic takes no more messages, for ever."""

    wire_code, http_status = WireCode.TOPIC_TERMINATED_ERROR, 405

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic} is terminated: it takes no more messages")


class ProducerFenced(PenstockError):
    """Another producer has, or had since, the exclusive right to this topic."""

    wire_code, http_status = WireCode.PRODUCER_FENCED, 409


class BacklogQuotaHold(PenstockError):
    """The backlog is over its quota; the client keeps its messages and tries again."""

    wire_code, http_status = WireCode.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR, 412


class BacklogQuotaExceeded(PenstockError):
    """The backlog is over its quota; the client's producer fails."""

    wire_code, http_status = WireCode.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION, 412


class IncompatibleSchema(PenstockError):
    """The schema cannot be used beside those the topic has."""

    wire_code, http_status = WireCode.INCOMPATIBLE_SCHEMA, 409


class InvalidSchema(PenstockError):
    """What should be a schema does not read as one."""

    wire_code, http_status = WireCode.INCOMPATIBLE_SCHEMA, 422


class ConsumerAssignFailed(PenstockError):
    """The hash ranges that a Key_Shared consumer asks for cannot be given to it."""

    wire_code, http_status = WireCode.CONSUMER_ASSIGN_ERROR, 412

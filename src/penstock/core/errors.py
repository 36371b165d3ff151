# SPDX-License-Identifier: Apache-2.0
"""Errors of clients, administrators and disks, and how each of them is reported.

Why: one failure has three readers: a client that evaluates the protocol's error code, an administrator who sees an HTTP
status, and a person who reads the message. An error class defines all three. Where: raised anywhere, answered in two
places: the broker's sessions (wire code) and the admin port (HTTP status). Bugs of penstock are not in this tree; they
are assertions.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    """An error caused by a client, an administrator or the disk, with a message for the caller."""

    wire_code: ClassVar[WireCode] = WireCode.UNKNOWN_ERROR
    http_status: ClassVar[int] = 500


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error that is kept, and of its causes.

    Its frames, and those of their callers, refer to what was being read or decoded, which may be megabytes. As a rule
    they refer to the error's keeper, too, so nothing would release them before the garbage collector does.
    """
    known, chain = {error}, [error]
    while chain:
        one = chain.pop()
        one.__traceback__ = None
        for before in (one.__cause__, one.__context__):
            if before is not None and before not in known:
                known.add(before)
                chain.append(before)


class ConfigurationError(PenstockError):
    """An invalid setting, flag or limit; penstock does not start with it."""


class DataDirectoryLocked(PenstockError):
    """Another process has this data directory open."""


class InvalidTopicName(PenstockError):
    """Not a valid topic or namespace name."""

    wire_code, http_status = WireCode.INVALID_TOPIC_NAME, 412

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        super().__init__(f"invalid name {name!r}: {why}")


class TopicNotFound(PenstockError):
    """The topic does not exist and may not be auto-created."""

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
    """The subscription has another consumer or another type than this consumer requests."""

    wire_code, http_status = WireCode.CONSUMER_BUSY, 409


class ProducerBusy(PenstockError):
    """A producer of this name is connected, or the topic has its maximum of producers."""

    wire_code, http_status = WireCode.PRODUCER_BUSY, 409


class NotAllowed(PenstockError):
    """The request is valid but not permitted on this topic, subscription or connection."""

    wire_code, http_status = WireCode.NOT_ALLOWED_ERROR, 405


class ServiceNotReady(PenstockError):
    """The broker is starting, stopping or busy with the same operation. The client should retry."""

    wire_code, http_status = WireCode.SERVICE_NOT_READY, 503


class ServedElsewhere(ServiceNotReady):
    """Another broker of this cluster serves the topic. Clients look it up again; admin requests are passed on."""

    def __init__(self, topic: str, broker: int) -> None:
        self.broker = broker
        super().__init__(f"{topic} is served by broker {broker} of this cluster: look it up again")


class PartitionsElsewhere(ServiceNotReady):
    """An operation was done on the partitions that this broker serves; other brokers must do it on the rest."""

    def __init__(self, topic: str, partitions: Mapping[str, int], *, done: int) -> None:
        """Args: partitions: local names of the rest, with their brokers. done: on how many it was done here."""
        self.partitions, self.done = partitions, done
        super().__init__(f"{len(partitions)} partitions of {topic} are served by other brokers: try again")


class UnsupportedVersion(PenstockError):
    """The client uses a protocol version or a command that penstock does not support."""

    wire_code, http_status = WireCode.UNSUPPORTED_VERSION_ERROR, 501


class PersistenceFailed(PenstockError):
    """A write or a sync failed: nothing of it was acknowledged."""

    wire_code, http_status = WireCode.PERSISTENCE_ERROR, 500


class StorageReadOnly(PersistenceFailed):
    """The log is read-only after an earlier failure, until the process has started again."""

    http_status = 503

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the entry log is read-only since: {reason}; send it again: penstock starts again when the disk takes data"
        )


class NoRoom(PersistenceFailed):
    """The disk is full: nothing can be published until there is room again."""

    http_status = 503

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}; send it again later: penstock goes on as soon as there is room")


class ReadFailed(PenstockError):
    """The disk could not read stored data. Nothing counts as lost: the caller should retry."""

    wire_code, http_status = WireCode.SERVICE_NOT_READY, 503


class MetadataFailed(PenstockError):
    """The catalog (topics, cursors, policies) could not be read or written."""

    wire_code, http_status = WireCode.METADATA_ERROR, 500


class ChangedMeanwhile(PenstockError):
    """The stored record is no longer as it was read: another broker changed it. Read it again, then retry."""

    wire_code, http_status = WireCode.METADATA_ERROR, 409


class AuthenticationFailed(PenstockError):
    """The client is not authenticated. The message says no more than that: the reason goes to the log."""

    wire_code, http_status = WireCode.AUTHENTICATION_ERROR, 401


class AuthorizationFailed(PenstockError):
    """The client is authenticated but not authorized."""

    wire_code, http_status = WireCode.AUTHORIZATION_ERROR, 403


class TenantNotFound(PenstockError):
    """The tenant does not exist."""

    wire_code, http_status = WireCode.TOPIC_NOT_FOUND, 404

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        super().__init__(f"Tenant {tenant} does not exist; create it first")


class NamespaceNotFound(PenstockError):
    """The namespace does not exist."""

    wire_code, http_status = WireCode.TOPIC_NOT_FOUND, 404

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        super().__init__(f"Namespace not found: {namespace} does not exist; create it first")


class NotFound(PenstockError):
    """Another object that an administrator named does not exist."""

    wire_code, http_status = WireCode.METADATA_ERROR, 404


class AlreadyExists(PenstockError):
    """The object to be created exists already, or another one has its name."""

    wire_code, http_status = WireCode.METADATA_ERROR, 409


class NothingToDo(PenstockError):
    """The request is valid but changes nothing, which the caller should know."""

    wire_code, http_status = WireCode.METADATA_ERROR, 409


class PreconditionFailed(PenstockError):
    """The request is valid but conflicts with the current state; or a value is not allowed."""

    wire_code, http_status = WireCode.METADATA_ERROR, 412


class NotAcceptable(PenstockError):
    """A number of partitions that is not allowed; Pulsar returns 406."""

    wire_code, http_status = WireCode.METADATA_ERROR, 406


class Unprocessable(PenstockError):
    """A valid change that is impossible; Pulsar returns 422."""

    wire_code, http_status = WireCode.METADATA_ERROR, 422


class TooManyRequests(PenstockError):
    """Other requests are being served; the client should retry with back-off."""

    wire_code, http_status = WireCode.TOO_MANY_REQUESTS, 429


class TopicTerminated(PenstockError):
    """The topic is terminated: it accepts no more messages."""

    wire_code, http_status = WireCode.TOPIC_TERMINATED_ERROR, 405

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic} is terminated: it takes no more messages")


class ProducerFenced(PenstockError):
    """Another producer has, or had since, exclusive access to this topic."""

    wire_code, http_status = WireCode.PRODUCER_FENCED, 409


class BacklogQuotaHold(PenstockError):
    """The backlog exceeds its quota; the client keeps its messages and retries."""

    wire_code, http_status = WireCode.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR, 412


class BacklogQuotaExceeded(PenstockError):
    """The backlog exceeds its quota; the client's producer fails."""

    wire_code, http_status = WireCode.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION, 412


class IncompatibleSchema(PenstockError):
    """The schema is incompatible with the topic's schema."""

    wire_code, http_status = WireCode.INCOMPATIBLE_SCHEMA, 409


class InvalidSchema(PenstockError):
    """Not a valid schema."""

    wire_code, http_status = WireCode.INCOMPATIBLE_SCHEMA, 422


class ConsumerAssignFailed(PenstockError):
    """The hash ranges that a Key_Shared consumer requests cannot be assigned to it."""

    wire_code, http_status = WireCode.CONSUMER_ASSIGN_ERROR, 412


class CoordinatorNotFound(PenstockError):
    """There is no such transaction coordinator, or another broker has it."""

    wire_code, http_status = WireCode.TRANSACTION_COORDINATOR_NOT_FOUND, 404


class TransactionNotFound(PenstockError):
    """No transaction of this id is open, and none has ended lately."""

    wire_code, http_status = WireCode.TRANSACTION_NOT_FOUND, 404

    def __init__(self, transaction: object) -> None:
        super().__init__(f"Transaction {transaction} not found: it was never opened here, or ended long ago")


class InvalidTransactionStatus(PenstockError):
    """A transaction is being ended, or has ended, otherwise."""

    wire_code, http_status = WireCode.INVALID_TXN_STATUS, 409


class TransactionConflict(PenstockError):
    """A message is acknowledged already, by another transaction or by none."""

    wire_code, http_status = WireCode.TRANSACTION_CONFLICT, 409

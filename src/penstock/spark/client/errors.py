# SPDX-License-Identifier: Apache-2.0
"""Errors between Spark and a broker, in sentences that say what to do.

Why: the text of an error is all that comes through from a task on some executor to the person who started the query.
Where: raised by the client; what may be tried again says so in `may_pass`.
"""

from __future__ import annotations

from typing import Final

from penstock.core.errors import WireCode
from penstock.wire.client.events import RETRIABLE

# What to do about each answer of a broker.
_ADVICE: Final = {
    WireCode.UNKNOWN_ERROR: "look into the broker's log",
    WireCode.METADATA_ERROR: "look into the broker's log: it could not read or write its metadata",
    WireCode.PERSISTENCE_ERROR: "look at the broker's disk and its log",
    WireCode.AUTHENTICATION_ERROR: "give the credentials that the broker expects, and that have not expired: option "
    "token (as file:///path it may be renewed while a query runs), or userName and password, or "
    "tlsCertificateFilePath and tlsKeyFilePath",
    WireCode.AUTHORIZATION_ERROR: "let an administrator grant these credentials the permission on the namespace",
    WireCode.CONSUMER_BUSY: "stop the other consumer of this subscription, or name another subscription",
    WireCode.SERVICE_NOT_READY: "try again once the broker has started or the topic has moved",
    WireCode.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR: "let its subscriptions catch up, or raise its backlog quota",
    WireCode.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION: "let its subscriptions catch up, or raise its backlog quota",
    WireCode.CHECKSUM_ERROR: "look for a faulty network device or memory",
    WireCode.UNSUPPORTED_VERSION_ERROR: "use a newer broker",
    WireCode.TOPIC_NOT_FOUND: "check the topic's name, or create it",
    WireCode.SUBSCRIPTION_NOT_FOUND: "create the subscription, or set allowAutoSubscriptionCreation=true in the broker",
    WireCode.TOO_MANY_REQUESTS: "try again later, or raise the broker's limits",
    WireCode.TOPIC_TERMINATED_ERROR: "write to another topic: this one was closed for good",
    WireCode.PRODUCER_BUSY: "stop the other producer of this name, or give another name",
    WireCode.INVALID_TOPIC_NAME: "write names as topic, tenant/namespace/topic or persistent://tenant/namespace/topic",
    WireCode.INCOMPATIBLE_SCHEMA: "write with the topic's schema, or change its compatibility strategy",
    WireCode.NOT_ALLOWED_ERROR: "look at the policies of the topic and its namespace",
    WireCode.PRODUCER_FENCED: "stop the other producer that has exclusive access to this topic",
}


_DELETED: Final = "the topic was deleted, or never created: check its name"


class ClientError(Exception):
    """Something between this process and a broker failed. `may_pass`: the same may succeed on a new connection."""

    may_pass: bool = False


class BrokerUnreachable(ClientError):
    """No connection could be made, or no handshake."""

    may_pass = True

    def __init__(self, address: str, why: str) -> None:
        self.address = address
        super().__init__(f"cannot reach a broker at {address}: {why}; check service.url and that a broker runs there")


class TlsFailed(ClientError):
    """The two sides do not agree on TLS: a certificate that is not trusted, or a side that speaks no TLS."""

    def __init__(self, address: str, why: str, advice: str) -> None:
        self.address = address
        super().__init__(f"no TLS with {address}: {why}; {advice}")


class UnusableFile(ClientError):
    """A file that an option names is not there, or not what it should be. A token's may be written just now."""

    def __init__(self, option: str, path: str, why: str, *, may_pass: bool = False) -> None:
        self.path = path
        self.may_pass = may_pass
        super().__init__(f"option {option}: {path} cannot be used: {why}")


class ConnectionLost(ClientError):
    """The connection ended while something was expected of it."""

    may_pass = True

    def __init__(self, address: str, why: str) -> None:
        self.address = address
        super().__init__(f"the connection to {address} ended: {why}")


class RequestTimedOut(ClientError):
    """The broker is connected, and did not answer in time."""

    may_pass = True

    def __init__(self, address: str, what: str, timeout_s: float) -> None:
        self.address = address
        super().__init__(
            f"no answer from {address} to {what} within {timeout_s:g} s; look at the broker's load, "
            "or raise operationTimeoutMs"
        )


class Refused(ClientError):
    """The broker answered with an error.

    Attributes:
        code: which, as the protocol counts them.
        said: the broker's own words.
    """

    def __init__(self, code: WireCode, said: str, what: str) -> None:
        self.code, self.said, self.what = code, said, what
        self.may_pass = code in RETRIABLE
        advice = _DELETED if self.is_missing_topic else _ADVICE.get(self.code)
        super().__init__(f"{what} was refused with {self.code.name}: {said}" + (f"; {advice}" if advice else ""))

    @property
    def is_missing_topic(self) -> bool:
        """Whether the topic is not there. Of a partition whose topic was deleted, brokers say it is not allowed."""
        return self.code is WireCode.TOPIC_NOT_FOUND or (
            self.code is WireCode.NOT_ALLOWED_ERROR and "Partition metadata not found" in self.said
        )


class TopicNotYetThere(ClientError):
    """A topic does not exist, and the query was told to wait for it. `may_pass`: it may be created."""

    may_pass = True

    def __init__(self, refused: Refused) -> None:
        super().__init__(
            f"{refused}. With waitingForNonExistedTopic, topics are waited for; raise operationTimeoutMs to wait longer"
        )


class BadAnswer(ClientError):
    """Bytes came that are not the Pulsar protocol, or break it."""

    may_pass = True

    def __init__(self, address: str, why: str, advice: str = "") -> None:
        self.address = address
        usual = "check the port in service.url (a broker's binary port, 6650 by default, not its admin port)"
        super().__init__(f"{address} does not speak the Pulsar protocol as expected: {why}; {advice or usual}")


class RedirectedInCircles(ClientError):
    """Brokers sent a lookup on and on. `may_pass`: they do so while they settle who serves a topic."""

    may_pass = True

    def __init__(self, topic: str, addresses: list[str]) -> None:
        self.addresses = addresses
        super().__init__(
            f"the lookup of {topic} was sent from broker to broker and never answered: {' → '.join(addresses)}; look "
            "at these brokers' logs: they do not agree on who serves the topic"
        )


class UnreadableEntry(ClientError):
    """An entry came whole and cannot be read."""

    def __init__(self, topic: str, message_id: str, why: str) -> None:
        self.topic, self.message_id = topic, message_id
        super().__init__(
            f"{topic}: the entry at {message_id} cannot be read: {why}; begin behind it (startingOffsets), or leave "
            "this topic out"
        )


class DamagedEntry(ClientError):
    """An entry's checksum does not fit, also when it was sent again."""

    may_pass = True

    def __init__(self, topic: str, message_id: str) -> None:
        self.topic, self.message_id = topic, message_id
        super().__init__(
            f"{topic}: the entry at {message_id} does not fit its checksum; look at the broker's disk and its log"
        )


class EncryptedMessage(ClientError):
    """An entry that cannot be decrypted here."""

    def __init__(self, topic: str, message_id: str, producer: str, why: str) -> None:
        self.topic, self.message_id, self.producer = topic, message_id, producer
        super().__init__(
            f"{topic}: the entry at {message_id}, from producer {producer}, cannot be decrypted: {why}. To leave out "
            "such messages, set cryptoFailureAction=DISCARD; for their encrypted bytes, CONSUME"
        )


class DataLost(ClientError):
    """Messages that should have been read are gone."""

    def __init__(self, topic: str, wanted: str, found: str) -> None:
        self.topic, self.wanted = topic, wanted
        super().__init__(
            f"{topic}: messages from {wanted} on are no longer there: {found}; the topic's retention removed them "
            "before they were read, or the topic was deleted. Raise its retention or read more often. To go on from "
            "the earliest message there is, set failOnDataLoss=false; to begin anew, use a new checkpoint"
        )


class EntriesMissed(ClientError):
    """An entry that the topic has did not come, and later ones did. `may_pass`: it is read again."""

    may_pass = True

    def __init__(self, topic: str, missed: str, came: str) -> None:
        self.topic, self.missed = topic, missed
        super().__init__(
            f"{topic}: the broker sent the entry at {came}, and not the one at {missed}, which the topic has; look at "
            "the broker's log"
        )


class NothingCame(ClientError):
    """The broker is there, messages should be, and none came."""

    def __init__(self, topic: str, position: str, end: str, timeout_s: float, *, topic_ends: str = "") -> None:
        """`topic_ends` tells of a topic without any of these messages where its last one is."""
        self.topic = topic
        why = (
            f"{topic_ends}, so they were never published, or the topic lost them; compare that with endingOffsets, "
            "or with the query's checkpoint. To wait longer for them"
            if topic_ends
            else "look at the broker's load, or wait longer: for that"
        )
        super().__init__(
            f"{topic}: nothing came for {timeout_s:g} s where messages from {position} up to {end} should be; {why}, "
            "raise pollTimeoutMs; to pass over what does not come, set failOnDataLoss=false"
        )


class UnreadableValue(ClientError):
    """A value is not what the topic's schema says."""

    def __init__(self, topic: str, kind: str, value: bytes, why: str) -> None:
        self.topic = topic
        super().__init__(
            f"{topic}: a value does not read as the topic's schema, {kind.upper()}, says: {why}; it begins "
            f"{bytes(value[:40])!r}. To read values as bytes, set valueFormat=binary"
        )

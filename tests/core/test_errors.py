# SPDX-License-Identifier: Apache-2.0
"""Each error is told three ways: to clients, to administrators and to people."""

from __future__ import annotations

import weakref
from http import HTTPStatus

import pytest

from penstock.core.errors import (
    PenstockError,
    PersistenceFailed,
    StorageReadOnly,
    SubscriptionNotFound,
    TopicNotFound,
    WireCode,
    forget_frames,
)
from penstock.wire import pulsar_pb2


def _tree(kind: type[PenstockError]) -> list[type[PenstockError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _tree(child))]


def test_the_codes_are_the_protocols_own() -> None:
    ours = {code.name.replace("_", "").lower(): code.value for code in WireCode}
    theirs = {name.lower(): number for name, number in pulsar_pb2.ServerError.items()}
    assert ours == theirs


@pytest.mark.parametrize("kind", _tree(PenstockError))
def test_every_error_has_a_code_and_an_http_status_of_failure(kind: type[PenstockError]) -> None:
    assert isinstance(kind.wire_code, WireCode)
    assert HTTPStatus.BAD_REQUEST <= HTTPStatus(kind.http_status) < 600


# What clients retry, give up on or report depends on these two numbers: the facts' table of answers, as Apache Pulsar
# gives them.
ANSWERS = {
    (401, "AUTHENTICATION_ERROR"): "AuthenticationFailed",
    (403, "AUTHORIZATION_ERROR"): "AuthorizationFailed",
    (404, "METADATA_ERROR"): "NotFound",
    (404, "SUBSCRIPTION_NOT_FOUND"): "SubscriptionNotFound",
    (404, "TOPIC_NOT_FOUND"): "TopicNotFound TenantNotFound NamespaceNotFound",
    (404, "TRANSACTION_COORDINATOR_NOT_FOUND"): "CoordinatorNotFound",
    (404, "TRANSACTION_NOT_FOUND"): "TransactionNotFound",
    (405, "NOT_ALLOWED_ERROR"): "NotAllowed",
    (405, "TOPIC_TERMINATED_ERROR"): "TopicTerminated",
    (406, "METADATA_ERROR"): "NotAcceptable",
    (409, "CONSUMER_BUSY"): "ConsumerBusy",
    (409, "INCOMPATIBLE_SCHEMA"): "IncompatibleSchema",
    (409, "INVALID_TXN_STATUS"): "InvalidTransactionStatus",
    (409, "METADATA_ERROR"): "AlreadyExists ChangedMeanwhile NothingToDo",
    (409, "PRODUCER_BUSY"): "ProducerBusy",
    (409, "PRODUCER_FENCED"): "ProducerFenced",
    (409, "TRANSACTION_CONFLICT"): "TransactionConflict",
    (412, "CONSUMER_ASSIGN_ERROR"): "ConsumerAssignFailed",
    (412, "INVALID_TOPIC_NAME"): "InvalidTopicName",
    (412, "METADATA_ERROR"): "PreconditionFailed",
    (412, "PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR"): "BacklogQuotaHold",
    (412, "PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION"): "BacklogQuotaExceeded",
    (422, "INCOMPATIBLE_SCHEMA"): "InvalidSchema",
    (422, "METADATA_ERROR"): "Unprocessable",
    (429, "TOO_MANY_REQUESTS"): "TooManyRequests",
    (500, "METADATA_ERROR"): "MetadataFailed",
    (500, "PERSISTENCE_ERROR"): "PersistenceFailed",
    (500, "UNKNOWN_ERROR"): "PenstockError ConfigurationError DataDirectoryLocked",
    (501, "UNSUPPORTED_VERSION_ERROR"): "UnsupportedVersion",
    (503, "PERSISTENCE_ERROR"): "NoRoom StorageReadOnly",
    (503, "SERVICE_NOT_READY"): "ServiceNotReady PartitionsElsewhere ReadFailed ServedElsewhere",
}


def test_an_error_is_answered_as_clients_of_apache_pulsar_expect() -> None:
    expected = {name: answer for answer, names in ANSWERS.items() for name in names.split()}
    ours = [kind for kind in _tree(PenstockError) if kind.__module__ == PenstockError.__module__]
    assert {kind.__name__: (kind.http_status, kind.wire_code.name) for kind in ours} == expected


def test_an_error_names_what_it_is_about() -> None:
    assert "allowAutoTopicCreation" in str(TopicNotFound("persistent://public/default/t"))
    assert "audit" in str(SubscriptionNotFound("persistent://public/default/t", "audit"))


def test_clients_learn_of_a_read_only_log_as_of_any_failure_to_persist() -> None:
    error = StorageReadOnly("no space left on device")
    assert isinstance(error, PersistenceFailed)
    assert error.wire_code == WireCode.PERSISTENCE_ERROR
    assert "no space left on device" in str(error)


class _Answer:
    """Something large that frames refer to."""


def test_an_error_that_is_kept_keeps_nothing_of_what_was_read_when_it_happened() -> None:
    kept, read = [], []

    def parse(answer: _Answer) -> None:
        read.append(weakref.ref(answer))
        raise ValueError("not a number")

    def decode() -> None:
        answer = _Answer()
        try:
            parse(answer)
        except ValueError as error:
            raise PenstockError("an answer that cannot be read") from error

    try:
        decode()
    except PenstockError as error:
        forget_frames(error)
        kept.append(error)

    assert str(kept[0].__cause__) == "not a number"
    assert read[0]() is None

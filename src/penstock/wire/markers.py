# SPDX-License-Identifier: Apache-2.0
"""Markers of replicated subscriptions, as clusters send them to each other between the entries of a topic.

A cluster asks the others how far they are (`Request`), they answer (`Response`), and later it says up to where a
subscription is acknowledged (`Update`). Apache Pulsar has a fourth kind, in which a cluster stores what it was answered
for itself; it is never sent.

Where: `broker.replication` makes and reads them. Consumers never see one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from penstock.core.position import Position
from penstock.wire import metadata
from penstock.wire import pulsar_pb2 as pb
from penstock.wire.client.frames import payload_in
from penstock.wire.codec import MessageMetadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

    from penstock.core.checksum import Buffer

    M = TypeVar("M", bound=Message)

# An ordinary one has about 150 bytes; an update has the name of a subscription and a position for each cluster.
MARKER_BYTES_MAX: Final = 16 * 1024
_REQUEST, _RESPONSE, _UPDATE = 10, 11, 13
# As in Apache Pulsar. Nobody reads it.
_PRODUCER: Final = "pulsar.marker"
# A topic without entries ends at entry -1, which arrives as 2^64 - 1.
_SIGN: Final = 1 << 63
_MODULUS: Final = 1 << 64


class Request(NamedTuple):
    """The question how far a topic is; `cluster` asks."""

    snapshot_id: str
    cluster: str


class Response(NamedTuple):
    """The answer to `to`: the last entry of the topic in `cluster`. It follows all entries up to that one."""

    snapshot_id: str
    cluster: str
    position: Position
    to: str = ""


class Update(NamedTuple):
    """A subscription is acknowledged up to these positions, by cluster."""

    subscription: str
    positions: Mapping[str, Position]


Marker: TypeAlias = Request | Response | Update


def encode(marker: Marker, *, cluster: str, publish_time_ms: int) -> tuple[MessageMetadata, bytes]:
    """Return metadata and payload of a marker that this `cluster` sends."""
    about = MessageMetadata(
        producer_name=_PRODUCER, sequence_id=0, publish_time=publish_time_ms, replicated_from=cluster
    )
    body: Message
    match marker:
        case Request():
            about.marker_type = _REQUEST
            body = pb.ReplicatedSubscriptionsSnapshotRequest(
                snapshot_id=marker.snapshot_id, source_cluster=marker.cluster
            )
        case Response():
            about.marker_type = _RESPONSE
            about.replicate_to.append(marker.to)
            body = pb.ReplicatedSubscriptionsSnapshotResponse(
                snapshot_id=marker.snapshot_id, cluster=_placed(marker.cluster, marker.position)
            )
        case Update():
            about.marker_type = _UPDATE
            body = pb.ReplicatedSubscriptionsUpdate(
                subscription_name=marker.subscription,
                clusters=[_placed(name, position) for name, position in marker.positions.items()],
            )
    return about, body.SerializeToString()


def decode(entry: Buffer) -> tuple[str, Marker] | None:
    """Return which cluster a marker was replicated from, and the marker; None if it is of another kind.

    Raises:
        ProtocolError: it is too long, incomplete, or cannot be read.
    """
    if len(entry) > MARKER_BYTES_MAX:
        raise ProtocolError(f"a marker of {len(entry):,} bytes; up to {MARKER_BYTES_MAX:,} are read")
    said = metadata.decode(entry)
    payload = bytes(payload_in(entry))
    try:
        marker = _marker(said.marker_type, payload)
    except DecodeError as error:
        raise ProtocolError(f"unreadable marker of type {said.marker_type}: {error}") from None
    return None if marker is None else (said.replicated_from, marker)


def _marker(kind: int, payload: bytes) -> Marker | None:
    if kind == _REQUEST:
        request = _complete(pb.ReplicatedSubscriptionsSnapshotRequest.FromString(payload))
        return Request(_text(request.snapshot_id), _text(request.source_cluster))
    if kind == _RESPONSE:
        response = _complete(pb.ReplicatedSubscriptionsSnapshotResponse.FromString(payload))
        if not response.HasField("cluster"):
            raise ProtocolError("an answer without a position")
        place = response.cluster
        return Response(_text(response.snapshot_id), _text(place.cluster), _position(place.message_id))
    if kind == _UPDATE:
        update = _complete(pb.ReplicatedSubscriptionsUpdate.FromString(payload))
        positions = {_text(one.cluster): _position(one.message_id) for one in update.clusters}
        return Update(_text(update.subscription_name), positions)
    return None


def _complete(body: M) -> M:
    if not body.IsInitialized():
        raise ProtocolError(f"a {type(body).__name__} without a required field")
    return body


def _text(value: str) -> str:
    """Return a text; protobuf gives those that are not UTF-8 as bytes."""
    if not isinstance(value, str):
        raise ProtocolError("a marker with a text that is not UTF-8")
    return value


def _placed(cluster: str, position: Position) -> pb.ClusterMessageId:
    ledger_id, entry_id = position
    place = pb.MarkersMessageIdData(ledger_id=ledger_id % _MODULUS, entry_id=entry_id % _MODULUS)
    return pb.ClusterMessageId(cluster=cluster, message_id=place)


def _position(place: pb.MarkersMessageIdData) -> Position:
    return Position(_signed(place.ledger_id), _signed(place.entry_id))


def _signed(value: int) -> int:
    return value - _MODULUS if value >= _SIGN else value

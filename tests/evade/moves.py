# SPDX-License-Identifier: Apache-2.0
"""Everything that a player may try: each move is one value of one choice, and a play is one of each, by seed.

The choices are the exemptions that the broker knows, and what a client may do to look like somebody else. A new way
out is one more value here; the table in the documentation and all limiters have it then.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from penstock.core.checksum import SEAL_BYTES
from penstock.wire.client import entries
from penstock.wire.codec import CommandSend, MessageMetadata, SingleMessageMetadata

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

# -- names of topics: in this namespace, with this number

TOPICS: Final[dict[str, Callable[[str, int], str]]] = {
    "plain": lambda ns, n: f"persistent://{ns}/t{n}",
    "x__transaction_pending_ack": lambda ns, n: f"persistent://{ns}/t{n}__transaction_pending_ack",
    "x__transaction_pending_ack-partition-n": lambda ns, n: (
        f"persistent://{ns}/t__transaction_pending_ack-partition-{n}"
    ),
    "__change_events": lambda ns, n: f"persistent://{ns}/__change_events",
    "__transaction_buffer_snapshot": lambda ns, n: f"persistent://{ns}/__transaction_buffer_snapshot",
    "__transaction_buffer_snapshot_segments": lambda ns, n: f"persistent://{ns}/__transaction_buffer_snapshot_segments",
    "__transaction_buffer_snapshot_indexes": lambda ns, n: f"persistent://{ns}/__transaction_buffer_snapshot_indexes",
    "__transaction_log_n": lambda ns, n: f"persistent://{ns}/__transaction_log_{n}",
    "transaction_coordinator_assign": lambda ns, n: f"persistent://{ns}/transaction_coordinator_assign-partition-{n}",
    "usage-partition-n": lambda ns, n: f"persistent://{ns}/usage-partition-{n}",
    "x-partition-n": lambda ns, n: f"persistent://{ns}/x-partition-{n}",
    "x-partition-0n": lambda ns, n: f"persistent://{ns}/x-partition-0{n}",
    "non-persistent": lambda ns, n: f"non-persistent://{ns}/t{n}",
    "non-persistent __change_events": lambda ns, n: f"non-persistent://{ns}/__change_events",
    "x-RETRY": lambda ns, n: f"persistent://{ns}/t{n}-s-RETRY",
    "x-DLQ": lambda ns, n: f"persistent://{ns}/t{n}-s-DLQ",
    "unicode": lambda ns, n: f"persistent://{ns}/\u00e9\u202e\u4e16{n}",
    "x\u200b__change_events": lambda ns, n: f"persistent://{ns}/{n}\u200b__change_events",
    "spaces": lambda ns, n: f"persistent://{ns}/ t {n} ",
}
# Which topic a hand uses at a time: the hand's number, how often it has come, and the time in seconds.
SPREADS: Final[dict[str, Callable[[int, int, float], int]]] = {
    "one topic": lambda hand, visit, now: 0,
    "a topic for each hand": lambda hand, visit, now: hand,
    "a new topic each visit": lambda hand, visit, now: hand + 100 * visit,
    "a new topic each second": lambda hand, visit, now: int(now),
    "a new topic each cycle": lambda hand, visit, now: int(10 * now),
    "half on one, half on fifty": lambda hand, visit, now: 0 if hand % 2 == 0 else 1 + (hand + 7 * visit) % 50,
}
PRODUCERS: Final = (
    "", "mine", "pulsar.repl.east", "pulsar.repl.", "pulsar.dedup", "test-1700000000000-1", "\u00e9", "__compaction",
)  # fmt: skip
SUBSCRIPTIONS: Final = (
    "s", "__compaction", "pulsar.repl.east", "pulsar.dedup", "multiTopicsReader-1a2b", "reader-1a2b",
    "__transaction_pending_ack", "\u00e9 ", "a new one each visit",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Entries that a producer sends: how many messages each has, and frames of them by producer id."""

    messages: int
    entry_bytes: int
    frame_of: Callable[[int], bytes]


def _shape(messages: int, payload: bytes, *, said: int | None = None, **of_metadata: Any) -> Shape:  # noqa: ANN401
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **of_metadata)
    if messages > 1:
        metadata.num_messages_in_batch = messages
    entry = entries.entry(metadata, payload)

    def frame_of(producer_id: int) -> bytes:
        command = CommandSend(producer_id=producer_id, sequence_id=1)
        if messages > 1 and said is None:
            command.num_messages = messages
        elif said is not None:
            command.num_messages = said
        if "chunk_id" in of_metadata:
            command.is_chunk = True
        return entries.send(command, entry)

    return Shape(messages, len(entry), frame_of)


def _batch(messages: int) -> bytes:
    return entries.batch((SingleMessageMetadata(payload_size=0), b"x") for _ in range(messages))


_CHUNK: Final[dict[str, Any]] = {
    "uuid": "u",
    "num_chunks_from_msg": 1_000,
    "chunk_id": 0,
    "total_chunk_msg_size": 100_000,
}
SHAPES: Final[dict[str, Shape]] = {
    "tiny": _shape(1, b""),
    "small": _shape(1, bytes(100)),
    "1 KiB": _shape(1, bytes(1_024)),
    "32 KiB": _shape(1, bytes(32 * 1_024)),
    "batches of ten": _shape(10, _batch(10)),
    "batches of ten that say they are one": _shape(10, _batch(10), said=1),
    "batches of ten that say they are -9": _shape(10, _batch(10), said=-9),
    "chunks": _shape(1, bytes(100), **_CHUNK),
    "marked as replicated": _shape(1, bytes(100), replicated_from="east"),
    "marked as a transaction's": _shape(1, bytes(100), marker_type=21),
    "delayed": _shape(1, bytes(100), deliver_at_time=2_000_000_000_000),
}
SEAL: Final = SEAL_BYTES
# When a hand sends: pause in seconds until its next burst, by the time in seconds and chance.
TIMINGS: Final[dict[str, Callable[[float, Random], float]]] = {
    "as fast as it can": lambda now, chance: 0.01,
    "steadily": lambda now, chance: 0.05,
    "by chance": lambda now, chance: chance.random() * 0.2,
    "at each second": lambda now, chance: 1.0 - now % 1.0,
    "just before each second": lambda now, chance: (1.999 - now % 1.0) % 1.0 or 1.0,
    "at each twentieth of a second": lambda now, chance: 0.05 - now % 0.05,
}
# After how many SENDs or messages, or seconds, a hand connects anew.
VISITS: Final[dict[str, tuple[int, float]]] = {
    "stays": (0, 0.0),
    "after each": (1, 0.0),
    "after 7": (7, 0.0),
    "after 40": (40, 0.0),
    "each 100 ms": (0, 0.1),
    "each second": (0, 1.0),
}
LEAVES: Final = ("when all is answered", "at once", "by closing its half", "and leaves it open")
HANDS: Final = {"1": 1, "2": 2, "4": 4, "12": 12}
MEMBERS: Final = ("one producer each", "three producers each", "the same name in all hands")
ADDRESSES: Final = ("one address", "an address each")
NAMESPACES: Final = ("one namespace", "both namespaces of the group")
# What a tenant's administrator does meanwhile.
DEEDS: Final = ("nothing", "unloads the topics", "deletes the topics", "makes them partitioned topics")
KINDS: Final = {"Exclusive": 0, "Shared": 1, "Failover": 2, "Key_Shared": 3}
READERS: Final = ("durable", "non-durable", "non-durable from the first message", "reads compacted")
PERMITS: Final = {"1": 1, "20": 20, "1,000": 1_000, "100,000": 100_000}
READS: Final = (
    "acknowledges", "acknowledges nothing", "seeks to the first", "asks for redelivery", "peeks over REST",
    "examines over REST", "unsubscribes",
)  # fmt: skip


@dataclass(frozen=True)
class Moves:
    """One play."""

    topics: str = "plain"
    spread: str = "one topic"
    namespaces: str = "one namespace"
    hands: str = "1"
    addresses: str = "one address"
    visits: str = "stays"
    leaves: str = "when all is answered"
    timing: str = "as fast as it can"
    deeds: str = "nothing"
    # of producers
    producer: str = ""
    members: str = "one producer each"
    shape: str = "small"
    # of consumers
    subscription: str = "s"
    kind: str = "Shared"
    reader: str = "durable"
    permits: str = "1,000"
    reads: str = "acknowledges"

    def __str__(self) -> str:
        """What differs from the plainest play."""
        plain = Moves()
        told = [f"{one.name}={getattr(self, one.name)!r}" for one in fields(self)]
        kept = [
            text
            for text, one in zip(told, fields(self), strict=True)
            if getattr(self, one.name) != getattr(plain, one.name)
        ]
        return ", ".join(kept) or "plainly"


CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "topics": tuple(TOPICS),
    "spread": tuple(SPREADS),
    "namespaces": NAMESPACES,
    "hands": tuple(HANDS),
    "addresses": ADDRESSES,
    "visits": tuple(VISITS),
    "leaves": LEAVES,
    "timing": tuple(TIMINGS),
    "deeds": DEEDS,
    "producer": PRODUCERS,
    "members": MEMBERS,
    "shape": tuple(SHAPES),
    "subscription": SUBSCRIPTIONS,
    "kind": tuple(KINDS),
    "reader": READERS,
    "permits": tuple(PERMITS),
    "reads": READS,
}
# Half of all choices are plain, so that one way out is not hidden behind a refusal of another move.
PLAIN_PART: Final = 0.5


def chosen(chance: Random, of: tuple[str, ...]) -> Moves:
    """A play of these choices."""
    values = {choice: chance.choice(CHOICES[choice]) for choice in of if chance.random() >= PLAIN_PART}
    return Moves(**values)

# SPDX-License-Identifier: Apache-2.0
"""The window of replicators: never more than its part, nobody is forgotten, large entries pass."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.core.units import MIB
from penstock.governance.budget import Row
from penstock.governance.replication_window import PART, TOPIC_BYTES_MAX, ReplicationWindow

LIMIT = 8 * MIB


@dataclass(eq=False)
class Topic:
    """A replicator with entries of one size to send."""

    out_bytes: int = 0
    wanted_bytes: int = 1
    bytes_out: int = 0


class ReplicatorsSend(RuleBasedStateMachine):
    """Topics send and receive receipts in any order; each that has no room waits, and is woken in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.row = Row("outbound", LIMIT)
        self.window: ReplicationWindow[Topic] = ReplicationWindow(self.row)
        self.topics = [Topic() for _ in range(4)]
        self.waiting: list[Topic] = []
        self.largest = 0

    @rule(which=st.integers(0, 3), nbytes=st.integers(1, 6 * MIB))
    def send(self, which: int, nbytes: int) -> None:
        topic = self.topics[which]
        if topic in self.waiting:
            return
        topic.wanted_bytes = nbytes
        if self.window.room_bytes(topic) >= nbytes:
            self.take(topic)
        else:
            self.window.wait(topic)
            self.waiting.append(topic)

    def take(self, topic: Topic) -> None:
        self.window.charge(topic.wanted_bytes)
        topic.out_bytes += topic.wanted_bytes
        self.largest = max(self.largest, topic.wanted_bytes)
        topic.wanted_bytes = 1

    @rule(which=st.integers(0, 3))
    def arrive(self, which: int) -> None:
        topic = self.topics[which]
        self.window.release(topic.out_bytes)
        topic.out_bytes = 0
        self.wake()

    def wake(self) -> None:
        while granted := self.window.grants():
            for topic in granted:
                self.waiting.remove(topic)
                if self.window.room_bytes(topic) >= topic.wanted_bytes:
                    self.take(topic)
                else:  # Those before it have taken what was free.
                    self.window.wait(topic)
                    self.waiting.append(topic)

    @invariant()
    def it_is_never_more_than_a_part_but_for_one_entry(self) -> None:
        used = sum(topic.out_bytes for topic in self.topics)
        assert self.window.used_bytes == self.row.used_bytes == used
        assert used <= max(LIMIT // PART, self.largest)

    @invariant()
    def nobody_waits_while_nothing_is_on_its_way(self) -> None:
        assert self.window.used_bytes or not self.waiting


TestReplicatorsSend = ReplicatorsSend.TestCase


def test_a_topic_alone_has_as_much_as_one_may_have() -> None:
    window: ReplicationWindow[Topic] = ReplicationWindow(Row("outbound", 64 * MIB))
    assert window.room_bytes(Topic()) == TOPIC_BYTES_MAX


def test_others_share_what_is_free_while_one_waits_and_get_nothing_if_it_is_too_little_for_the_first() -> None:
    window: ReplicationWindow[Topic] = ReplicationWindow(Row("outbound", LIMIT))
    first, other = Topic(wanted_bytes=MIB // 2), Topic()
    window.charge(MIB)
    window.wait(first)
    assert window.room_bytes(first) == MIB
    assert window.room_bytes(other) == MIB // 2
    first.wanted_bytes = 2 * MIB
    assert window.room_bytes(other) == 0
    window.forget(first)
    assert window.room_bytes(other) == MIB

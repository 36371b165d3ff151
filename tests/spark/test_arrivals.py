# SPDX-License-Identifier: Apache-2.0
"""What a range yields does not depend on the order in which frames arrive, and it yields all that the broker has.

No real broker chooses the rare orders often: `ScriptedBroker` makes another order for each seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.spark.client import short_ranges
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.errors import DataLost
from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.spark.client.reader import ReadOptions, read
from penstock.spark.client.short_ranges import read_many
from penstock.spark.offsets import TopicRange
from penstock.spark.options import parse_endpoint
from tests.spark.scripted_broker import ScriptedBroker

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.spark.client.messages import Messages

TOPICS = [f"persistent://public/default/t-{number}" for number in range(5)]
ENTRIES, ROWS = 12, 5
STRICT, LENIENT = ReadOptions(), ReadOptions(fail_on_data_loss=False)


def filled(seed: int) -> ScriptedBroker:
    """A broker with five topics of twelve entries of five messages each."""
    broker = ScriptedBroker(seed)
    for topic in TOPICS:
        broker.add(topic, [[_value(topic, entry, row) for row in range(ROWS)] for entry in range(ENTRIES)])
    return broker


def _value(topic: str, entry: int, row: int) -> bytes:
    return f"{topic[-1]}/{entry}/{row}".encode()


def whole(topic: str, first: int = 0, stop: int = ENTRIES) -> list[bytes]:
    return [_value(topic, entry, row) for entry in range(first, stop) for row in range(ROWS)]


def values(found: Messages) -> list[bytes]:
    pairs = zip(found.value_starts.tolist(), found.value_stops.tolist(), strict=True)
    return [found.data[start:stop].tobytes() for start, stop in pairs]


def opened(broker: ScriptedBroker) -> Cluster:
    return Cluster(parse_endpoint({"service.url": broker.url}))


def read_together(
    broker: ScriptedBroker, ranges: Sequence[TopicRange], options: ReadOptions = STRICT
) -> dict[str, list[bytes]]:
    taken: dict[str, list[bytes]] = {one.topic: [] for one in ranges}
    with opened(broker) as cluster:
        for one, value in read_many(cluster, ranges, options, lambda one, found: [(one, v) for v in values(found)]):
            taken[one.topic].append(value)
    return taken


def read_alone(
    broker: ScriptedBroker, topic: str, start: MessageId, end: MessageId, options: ReadOptions = STRICT
) -> list[bytes]:
    with opened(broker) as cluster:
        return joined(read(cluster, topic, start, end, options))


def joined(runs: Iterable[Messages]) -> list[bytes]:
    return [value for found in runs for value in values(found)]


@pytest.mark.parametrize("seed", range(30))
def test_frames_that_arrive_while_other_consumers_are_being_opened_are_not_lost(seed: int) -> None:
    ranges = [TopicRange(topic, EARLIEST, MessageId(1, ENTRIES)) for topic in TOPICS]
    with filled(seed) as broker:
        assert read_together(broker, ranges) == {topic: whole(topic) for topic in TOPICS}


@pytest.mark.parametrize("held_bytes_max", [1, 5_000, 64 << 20])
@pytest.mark.parametrize("seed", range(6))
def test_rows_come_range_by_range_whatever_arrives_first(
    seed: int, held_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_ranges, "HELD_BYTES_MAX", held_bytes_max)
    ranges = [TopicRange(topic, EARLIEST, MessageId(1, ENTRIES)) for topic in reversed(TOPICS)]
    with filled(seed) as broker, opened(broker) as cluster:
        found = list(read_many(cluster, ranges, STRICT, lambda _, found: values(found)))
    assert found == [value for topic in reversed(TOPICS) for value in whole(topic)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("options", [STRICT, LENIENT], ids=["strict", "lenient"])
def test_an_entry_that_did_not_come_is_read_again(seed: int, options: ReadOptions) -> None:
    lost = {TOPICS[0]: {(1, 0)}, TOPICS[1]: {(1, 0), (1, 1)}, TOPICS[2]: {(1, 5)}, TOPICS[3]: {(1, ENTRIES - 1)}}
    ranges = [TopicRange(topic, EARLIEST, MessageId(1, ENTRIES)) for topic in TOPICS]
    with filled(seed) as broker:
        for topic in TOPICS:
            broker.add(topic, [[b"behind the range"]], first_entry_id=ENTRIES)
        broker.hidden = lost
        assert read_together(broker, ranges, options) == {topic: whole(topic) for topic in TOPICS}
        assert not any(lost.values()), "each of them was passed over once"


@pytest.mark.parametrize("start", [EARLIEST, MessageId(1, 0), MessageId(1, 3)], ids=str)
@pytest.mark.parametrize("missing", [3, 7])
def test_a_range_that_is_read_alone_reads_again_what_did_not_come(start: MessageId, missing: int) -> None:
    topic = TOPICS[0]
    with filled(1) as broker:
        broker.hidden = {topic: {(1, max(0, start.entry_id)), (1, missing)}}
        found = read_alone(broker, topic, start, MessageId(1, ENTRIES))
    assert found == whole(topic, first=max(0, start.entry_id))


def test_ids_that_no_message_has_are_no_loss() -> None:
    """Markers of transactions have ids, and no reader gets them; a ledger may end anywhere."""
    topic = TOPICS[0]
    with ScriptedBroker(1) as broker:
        broker.add(topic, [[b"a"], [b"b"]])
        broker.add(topic, [[b"c"]], first_entry_id=3)
        broker.add(topic, [[b"d"]], ledger_id=2)
        assert read_alone(broker, topic, MessageId(1, 0), MessageId(2, 1)) == [b"a", b"b", b"c", b"d"]


def test_what_was_removed_is_a_loss_or_is_said(caplog: pytest.LogCaptureFixture) -> None:
    topic = TOPICS[0]
    with ScriptedBroker(1) as broker:
        broker.add(topic, [[b"c"], [b"d"]], first_entry_id=5)
        with pytest.raises(DataLost, match="1:2"):
            read_alone(broker, topic, MessageId(1, 2), MessageId(1, 7))
        assert read_alone(broker, topic, MessageId(1, 2), MessageId(1, 7), LENIENT) == [b"c", b"d"]
    assert "1:2" in caplog.text
    assert "failOnDataLoss=false" in caplog.text

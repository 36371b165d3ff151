# SPDX-License-Identifier: Apache-2.0
"""Producer access modes: the decision by itself, as properties, and as clients see it on the wire."""

from __future__ import annotations

import uuid
from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.publishing.checks import AccessMode, Hold, Join, Wait, WriteAccess, Writers, decide
from penstock.core.errors import PenstockError, ProducerBusy, ProducerFenced, WireCode
from penstock.testing.client import RawClient, Refused, Type, entry, frame, send

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing.process import BrokerProcess

SHARED, EXCLUSIVE, WAIT, FENCING = AccessMode

# ------------------------------------------------------------------------------------------------------- the decision

epochs = st.none() | st.integers(0, 5)
shown_epochs = epochs | st.sampled_from((2**63 - 1, 2**63, 2**64 - 1))
nobody = Writers(connected=0, exclusive=None, waiting=0, epoch=None)


@st.composite
def writers(draw: st.DrawFn) -> Writers:
    """What a newcomer can find: a holder that is connected or about to be, sharers, a queue behind either."""
    exclusive = draw(st.sampled_from((None, "a")))
    connected = draw(st.integers(0, 1)) if exclusive else draw(st.integers(0, 3))
    waiting = draw(st.integers(0, 2)) if exclusive or connected else 0
    return Writers(connected, exclusive, waiting, draw(epochs))


@given(mode=st.sampled_from(AccessMode), shown=epochs, seen=writers())
def test_nobody_joins_or_takes_a_topic_that_is_held_unless_it_fences(
    mode: AccessMode, shown: int | None, seen: Writers
) -> None:
    try:
        verdict = decide(mode, shown, seen)
    except PenstockError:
        return
    if seen.exclusive is not None:
        assert isinstance(verdict, Wait) or (isinstance(verdict, Hold) and verdict.fence)


@given(mode=st.sampled_from(AccessMode), shown=shown_epochs, seen=writers())
def test_an_exclusive_grant_repeats_the_current_epoch_or_is_one_above_whatever_is_shown(
    mode: AccessMode, shown: int | None, seen: Writers
) -> None:
    try:
        verdict = decide(mode, shown, seen)
    except PenstockError:
        return
    if isinstance(verdict, Hold):
        current = -1 if seen.epoch is None else seen.epoch
        assert verdict.epoch == (current if shown == current else current + 1)


@given(mode=st.sampled_from(AccessMode), shown=epochs, seen=writers())
def test_only_sharers_are_busy_and_only_the_others_are_fenced(
    mode: AccessMode, shown: int | None, seen: Writers
) -> None:
    try:
        decide(mode, shown, seen)
    except ProducerBusy:
        assert mode is SHARED
    except ProducerFenced:
        assert mode is not SHARED


@given(shown=epochs, seen=writers())
def test_fencing_is_refused_for_nothing_but_an_old_epoch(shown: int | None, seen: Writers) -> None:
    old = shown is not None and seen.epoch is not None and shown < seen.epoch
    if old:
        with pytest.raises(ProducerFenced):
            decide(FENCING, shown, seen)
    else:
        assert isinstance(decide(FENCING, shown, seen), Hold)


@given(shown=epochs, seen=writers())
def test_waiting_is_refused_for_nothing_but_an_old_epoch(shown: int | None, seen: Writers) -> None:
    try:
        verdict = decide(WAIT, shown, seen)
    except ProducerFenced:
        assert shown is not None
        assert seen.epoch is not None
        assert shown < seen.epoch
    else:
        taken = seen.connected or seen.exclusive or seen.waiting
        assert isinstance(verdict, Wait if taken else Hold)


@pytest.mark.parametrize("stored", [2**62, 2**63 - 1, 2**64 - 1, 2**64])
def test_a_stored_epoch_that_no_topic_can_have_reached_counts_for_nothing(stored: int) -> None:
    assert WriteAccess(stored).seen(0).epoch is None
    assert WriteAccess(7).seen(0).epoch == 7


def test_sharers_join_each_other_and_hear_of_the_last_epoch() -> None:
    assert decide(SHARED, None, nobody) == Join(None)
    assert decide(SHARED, None, nobody._replace(connected=7, epoch=3)) == Join(3)


# -------------------------------------------------------------------------------------------------------- on the wire


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.port) as client:
        yield client


@pytest.fixture
def other(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.port) as client:
        yield client


def produce(
    client: RawClient, topic: str, mode: AccessMode, *, producer_id: int = 0, **fields: object
) -> tuple[bool, int]:
    """Ask for a producer; whether it is ready, and the epoch."""
    answer = client.request(
        Type.PRODUCER,
        Type.PRODUCER_SUCCESS,
        topic=topic,
        producer_id=producer_id,
        producer_access_mode=int(mode),
        **fields,
    )
    return answer.producer_ready, answer.topic_epoch if answer.HasField("topic_epoch") else -1


def promoted(client: RawClient) -> int:
    """The epoch that comes with the second answer."""
    answer = client.next(Type.PRODUCER_SUCCESS).command.producer_success
    assert answer.producer_ready
    epoch: int = answer.topic_epoch
    return epoch


def close(client: RawClient, producer_id: int = 0) -> None:
    client.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=producer_id)


def refusal(client: RawClient, topic: str, mode: AccessMode, **fields: object) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        produce(client, topic, mode, producer_id=9, **fields)
    return caught.value.code, str(caught.value)


def test_an_exclusive_producer_keeps_everybody_else_out(client: RawClient, other: RawClient, topic: str) -> None:
    assert produce(client, topic, EXCLUSIVE, producer_name="first") == (True, 0)
    code, text = refusal(other, topic, SHARED)
    assert (code, "existing exclusive producer: first" in text) == (WireCode.PRODUCER_BUSY, True)
    assert refusal(other, topic, EXCLUSIVE)[0] == WireCode.PRODUCER_FENCED
    close(client)
    assert produce(other, topic, EXCLUSIVE) == (True, 1)


def test_an_exclusive_producer_is_refused_beside_sharers(client: RawClient, other: RawClient, topic: str) -> None:
    assert produce(client, topic, SHARED) == (True, -1)
    code, text = refusal(other, topic, EXCLUSIVE)
    assert (code, "existing shared producers" in text) == (WireCode.PRODUCER_FENCED, True)


def test_who_waits_is_told_so_at_once_and_again_when_it_is_its_turn(
    client: RawClient, other: RawClient, topic: str
) -> None:
    assert produce(client, topic, EXCLUSIVE) == (True, 0)
    assert produce(other, topic, WAIT) == (False, -1)
    client.publish([b"before"])
    close(client)
    assert promoted(other) == 1
    assert other.publish([b"after"]) == [1]


def test_who_waits_for_sharers_waits_for_the_last_of_them_and_lets_no_more_in(
    client: RawClient, other: RawClient, topic: str
) -> None:
    produce(client, topic, SHARED, producer_id=0)
    produce(client, topic, SHARED, producer_id=1)
    assert produce(other, topic, WAIT) == (False, -1)
    assert refusal(client, topic, SHARED)[0] == WireCode.PRODUCER_BUSY
    close(client, 0)
    other.write(frame(Type.PING))
    assert other.read().command.type == Type.PONG  # and not its turn
    close(client, 1)
    assert promoted(other) == 0


def test_those_who_wait_have_their_turn_in_order(client: RawClient, topic: str) -> None:
    produce(client, topic, EXCLUSIVE, producer_id=0, producer_name="p0")
    for producer_id in (1, 2, 3):
        assert produce(client, topic, WAIT, producer_id=producer_id, producer_name=f"p{producer_id}") == (False, -1)
    for producer_id in (0, 1, 2):
        close(client, producer_id)
        answer = client.next(Type.PRODUCER_SUCCESS).command.producer_success
        assert (answer.producer_name, answer.topic_epoch) == (f"p{producer_id + 1}", producer_id + 1)


def test_who_closes_or_vanishes_leaves_the_queue(broker: BrokerProcess, client: RawClient, topic: str) -> None:
    produce(client, topic, EXCLUSIVE, producer_id=0)
    assert produce(client, topic, WAIT, producer_id=1) == (False, -1)
    close(client, 1)
    with RawClient(broker.port) as vanishing:
        assert produce(vanishing, topic, WAIT) == (False, -1)
    assert produce(client, topic, WAIT, producer_id=2, producer_name="last") == (False, -1)
    close(client, 0)
    assert client.next(Type.PRODUCER_SUCCESS).command.producer_success.producer_name == "last"


def test_an_id_that_waits_cannot_be_used_twice_and_can_after_its_close(client: RawClient, topic: str) -> None:
    produce(client, topic, EXCLUSIVE, producer_id=0)
    assert produce(client, topic, WAIT, producer_id=1) == (False, -1)
    with pytest.raises(Refused, match="still being created"):
        produce(client, topic, WAIT, producer_id=1)
    close(client, 1)
    assert produce(client, topic, WAIT, producer_id=1) == (False, -1)


def test_fencing_closes_who_is_there_and_fails_who_waits(client: RawClient, other: RawClient, topic: str) -> None:
    assert produce(client, topic, EXCLUSIVE, producer_id=0) == (True, 0)
    assert produce(client, topic, WAIT, producer_id=1) == (False, -1)
    assert produce(other, topic, FENCING) == (True, 1)
    assert client.next(Type.CLOSE_PRODUCER).command.close_producer.producer_id == 0
    assert int(client.next(Type.ERROR).command.error.error) == WireCode.PRODUCER_FENCED
    # What the fenced one still sends is swallowed; coming back with the old epoch is refused for good.
    client.write(send(0, 5, entry(b"too late", sequence_id=5)))
    assert refusal(client, topic, EXCLUSIVE, topic_epoch=0)[0] == WireCode.PRODUCER_FENCED
    assert other.publish([b"x"]) == [0]


def test_who_was_fenced_out_does_not_fence_its_successor_out(client: RawClient, other: RawClient, topic: str) -> None:
    assert produce(client, topic, FENCING) == (True, 0)
    assert produce(other, topic, FENCING) == (True, 1)
    assert client.next(Type.CLOSE_PRODUCER)
    code, text = refusal(client, topic, FENCING, topic_epoch=0)
    assert (code, "Topic epoch has already moved" in text) == (WireCode.PRODUCER_FENCED, True)
    assert other.publish([b"still here"]) == [0]


def test_sharers_are_fenced_out_too(client: RawClient, other: RawClient, topic: str) -> None:
    produce(client, topic, SHARED, producer_id=0)
    produce(client, topic, SHARED, producer_id=1)
    assert produce(other, topic, FENCING) == (True, 0)
    closed = {client.next(Type.CLOSE_PRODUCER).command.close_producer.producer_id for _ in range(2)}
    assert closed == {0, 1}


def test_who_reconnects_with_its_epoch_holds_the_topic_again(broker: BrokerProcess, topic: str) -> None:
    with RawClient(broker.port) as client:
        assert produce(client, topic, EXCLUSIVE, producer_name="p") == (True, 0)
    with RawClient(broker.port) as client:
        assert produce(client, topic, EXCLUSIVE, producer_name="p", topic_epoch=0, epoch=1) == (True, 0)


def test_an_epoch_that_the_topic_never_granted_keeps_nobody_out_and_is_not_stored(
    own_broker: BrokerProcess, topic: str
) -> None:
    tried = list(product((EXCLUSIVE, WAIT, FENCING), (1, 2**63 - 1, 2**63, 2**64 - 1)))
    with RawClient(own_broker.port) as client:
        for number, (mode, shown) in enumerate(tried):
            granted = produce(client, f"{topic}-{number}", mode, producer_id=number, topic_epoch=shown)
            assert granted == (True, 0), (mode, shown)
    own_broker.kill()
    own_broker.start()
    for epoch in (1, 2):
        with RawClient(own_broker.port) as client:
            for number, (mode, shown) in enumerate(tried):
                granted = produce(client, f"{topic}-{number}", mode, producer_id=number)
                assert granted == (True, epoch), (mode, shown)


def test_epochs_survive_a_kill(own_broker: BrokerProcess, topic: str) -> None:
    with RawClient(own_broker.port) as client:
        for epoch in (0, 1, 2):
            assert produce(client, topic, EXCLUSIVE) == (True, epoch)
            close(client)
    own_broker.kill()
    own_broker.start()
    with RawClient(own_broker.port) as client:
        assert refusal(client, topic, EXCLUSIVE, topic_epoch=1)[0] == WireCode.PRODUCER_FENCED
        assert produce(client, topic, EXCLUSIVE) == (True, 3)


def test_a_non_persistent_topic_is_held_like_any_other(client: RawClient, other: RawClient, topic: str) -> None:
    topic = topic.replace("persistent://", "non-persistent://")
    assert produce(client, topic, EXCLUSIVE) == (True, 0)
    assert refusal(other, topic, SHARED)[0] == WireCode.PRODUCER_BUSY
    assert produce(other, topic, WAIT) == (False, -1)
    close(client)
    assert promoted(other) == 1

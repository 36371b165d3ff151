# SPDX-License-Identifier: Apache-2.0
"""Brokers that send the client on, stand behind a proxy, are not ready yet, or give a topic away in the middle."""

from __future__ import annotations

import itertools
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from penstock.core.clock import ManualClock
from penstock.core.errors import WireCode
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.errors import (
    BadAnswer,
    BrokerUnreachable,
    ConnectionLost,
    RedirectedInCircles,
    Refused,
    RequestTimedOut,
)
from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.spark.client.producer import Producer
from penstock.spark.client.subscription import Subscription, earliest_id
from penstock.wire import codec
from penstock.wire.codec import BaseCommand
from tests.spark.fronts import (
    Front,
    Link,
    error,
    found,
    moved_consumer,
    moved_producer,
    redirect,
)
from tests.spark.numbered import end_of, endpoint_of, numbers_in, reading, send, write
from tests.spark.topics import ask, path_of, stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.testing.process import BrokerProcess

COUNT = 2_000
# Limit of operations that cannot succeed. What they are told must come within it, also where the machine is busy.
PATIENT_S = 2


@pytest.fixture
def first(broker: BrokerProcess) -> Iterator[Front]:
    """The broker that clients know."""
    with Front(broker.port) as front:
        yield front


@pytest.fixture
def second(broker: BrokerProcess) -> Iterator[Front]:
    """Another one of the same cluster."""
    with Front(broker.port) as front:
        yield front


@pytest.fixture
def cluster(first: Front) -> Iterator[Cluster]:
    """As a task has it, which knows the first broker only."""
    with Cluster(endpoint_of(first.url)) as cluster:
        yield cluster


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    """A topic that has something."""
    with Cluster(endpoint_of(broker.url)) as cluster:
        write(cluster, topic, range(COUNT))
    return topic


def free_url() -> str:
    """Where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"pulsar://127.0.0.1:{taken.getsockname()[1]}"


# -- redirects -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("authoritative", [True, False])
def test_a_redirect_is_followed_with_the_word_that_came_with_it(
    first: Front, second: Front, cluster: Cluster, topic: str, *, authoritative: bool
) -> None:
    first.on_lookup = lambda body: redirect(body, second.url, authoritative=authoritative)
    write(cluster, topic, range(100))
    assert numbers_in(cluster, topic) == list(range(100))
    assert {said for _, said in first.lookups()} == {False}
    assert set(second.lookups()) == {(topic, authoritative)}
    assert not first.count(BaseCommand.SEND) + first.count(BaseCommand.SUBSCRIBE)
    assert second.count(BaseCommand.SEND) == 100


def test_whoever_is_asked_after_a_redirect_may_name_a_third_broker(
    broker: BrokerProcess, first: Front, second: Front, cluster: Cluster, filled: str
) -> None:
    first.on_lookup = lambda body: redirect(body, second.url)
    second.on_lookup = lambda body: found(body, broker.url)
    assert numbers_in(cluster, filled) == list(range(COUNT))
    assert not second.count(BaseCommand.SUBSCRIBE)


def test_a_broker_may_send_a_lookup_back_to_where_it_came_from(
    first: Front, second: Front, cluster: Cluster, filled: str
) -> None:
    # The leader of a cluster decides who serves a topic, and that may be the broker that did not know.
    first.on_lookup = lambda body: (
        found(body, first.url) if body.authoritative else redirect(body, second.url, authoritative=True)
    )
    second.on_lookup = lambda body: redirect(body, first.url, authoritative=True)
    assert numbers_in(cluster, filled) == list(range(COUNT))


@pytest.mark.parametrize("authoritative", [True, False])
def test_brokers_that_point_at_each_other_are_named_after_a_few_hops(
    first: Front, second: Front, cluster: Cluster, topic: str, *, authoritative: bool
) -> None:
    first.on_lookup = lambda body: redirect(body, second.url, authoritative=authoritative)
    second.on_lookup = lambda body: redirect(body, first.url, authoritative=authoritative)
    with pytest.raises(RedirectedInCircles) as caught:
        cluster.open_once(topic)
    said = str(caught.value)
    assert topic in said
    assert f"{first.url} → {second.url} → {first.url}" in said
    assert len(first.lookups()) + len(second.lookups()) <= 3


def test_however_many_brokers_there_are_a_lookup_ends(first: Front, cluster: Cluster, topic: str) -> None:
    # One broker under many names: in a host, large letters are as good as small ones.
    spellings = itertools.product(*({letter, letter.upper()} for letter in "localhost"))
    urls = (first.url.replace("127.0.0.1", "".join(letters)) for letters in spellings)
    first.on_lookup = lambda body: redirect(body, next(urls))
    with pytest.raises(RedirectedInCircles):
        cluster.open_once(topic)
    assert len(first.lookups()) == 21


def test_a_redirect_to_a_broker_that_is_gone_is_asked_for_again(first: Front, cluster: Cluster, filled: str) -> None:
    answers = iter([free_url()])
    first.on_lookup = lambda body: redirect(body, url) if (url := next(answers, None)) else found(body, first.url)
    assert numbers_in(cluster, filled) == list(range(COUNT))


def test_a_broker_that_is_never_there_is_named_where_the_lookup_sent_us(first: Front, topic: str) -> None:
    gone = free_url()
    first.on_lookup = lambda body: found(body, gone)
    with (
        # Within this time it is asked where to go, also where the machine has other things to do.
        Cluster(endpoint_of(first.url, operation_timeout_s=2.0)) as cluster,
        pytest.raises(BrokerUnreachable, match=gone),
    ):
        write(cluster, topic, range(1))


def test_an_answer_without_an_address_is_told_with_the_settings_that_give_it(first: Front, topic: str) -> None:
    first.on_lookup = lambda body: found(body, "")
    with (
        Cluster(endpoint_of(first.url, operation_timeout_s=PATIENT_S)) as cluster,
        pytest.raises(BadAnswer, match=f"{first.url} .* plain address .* brokerServicePort and advertisedAddress"),
    ):
        write(cluster, topic, range(1))


# -- proxies ---------------------------------------------------------------------------------------------------------


def test_behind_a_proxy_brokers_are_reached_through_it(first: Front, cluster: Cluster, topic: str) -> None:
    # Only the proxy knows this host.
    first.on_lookup = lambda body: found(body, "pulsar://broker-7.invalid:6650", proxied=True)
    write(cluster, topic, range(100))
    assert numbers_in(cluster, topic) == list(range(100))
    # The lookups' own connection names nobody; that of the producer, which a reader has next, and of another reader do.
    assert first.passed_on == ["broker-7.invalid:6650"] * 2
    assert first.count(BaseCommand.CONNECT) == 3


def test_behind_a_proxy_that_sends_us_to_another_one_brokers_are_reached_through_that(
    first: Front, second: Front, cluster: Cluster, filled: str
) -> None:
    first.on_lookup = lambda body: redirect(body, second.url)
    second.on_lookup = lambda body: found(body, "pulsar://broker-7.invalid:6650", proxied=True)
    assert numbers_in(cluster, filled) == list(range(COUNT))
    assert not first.passed_on
    assert set(second.passed_on) == {"broker-7.invalid:6650"}


# -- not ready yet ---------------------------------------------------------------------------------------------------


def refusing(kind: int, times: int) -> Callable[[Link, BaseCommand], bool]:
    """A hook: the first commands of this type are told that the broker is not ready."""
    left = itertools.count(times, -1)

    def hook(link: Link, command: BaseCommand) -> bool:
        if command.type != kind or next(left) <= 0:
            return True
        body = command.producer if kind == BaseCommand.PRODUCER else command.subscribe
        return link.instead(error(body.request_id, WireCode.SERVICE_NOT_READY, "the topic moves"))

    return hook


@pytest.mark.parametrize("kind", [BaseCommand.SUBSCRIBE, BaseCommand.PRODUCER], ids=["consumer", "producer"])
def test_a_broker_that_is_not_ready_for_a_client_yet_is_asked_again_after_another_lookup(
    first: Front, cluster: Cluster, topic: str, kind: BaseCommand.Type
) -> None:
    first.to_broker = refusing(kind, 2)
    write(cluster, topic, range(10))
    assert numbers_in(cluster, topic) == list(range(10))
    # One producer, and two consumers: one looks for the end.
    assert first.count(kind) == 2 + (1 if kind == BaseCommand.PRODUCER else 2)
    assert len(first.lookups()) == 5


def test_a_lookup_that_is_not_answered_yet_is_asked_again(first: Front, cluster: Cluster, filled: str) -> None:
    left = itertools.count(2, -1)
    first.on_lookup = lambda body: (
        codec.lookup_failed(body.request_id, WireCode.SERVICE_NOT_READY, "no broker is chosen yet")
        if next(left) > 0
        else found(body, first.url)
    )
    assert numbers_in(cluster, filled) == list(range(COUNT))
    assert len(first.lookups()) == 4


def test_a_broker_that_never_gets_ready_is_told_in_its_own_words(first: Front, topic: str) -> None:
    first.on_lookup = lambda body: codec.lookup_failed(body.request_id, WireCode.SERVICE_NOT_READY, "still starting")
    with (
        Cluster(endpoint_of(first.url, operation_timeout_s=PATIENT_S)) as cluster,
        pytest.raises(Refused, match="still starting; try again once the broker has started") as caught,
    ):
        write(cluster, topic, range(1))
    assert caught.value.code is WireCode.SERVICE_NOT_READY
    assert len(first.lookups()) > 1


def test_while_one_broker_of_the_service_url_is_not_ready_the_next_is_asked(
    first: Front, second: Front, filled: str
) -> None:
    first.on_lookup = lambda body: codec.lookup_failed(body.request_id, WireCode.SERVICE_NOT_READY, "still starting")
    both = f"{first.url},{second.url.removeprefix('pulsar://')}"
    with Cluster(endpoint_of(both)) as cluster:
        assert numbers_in(cluster, filled) == list(range(COUNT))
    assert len(first.lookups()) == 1


def test_a_broker_of_the_service_url_that_is_away_is_passed_over(first: Front, filled: str) -> None:
    both = f"{free_url()},{first.url.removeprefix('pulsar://')}"
    with Cluster(endpoint_of(both)) as cluster:
        assert numbers_in(cluster, filled) == list(range(COUNT))


# -- topics that move ------------------------------------------------------------------------------------------------


def test_a_reading_goes_on_at_the_broker_that_a_topic_moved_to(
    first: Front, second: Front, cluster: Cluster, filled: str
) -> None:
    end = end_of(cluster, filled)
    seen = itertools.count(1)
    moved = threading.Event()

    def give_away(link: Link, command: BaseCommand) -> bool:
        if command.type != BaseCommand.MESSAGE or (not moved.is_set() and next(seen) <= COUNT // 2):
            return True
        if not moved.is_set():
            first.on_lookup = lambda body: redirect(body, second.url, authoritative=True)
            link.tell(moved_consumer(second.url))
            moved.set()
        return False

    first.to_client = give_away
    assert [number for numbers in reading(cluster, filled, end) for number in numbers] == list(range(COUNT))
    assert first.answered.count(BaseCommand.MESSAGE) == COUNT // 2
    assert second.answered.count(BaseCommand.MESSAGE) == COUNT // 2


def test_a_topic_that_moves_to_and_fro_is_read_once(first: Front, second: Front, cluster: Cluster, filled: str) -> None:
    end = end_of(cluster, filled)
    fronts = itertools.cycle([first, second])
    owner = [next(fronts)]

    def habits(front: Front) -> None:
        passed = itertools.count(1)

        def give_away(link: Link, command: BaseCommand) -> bool:
            if command.type != BaseCommand.MESSAGE or owner[0] is not front:
                return command.type != BaseCommand.MESSAGE
            if next(passed) % 300:
                return True
            owner[0] = next(fronts)
            return link.instead(moved_consumer(owner[0].url))

        front.to_client = give_away
        front.on_lookup = lambda body: (
            found(body, front.url) if owner[0] is front else redirect(body, owner[0].url, authoritative=True)
        )

    habits(second)
    next(fronts)
    habits(first)
    assert [number for numbers in reading(cluster, filled, end) for number in numbers] == list(range(COUNT))
    assert first.count(BaseCommand.SUBSCRIBE) + second.count(BaseCommand.SUBSCRIBE) >= COUNT // 300


def test_a_topic_that_is_given_away_again_and_again_is_asked_for_ever_more_seldom(
    first: Front, cluster: Cluster, filled: str
) -> None:
    end = end_of(cluster, filled)
    first.to_client = lambda link, command: (
        command.type != BaseCommand.MESSAGE or link.instead(moved_consumer(first.url))
    )
    impatient = endpoint_of(first.url, operation_timeout_s=0.9)
    asked = first.count(BaseCommand.SUBSCRIBE)
    with Cluster(impatient) as short, pytest.raises(ConnectionLost, match="moves"):
        list(reading(short, filled, end))
    # At once, after 0.1, 0.3, 0.7 and 1.5 s.
    assert 2 <= first.count(BaseCommand.SUBSCRIBE) - asked <= 6


def test_a_writing_goes_on_at_the_broker_that_a_topic_moved_to_and_nothing_is_there_twice(
    broker: BrokerProcess, first: Front, second: Front, cluster: Cluster, topic: str
) -> None:
    sent, answered = itertools.count(1), itertools.count(1)

    def take_half(_link: Link, command: BaseCommand) -> bool:
        return command.type != BaseCommand.SEND or next(sent) <= COUNT // 2

    def give_away(link: Link, command: BaseCommand) -> bool:
        if command.type != BaseCommand.SEND_RECEIPT or next(answered) != COUNT // 2:
            return True
        first.on_lookup = lambda body: redirect(body, second.url, authoritative=True)
        return link.instead(codec.encode(command.type, command.send_receipt) + moved_producer(second.url))

    first.to_broker, first.to_client = take_half, give_away
    with Producer(cluster, topic, name="job") as producer:
        send(producer, range(COUNT))
        producer.flush()
        assert producer.name == "job"
    assert numbers_in(cluster, topic) == list(range(COUNT))
    assert second.count(BaseCommand.SEND) == COUNT // 2
    assert stored(broker.admin_url, topic) == COUNT


@pytest.mark.parametrize("looks", [True, False], ids=["looked-for", "found-behind-the-end"])
def test_what_was_answered_before_a_connection_ended_is_not_sent_again(
    broker: BrokerProcess, first: Front, cluster: Cluster, topic: str, *, looks: bool
) -> None:
    clock = ManualClock()  # The producer looks for receipts when time has passed.
    with Producer(cluster, topic, clock=clock) as producer:
        send(producer, range(8))  # More segments than a connection begins with would be lost on their way.
        first.wait_for_answers(BaseCommand.SEND_RECEIPT, 8)
        first.cut()
        assert producer.pending_entries == 8
        clock.advance(ms=1_000 if looks else 0)
        send(producer, range(8, 100))
    assert numbers_in(cluster, topic) == list(range(100))
    assert stored(broker.admin_url, topic) == 100


# -- what is asked of a consumer -------------------------------------------------------------------------------------


def closing(kind: BaseCommand.Type) -> Callable[[Link, BaseCommand], bool]:
    """A hook: when this is asked for the first time, the topic has just moved, and whoever asked is not known."""
    asked = itertools.count(1)

    def hook(link: Link, command: BaseCommand) -> bool:
        if command.type != kind or next(asked) > 1:
            return True
        body = getattr(command, FIELDS[kind])
        refusal = error(body.request_id, WireCode.METADATA_ERROR, "Consumer not found") if kind in REFUSED else b""
        return link.instead(moved_consumer("pulsar://elsewhere:6650") + refusal)

    return hook


FIELDS = {
    BaseCommand.GET_LAST_MESSAGE_ID: "getLastMessageId",
    BaseCommand.SEEK: "seek",
    BaseCommand.FLOW: "flow",
    BaseCommand.ACK: "ack",
}
REFUSED = FIELDS.keys() - {BaseCommand.FLOW}


def test_a_topic_that_moves_while_its_end_is_looked_for_has_it_all_the_same(
    first: Front, cluster: Cluster, filled: str
) -> None:
    end = end_of(cluster, filled)
    first.to_broker = closing(BaseCommand.GET_LAST_MESSAGE_ID)
    assert end_of(cluster, filled) == end
    assert end.entry_id == COUNT


def test_a_topic_that_moves_while_its_beginning_is_looked_for_is_not_taken_for_an_empty_one(
    first: Front, cluster: Cluster, filled: str
) -> None:
    first.to_broker = closing(BaseCommand.FLOW)
    found_id = earliest_id(cluster, filled)
    assert found_id is not None
    assert found_id.entry_id == 0


def test_a_topic_whose_first_message_does_not_come_is_not_taken_for_an_empty_one(first: Front, filled: str) -> None:
    first.to_client = lambda _, command: command.type != BaseCommand.MESSAGE
    with (
        Cluster(endpoint_of(first.url, operation_timeout_s=PATIENT_S)) as cluster,
        pytest.raises(RequestTimedOut, match=f"no answer from {first.url} to our wish to read {filled}"),
    ):
        earliest_id(cluster, filled)


def test_a_topic_that_has_nothing_is_known_without_waiting(first: Front, cluster: Cluster, topic: str) -> None:
    Producer(cluster, topic).finish()
    assert earliest_id(cluster, topic) is None
    assert not first.count(BaseCommand.FLOW)


def test_a_topic_that_moves_while_a_time_is_looked_for_is_asked_again(
    first: Front, cluster: Cluster, filled: str
) -> None:
    first.to_broker = closing(BaseCommand.SEEK)
    with Subscription.reading(cluster, filled, EARLIEST) as subscription:
        assert subscription.id_at(1).entry_id == 0


def test_a_topic_that_moves_while_a_cursor_is_moved_has_it_moved(
    broker: BrokerProcess, first: Front, cluster: Cluster, filled: str
) -> None:
    end = end_of(cluster, filled)
    first.to_broker = closing(BaseCommand.ACK)
    with Subscription.durable(cluster, filled, "s") as subscription:
        subscription.acknowledge_before(MessageId(end.ledger_id, COUNT - 3))
    assert ask(broker.admin_url, "GET", f"{path_of(filled)}/stats")["subscriptions"]["s"]["msgBacklog"] == 3


def test_what_a_broker_refuses_for_good_is_told_at_once(first: Front, cluster: Cluster, filled: str) -> None:
    def refuse(link: Link, command: BaseCommand) -> bool:
        if command.type != BaseCommand.GET_LAST_MESSAGE_ID:
            return True
        return link.instead(error(command.getLastMessageId.request_id, WireCode.METADATA_ERROR, "no disk"))

    first.to_broker = refuse
    with pytest.raises(Refused, match="no disk"):
        end_of(cluster, filled)
    assert first.count(BaseCommand.SUBSCRIBE) == 1

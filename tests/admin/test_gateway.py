# SPDX-License-Identifier: Apache-2.0
"""Asking a real broker process across its admin port, and a broker's loop that does not answer."""

from __future__ import annotations

import asyncio
import gc
import threading
import uuid
import weakref
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.admin.gateway import BrokerGateway
from penstock.broker.health import Health
from penstock.core.errors import ServiceNotReady
from penstock.telemetry.prometheus import render
from penstock.testing.client import RawClient, Type, frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.broker.administration.administration import Administration
    from penstock.testing.process import BrokerProcess


@pytest.fixture
def brokers_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs in a thread of its own, as a broker's does from where the gateway is."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def gateway_to(loop: asyncio.AbstractEventLoop, *, answer_s: float) -> BrokerGateway:
    broker = SimpleNamespace(health=lambda: Health(ok=True, reason="ok"))
    return BrokerGateway(lambda: cast("Administration", broker), loop, render, answer_s=answer_s)


def topic_figures(broker: BrokerProcess, topic: str) -> dict[str, float]:
    text = httpx.get(f"{broker.admin_url}/metrics", trust_env=False, timeout=60).text
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("topic") == topic
    }


def test_what_was_published_and_delivered_is_counted(broker: BrokerProcess) -> None:
    topic = f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"
    with RawClient(broker.port) as client:
        client.subscribe(topic, "audit", permits=0)
        client.produce(topic)
        client.publish([b"x" * 100] * 3)
        before = topic_figures(broker, topic)
        client.write(frame(Type.FLOW, consumer_id=0, messagePermits=10))
        messages = [client.message() for _ in range(3)]
        after = topic_figures(broker, topic)
    assert before["pulsar_in_messages_total"] == before["penstock_in_entries_total"] == 3
    assert before["pulsar_in_bytes_total"] == sum(len(message.entry) for message in messages)
    assert before["pulsar_producers_count"] == before["pulsar_consumers_count"] == 1
    assert (before["pulsar_subscription_back_log"], before["pulsar_out_messages_total"]) == (3, 0)
    assert (after["pulsar_subscription_back_log"], after["pulsar_out_messages_total"]) == (3, 3)


async def test_the_brokers_health_comes_from_its_own_loop(brokers_loop: asyncio.AbstractEventLoop) -> None:
    assert await gateway_to(brokers_loop, answer_s=5).health() == Health(ok=True, reason="ok")


async def test_answers_of_one_turn_of_the_broker_wake_the_asking_loop_once(
    brokers_loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    gateway, release = gateway_to(brokers_loop, answer_s=5), asyncio.Event()
    begun, woken = list[int](), list[object]()
    wake = loop.call_soon_threadsafe

    async def answer(number: int, _: Administration) -> int:
        begun.append(number)
        await release.wait()
        return number

    async def count(_: Administration) -> int:
        return len(begun)

    def counted(callback: Callable[..., object], *arguments: object) -> object:
        woken.append(callback)
        return wake(callback, *arguments)

    asked = [asyncio.ensure_future(gateway.ask(partial(answer, number))) for number in range(60)]
    while await gateway.ask(count) < len(asked):
        pass
    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    brokers_loop.call_soon_threadsafe(release.set)
    assert await asyncio.gather(*asked) == list(range(60))
    assert len(woken) < 10  # Once, if this loop does not run meanwhile.


async def test_an_answer_is_kept_by_nobody_but_its_caller(brokers_loop: asyncio.AbstractEventLoop) -> None:
    class Answer:
        pass

    async def answer(_: Administration) -> Answer:
        return Answer()

    gateway = gateway_to(brokers_loop, answer_s=5)
    gc.disable()
    try:
        seen = weakref.ref(await gateway.ask(answer))
        await gateway.health()  # By then the broker's loop has ended the task of the first question.
        assert seen() is None
    finally:
        gc.enable()


async def test_a_question_whose_caller_is_gone_is_given_up(brokers_loop: asyncio.AbstractEventLoop) -> None:
    begun, given_up = threading.Event(), threading.Event()

    async def endless(_: Administration) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    gateway = gateway_to(brokers_loop, answer_s=5)
    asking = asyncio.ensure_future(gateway.ask(endless))
    assert await asyncio.to_thread(begun.wait, 5)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await asyncio.to_thread(given_up.wait, 5)


async def test_a_loop_that_does_not_answer_is_reported_as_such(brokers_loop: asyncio.AbstractEventLoop) -> None:
    let_go = threading.Event()
    brokers_loop.call_soon_threadsafe(let_go.wait)
    try:
        with pytest.raises(ServiceNotReady, match=r"did not answer within 0\.05 s"):
            await gateway_to(brokers_loop, answer_s=0.05).health()
    finally:
        let_go.set()
        # The question was withdrawn: let the loop see it before it is closed.
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), brokers_loop))


async def test_a_loop_that_has_ended_is_reported_as_such() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(ServiceNotReady, match="has stopped"):
        await gateway_to(loop, answer_s=5).health()

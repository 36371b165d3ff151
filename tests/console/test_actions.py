# SPDX-License-Identifier: Apache-2.0
"""What may be done to a subscription, from the button to the broker: each says first what it will do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pulsar

from penstock.testing.tokens import token
from tests.console.shop import OWNER
from tests.console.test_signing_in import sign_in

if TYPE_CHECKING:
    from penstock.testing.process import BrokerProcess
    from tests.console.shop import OpenShop
    from tests.console.window import Window


def test_entries_are_skipped(window: Window, shop: OpenShop) -> None:
    topic = shop.filled("skipped", "a/b +%", 5)
    window.show("/topic", {"name": topic})
    window.click("Skip: subscription a/b +%")
    window.type_into("Entries to skip", "2")
    window.until_shown("The next 2 entries of 5 in the backlog of a/b +%")
    window.confirm("Skip")
    window.until_shown("Skipped 2 entries of subscription a/b +%.")
    assert shop.subscription(topic, "a/b +%")["msgBacklog"] == 3


def test_a_backlog_is_cleared(window: Window, shop: OpenShop) -> None:
    topic = shop.filled("cleared", "s", 4)
    window.show("/topic", {"name": topic})
    window.click("Clear: subscription s")
    window.until_shown("All 4 entries in the backlog of s")
    window.confirm("Clear")
    window.until_shown("The backlog of subscription s is cleared.")
    assert shop.subscription(topic, "s")["msgBacklog"] == 0


def test_a_subscription_is_reset_to_a_time_and_reads_again_what_was_said(window: Window, shop: OpenShop) -> None:
    topic = shop.filled("reset", "s", 6)
    consumer = shop.client.subscribe(topic, "s")
    for _ in range(6):
        consumer.acknowledge(consumer.receive(20_000))
    consumer.close()
    assert shop.subscription(topic, "s")["msgBacklog"] == 0

    window.show("/topic", {"name": topic})
    window.click("Reset: subscription s")
    window.until_shown("6 entries")
    window.until_shown("Its backlog is 0 entries now.")
    window.confirm("Reset")
    window.until_shown("Subscription s is reset to")

    assert shop.subscription(topic, "s")["msgBacklog"] == 6
    consumer = shop.client.subscribe(topic, "s")
    assert [consumer.receive(20_000).data() for _ in range(6)] == [b"message %d" % number for number in range(6)]
    consumer.close()


def test_a_reset_of_a_partitioned_topic_counts_all_partitions(window: Window, shop: OpenShop) -> None:
    window.show("/topic", {"name": "persistent://shop/orders/parts"})
    window.click("Reset: subscription all")
    window.until_shown("30 entries")
    window.click("Close")


def test_nothing_is_done_that_is_not_confirmed(window: Window, shop: OpenShop) -> None:
    topic = shop.filled("kept", "s", 3)
    window.show("/topic", {"name": topic})
    window.click("Clear: subscription s")
    window.until_shown("All 3 entries")
    window.click("Close")
    window.page.until("document.querySelector('dialog') === null")
    assert shop.subscription(topic, "s")["msgBacklog"] == 3


def test_messages_of_a_backlog_are_looked_at_one_after_another(window: Window, shop: OpenShop) -> None:
    topic = shop.filled("looked-at", "s", 2)
    window.show("/topic", {"name": topic})
    window.click("Look: subscription s")
    window.until_shown("message 0")
    window.click("Next")
    window.until_shown("message 1")
    window.click("Next")
    window.page.until("document.querySelector('dialog [role=alert]') !== null")
    window.click("Previous")
    window.until_shown("message 1")
    assert shop.subscription(topic, "s")["msgBacklog"] == 2


def test_an_action_that_is_refused_says_why(guarded_window: Window, guarded: BrokerProcess) -> None:
    sign_in(guarded_window, token(OWNER))
    guarded_window.until_shown("Tenant shop")
    guarded_window.show("/topic", {"name": "persistent://shop/orders/checkout"})
    guarded_window.click("Clear: subscription audit")
    guarded_window.until_shown("All 0 entries")
    client = pulsar.Client(
        guarded.url,
        authentication=pulsar.AuthenticationToken(token(OWNER)),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    consumer = client.subscribe("persistent://shop/orders/checkout", "audit")
    consumer.unsubscribe()
    client.close()
    guarded_window.confirm("Clear")
    guarded_window.until_shown("Subscription")
    guarded_window.page.until("document.querySelector('dialog [role=alert]') !== null")


def test_a_page_that_nobody_sees_asks_nothing(window: Window) -> None:
    window.show("/overview")
    window.until_shown("Memory of the broker")
    window.page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    # It asks every two seconds: what was on its way ends, and nothing follows.
    window.page.evaluate("new Promise((done) => setTimeout(done, 2500))")
    window.page.events.clear()
    window.page.evaluate("new Promise((done) => setTimeout(done, 2500))")
    assert window.asked() == set()


def test_the_rates_of_the_last_seconds_are_shown(window: Window, shop: OpenShop) -> None:
    topic = shop.filled("rates", "s", 0)
    window.show("/topic", {"name": topic})
    window.until_shown("Collecting")
    producer = shop.client.create_producer(topic)
    until = time.perf_counter() + 60
    while not window.page.evaluate("document.querySelector('.chart .uplot') !== null"):
        producer.send(b"x")
        assert time.perf_counter() < until
    producer.close()

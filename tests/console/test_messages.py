# SPDX-License-Identifier: Apache-2.0
"""Messages in the console: pages of them, the live tail, export, sending, dead letters, and whom they are shown to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import pulsar
import pulsar.schema
import pytest

from penstock.testing.tokens import token
from tests.console.shop import EVIL, EVIL_PAYLOAD, EVIL_PROPERTY, OWNER, ROOT
from tests.console.test_pages import RIGHT_TO_LEFT
from tests.console.test_signing_in import sign_in
from tests.console.window import DESK, TELEPHONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing.process import BrokerProcess
    from tests.console.shop import OpenShop
    from tests.console.window import Window

SECRET_TOPIC = "persistent://shop/orders/checkout"
GUEST = "guest"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESK, TELEPHONE])
def test_the_page_fits_and_complains_of_nothing(window: Window, shop: OpenShop, width: int, dark: bool) -> None:
    topic = shop.filled("page-of-messages", "s", 3)
    window.show("/messages", {"name": topic}, width=width, dark=dark)
    window.until_shown("message 2")
    assert window.complaints() == []
    assert window.page.evaluate("document.documentElement.scrollWidth") <= width
    nodes = window.page.call("Accessibility.getFullAXTree")["nodes"]
    used = {"button", "link", "textbox", "searchbox", "combobox", "heading", "table"}
    found = [node for node in nodes if not node["ignored"] and node["role"]["value"] in used]
    assert [node for node in found if not node["name"]["value"].strip()] == []


def test_older_and_newer_pages_follow_one_another(window: Window, shop: OpenShop) -> None:
    topic = shop.filled("many-pages", "s", 70)
    window.show("/topic", {"name": topic})
    window.click("Messages: look")
    window.until_shown("message 69")
    assert "message 19\n" not in window.text()
    window.click("Older")
    window.until_shown("message 0")
    window.click("Newer")
    window.until_shown("message 69")


def test_messages_are_found_by_property_and_text(window: Window, shop: OpenShop) -> None:
    topic = shop.filled("searched", "s", 30)
    window.show("/messages", {"name": topic, "from": "earliest", "property": "number=1?"})
    window.until_shown("10 messages of 30 looked at")
    window.type_into("Property", "")
    window.type_into("Text", "MESSAGE 7")
    window.click("Show")
    window.until_shown("1 message of 30 looked at")
    window.until_shown("message 7")


def test_hostile_messages_are_text_and_large_ones_are_cut_with_their_size(window: Window, shop: OpenShop) -> None:
    window.show("/messages", {"name": EVIL})
    window.click("Message ", "button")
    window.until_shown(EVIL_PROPERTY[0])
    assert EVIL_PAYLOAD.replace("\u202e", RIGHT_TO_LEFT) in window.text()
    assert window.page.evaluate("[...document.querySelectorAll('main script, dialog script')].length") == 0
    topic = shop.filled("large", "s", 0)
    producer = shop.client.create_producer(topic, compression_type=pulsar.CompressionType.ZSTD)
    producer.send(b"<b>" + b"x" * 4_900_000, properties={"large": "<i>" + "p" * 100_000})
    window.show("/messages", {"name": topic})
    window.until_shown("4.7 MiB")
    window.click("Message ", "button")
    window.until_shown("the first 64 KiB")
    window.until_shown("Properties, the first of 97.7 KiB")
    assert window.page.evaluate("document.querySelector('dialog').innerText.length") < 80_000
    assert window.page.evaluate("document.title") != "1"
    assert window.complaints() == []


def test_a_live_tail_shows_what_is_published_until_it_is_stopped(window: Window, shop: OpenShop) -> None:
    topic = shop.filled("tailed", "s", 2)
    producer = shop.client.create_producer(topic)
    window.show("/messages", {"name": topic, "property": "wanted=yes"})
    window.click("Live tail")
    window.until_shown("since it began")
    window.page.until("document.querySelector('#tail-title') !== null")
    # It begins at the end: what is published before its first answer may not be shown.
    while "fresh" not in window.text():
        producer.send(b"unwanted", properties={"wanted": "no"})
        producer.send(b"fresh", properties={"wanted": "yes"})
    assert "unwanted" not in window.text()
    assert "message 0" not in window.text()
    window.click("Stop the live tail")
    window.page.until("document.querySelector('#tail-title') === null")
    window.page.events.clear()
    window.page.evaluate("new Promise((done) => setTimeout(done, 2500))")
    assert [url for url in window.asked() if "/messages/" in url] == []


def test_what_the_page_asks_for_is_exported_as_json_lines(window: Window, shop: OpenShop) -> None:
    topic = shop.filled("exported", "s", 5)
    window.show("/messages", {"name": topic, "from": "earliest", "property": "number=[1-3]"})
    window.until_shown("3 messages of 5 looked at")
    window.page.evaluate(
        "window.saved = null; const make = URL.createObjectURL; "
        "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return make(blob); }"
    )
    window.click("Export")
    window.confirm("Export")
    window.until_shown("3 messages exported.")
    window.page.until("window.saved !== null")
    lines = [json.loads(line) for line in window.page.evaluate("window.saved").splitlines()]
    assert [(line["value"], line["properties"]) for line in lines] == [
        (f"message {number}", {"number": str(number)}) for number in (1, 2, 3)
    ]
    assert {line["topic"] for line in lines} == {topic}


def test_a_message_is_sent(window: Window, shop: OpenShop) -> None:
    topic = shop.filled("sent", "s", 0)
    consumer = shop.client.subscribe(topic, "s")
    window.show("/messages", {"name": topic})
    window.click("Send a message")
    window.type_into("Payload", "typed by hand")
    window.type_into("Key", "k")
    window.type_into("Properties", "a=b=c\nd=")
    window.confirm("Send")
    window.until_shown("is stored in")
    message = consumer.receive(20_000)
    assert (message.data(), message.partition_key()) == (b"typed by hand", "k")
    assert message.properties() == {"a": "b=c", "d": ""}
    consumer.close()


def test_a_property_without_a_value_is_not_sent(window: Window, shop: OpenShop) -> None:
    topic = shop.filled("not-sent", "s", 0)
    window.show("/messages", {"name": topic})
    window.click("Send a message")
    window.type_into("Properties", "lonely")
    window.confirm("Send")
    window.until_shown("want NAME=VALUE")
    assert shop.subscription(topic, "s")["msgBacklog"] == 0


def test_dead_letters_are_sent_once_more(window: Window, shop: OpenShop) -> None:
    origin, dead = shop.filled("redriven", "s", 0), shop.filled("redriven-DLQ", "s", 0)
    producer = shop.client.create_producer(dead)
    for number in range(3):
        producer.send(b"%d" % number, properties={"REAL_TOPIC": origin})
    window.show("/messages", {"name": dead})
    window.click("Redrive")
    window.confirm("Redrive")
    window.until_shown(f"3 messages sent to {origin}.")
    assert shop.subscription(origin, "s")["msgBacklog"] == 3


# -- with authentication


@pytest.fixture
def permitted(guarded: BrokerProcess) -> Iterator[httpx.Client]:
    """A superuser's client. `guest` may produce to the shop's orders, and not consume."""
    headers = {"authorization": f"Bearer {token(ROOT)}"}
    with httpx.Client(base_url=guarded.admin_url, headers=headers, trust_env=False, timeout=60) as http:
        assert http.post(f"/admin/v2/namespaces/shop/orders/permissions/{GUEST}", json=["produce"]).is_success
        yield http


def test_a_role_that_may_not_consume_is_told_so_and_may_send(guarded_window: Window, permitted: httpx.Client) -> None:
    sign_in(guarded_window, token(GUEST))
    guarded_window.page.until("document.querySelector('main h1') !== null")
    guarded_window.show("/messages", {"name": SECRET_TOPIC})
    guarded_window.until_shown("You may see this topic, but not its messages: that needs the permission to consume")
    assert "Live tail" not in guarded_window.text()
    guarded_window.click("Send a message")
    guarded_window.type_into("Payload", "from a guest")
    guarded_window.confirm("Send")
    guarded_window.until_shown("is stored in")
    shown = permitted.get("/admin/v3/messages/persistent/shop/orders/checkout").json()["messages"]
    assert shown[-1]["value"] == "from a guest"


def test_an_administrator_reads_sends_and_redrives_and_the_log_says_so(
    guarded_window: Window, guarded: BrokerProcess, permitted: httpx.Client
) -> None:
    sign_in(guarded_window, token(OWNER))
    guarded_window.until_shown("Tenant shop")
    guarded_window.show("/messages", {"name": SECRET_TOPIC})
    guarded_window.click("Send a message")
    guarded_window.type_into("Payload", "by its owner")
    guarded_window.confirm("Send")
    guarded_window.until_shown("by its owner")
    lines = [line for line in guarded.log_path.read_text().splitlines() if "penstock.admin.audit" in line]
    assert any(f"role '{OWNER}'" in line and "POST /admin/v3/messages/" in line for line in lines), lines[-3:]
    assert "by its owner" not in "".join(lines)


def test_another_tenant_reads_nothing(guarded_window: Window) -> None:
    sign_in(guarded_window, token(OWNER))
    guarded_window.until_shown("Tenant shop")
    guarded_window.show("/messages", {"name": "persistent://other/orders/secret"})
    guarded_window.page.until("document.querySelector('[role=alert]') !== null")
    assert "Position" not in guarded_window.text()


# -- decoded


class Parcel(pulsar.schema.Record):  # type: ignore[misc]  # the client has no types
    """What a client with a schema sends."""

    number = pulsar.schema.Integer()
    to = pulsar.schema.String()


def test_values_are_shown_decoded_by_their_schema(window: Window, shop: OpenShop) -> None:
    topic = shop.filled("decoded", "s", 0)
    producer = shop.client.create_producer(topic, schema=pulsar.schema.AvroSchema(Parcel))
    producer.send(Parcel(number=7, to="<b>Ann</b>"))
    window.show("/messages", {"name": topic, "text": "ann"})
    window.until_shown('{"number":7,"to":"<b>Ann</b>"}')
    window.click("Message ", "button")
    window.until_shown('"number": 7,\n')
    window.until_shown("AVRO, version 0")
    assert window.complaints() == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            '{"a":12345678901234567890,"b":[1,{}],"c":"x{,"}',
            '{\n  "a": 12345678901234567890,\n  "b": [\n    1,\n    {}\n  ],\n  "c": "x{,"\n}',
        ),
        ('{"a":', '{"a":'),
        ("plain, text", "plain, text"),
        ("7", "7"),
    ],
)
def test_json_is_laid_out_without_being_written_anew(window: Window, text: str, shown: str) -> None:
    window.show("/settings")
    script = f"import('/console/format.js').then(({{ indented }}) => indented({json.dumps(text)}))"
    assert window.page.evaluate(script) == shown


def test_lists_in_lists_do_not_become_blanks(window: Window) -> None:
    window.show("/settings")
    lists = "'['.repeat(5000) + '1' + ']'.repeat(5000)"
    script = f"import('/console/format.js').then(({{ indented }}) => indented({lists}).length)"
    assert window.page.evaluate(script) < 700_000

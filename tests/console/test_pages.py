# SPDX-License-Identifier: Apache-2.0
"""The pages of the console in a real browser, on a desk and on a telephone, light and dark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.console.shop import CHECKOUT, EVIL, EVIL_PAYLOAD, EVIL_PROPERTY, EVIL_SUBSCRIPTION, PARTS, ROOT
from tests.console.window import DESK, TELEPHONE

if TYPE_CHECKING:
    from tests.console.shop import OpenShop
    from tests.console.window import Window

# Each page, and a text of it that says that the broker has answered.
PAGES = [
    ("/overview", {}, "Memory of the broker"),
    ("/topics", {}, "checkout"),
    ("/topic", {"name": CHECKOUT}, "billing"),
    ("/topic", {"name": PARTS}, "Partitions"),
    ("/tenants", {}, "Quotas of resource groups"),
    ("/tenants", {"name": "shop"}, "Namespaces"),
    ("/settings", {}, "Settings"),
    ("/why", {}, "looked at"),
    ("/why", {"of": "shop"}, "looked at"),
]
RIGHT_TO_LEFT = "\u27e8202E\u27e9"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESK, TELEPHONE])
@pytest.mark.parametrize(("page", "values", "text"), PAGES, ids=lambda one: one if isinstance(one, str) else "")
def test_a_page_fits_and_complains_of_nothing_and_asks_nobody_else(
    window: Window, page: str, values: dict[str, str], text: str, width: int, dark: bool
) -> None:
    window.show(page, values, width=width, dark=dark)
    window.until_shown(text)
    assert window.complaints() == []
    assert {url for url in window.asked() if not url.startswith((window.url, "about:", "data:"))} == set()
    assert window.page.evaluate("document.documentElement.scrollWidth") <= width
    assert window.page.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(18, 22, 28)" if dark else "rgb(246, 247, 249)"
    )


@pytest.mark.parametrize(("page", "values", "text"), PAGES, ids=lambda one: one if isinstance(one, str) else "")
def test_everything_that_can_be_used_has_a_name(window: Window, page: str, values: dict[str, str], text: str) -> None:
    window.show(page, values)
    window.until_shown(text)
    nodes = window.page.call("Accessibility.getFullAXTree")["nodes"]
    used = {"button", "link", "textbox", "searchbox", "combobox", "radio", "heading", "table", "image"}
    found = [node for node in nodes if not node["ignored"] and node["role"]["value"] in used]
    assert found
    assert [node for node in found if not node["name"]["value"].strip()] == []


def test_hostile_names_are_text(window: Window) -> None:
    window.show("/topics", {"search": "onerror"})
    window.until_shown("<img src=x onerror=document.title=1>")
    assert RIGHT_TO_LEFT in window.text()
    window.click("<img")
    window.until_shown(EVIL_SUBSCRIPTION)
    assert window.page.evaluate("[...document.querySelectorAll('main img, main script, main b[onclick]')].length") == 0
    assert window.page.evaluate("document.title") != "1"
    assert window.complaints() == []


def test_hostile_payloads_and_properties_are_text(window: Window) -> None:
    window.show("/topic", {"name": EVIL})
    window.until_shown(EVIL_SUBSCRIPTION)
    window.click(f"Look: subscription {EVIL_SUBSCRIPTION}")
    window.until_shown(EVIL_PROPERTY[0])
    text = window.text()
    assert EVIL_PAYLOAD.replace("\u202e", RIGHT_TO_LEFT) in text
    assert EVIL_PROPERTY[1] in text
    assert window.page.evaluate("[...document.querySelectorAll('dialog script')].length") == 0
    assert window.page.evaluate("document.title") != "1"
    assert window.complaints() == []


def test_a_payload_that_is_no_text_is_shown_in_bytes(window: Window, shop: OpenShop) -> None:
    topic = shop.filled("bytes", "s", 0)
    shop.client.create_producer(topic).send(b"\xff\x00PNG" + bytes(20_000_000 // 5))
    window.show("/topic", {"name": topic})
    window.click("Look: subscription s")
    window.until_shown("ff 00 50 4e 47")
    assert "It is no text." in window.text()
    assert "the first 64 KiB" in window.text()


def test_the_overview_says_what_waits_and_why(window: Window) -> None:
    window.show("/overview")
    window.until_shown("its client has as many messages as it has asked for")
    text = window.text()
    assert "queue-full" in text
    assert "of subscription stuck of persistent://shop/orders/checkout" in text
    assert "unacknowledged messages and acknowledgements" in text  # a row of the budget


def test_tenants_and_quotas_have_what_is_used_of_them(window: Window, shop: OpenShop) -> None:
    admin = f"{shop.broker.admin_url}/admin/v2"
    rates = {"publishRateInMsgs": 1_234, "publishRateInBytes": 10_240_000}
    for method, path, body in (
        ("PUT", "/resourcegroups/gold", rates),
        ("POST", "/namespaces/shop/orders/resourcegroup/gold", None),
    ):
        assert httpx.request(method, admin + path, json=body, trust_env=False, timeout=60).is_success
    shop.client.create_producer(CHECKOUT).send(b"counted")
    window.show("/tenants")
    window.until_shown("1,234 / s")
    assert "9.8 MiB / s" in window.text()
    window.click("shop")
    window.until_shown("shop/orders")
    window.until_shown("gold")
    assert window.complaints() == []


def test_a_setting_says_where_its_value_comes_from(window: Window) -> None:
    window.show("/settings")
    window.until_shown("webServicePort")
    window.type_into("Search", "maxProducersPerTopic")
    window.until_shown("default")
    assert "maxProducersPerTopic" in window.text()
    assert "maxConsumersPerTopic" not in window.text()


def test_a_chart_has_its_figures_as_a_table(window: Window) -> None:
    window.show("/overview")
    window.page.until("document.querySelector('.uplot canvas') !== null")
    window.click("As a table")
    window.page.until("document.querySelectorAll('.chart details[open] tbody tr').length >= 2")


def test_the_console_is_used_by_keys_alone(window: Window) -> None:
    window.show("/topic", {"name": CHECKOUT})
    window.until_shown("billing")
    window.page.until("document.querySelector('[aria-label=\"Skip: subscription billing\"]') !== null")
    focused = "document.activeElement.ariaLabel ?? document.activeElement.innerText"
    for _ in range(40):
        window.press("Tab", 9)
        if window.page.evaluate(focused) == "Skip: subscription billing":
            break
    window.press("Enter", 13, "\r")
    window.until_shown("Entries to skip")
    assert window.page.evaluate("document.querySelector('dialog[open]').contains(document.activeElement)")
    window.press("Escape", 27)
    window.page.until("document.querySelector('dialog') === null")


def test_roles_of_the_guarded_broker_are_not_those_of_this_one(window: Window) -> None:
    window.show("/overview")
    window.until_shown("Memory of the broker")
    assert "Sign out" not in window.text()
    assert ROOT not in window.text()

# SPDX-License-Identifier: Apache-2.0
"""Signing in with a token: nobody sees more in the console than their token lets them see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.testing.tokens import token
from tests.console.shop import OWNER, ROOT, STRANGER

if TYPE_CHECKING:
    from tests.console.window import Window


def sign_in(window: Window, shown: str) -> None:
    window.show("/overview")
    window.until_shown("asks who you are")
    window.type_into("Token", shown)
    window.click("Sign in", "button")


def test_without_a_token_there_is_nothing_but_the_question_for_one(guarded_window: Window) -> None:
    for page in ("/overview", "/topics", "/why"):
        guarded_window.show(page)
        guarded_window.until_shown("asks who you are")
        assert "checkout" not in guarded_window.text()


def test_a_superuser_sees_everything(guarded_window: Window) -> None:
    sign_in(guarded_window, token(ROOT))
    guarded_window.until_shown("Memory of the broker")
    assert ROOT in guarded_window.text()
    guarded_window.click("Topics")
    guarded_window.until_shown("secret")
    guarded_window.until_shown("checkout")


def test_an_administrator_of_a_tenant_sees_that_tenant_and_no_other(guarded_window: Window) -> None:
    sign_in(guarded_window, token(OWNER))
    guarded_window.until_shown("Tenant shop")
    guarded_window.click("Topics")
    guarded_window.until_shown("checkout")
    assert "secret" not in guarded_window.text()
    for page, values in (
        ("/topics", {"within": "other"}),
        ("/topics", {"within": "other/orders"}),
        ("/topic", {"name": "persistent://other/orders/secret"}),
        ("/why", {"of": "other"}),
        ("/why", {"of": "persistent://other/orders/secret"}),
    ):
        guarded_window.show(page, values)
        guarded_window.page.until("document.querySelector('[role=alert]') !== null")
        # The name of the topic is what was typed.
        assert "audit" not in guarded_window.text()
        assert "Subscriptions" not in guarded_window.text()


def test_the_token_of_another_tenant_shows_nothing_of_the_first(guarded_window: Window) -> None:
    sign_in(guarded_window, token(STRANGER))
    guarded_window.until_shown("Tenant other")
    guarded_window.show("/topics")
    guarded_window.until_shown("secret")
    assert "shop" not in guarded_window.text()
    assert "checkout" not in guarded_window.text()


def test_signing_out_forgets_the_token(guarded_window: Window) -> None:
    sign_in(guarded_window, token(ROOT))
    guarded_window.until_shown("Memory of the broker")
    assert guarded_window.page.evaluate("sessionStorage.length") == 1
    guarded_window.click("Sign out")
    guarded_window.until_shown("asks who you are")
    assert guarded_window.page.evaluate("sessionStorage.length + localStorage.length + document.cookie.length") == 0


def test_the_token_is_in_no_address(guarded_window: Window) -> None:
    shown = token(ROOT)
    sign_in(guarded_window, shown)
    guarded_window.until_shown("Memory of the broker")
    assert [url for url in guarded_window.asked() if shown in url] == []
    assert shown not in guarded_window.page.evaluate("location.href")


@pytest.mark.parametrize("shown", ["nonsense", token(ROOT, b"another key, long enough for HMAC".ljust(64, b"."))])
def test_a_token_that_is_not_valid_is_refused_in_words(guarded_window: Window, shown: str) -> None:
    sign_in(guarded_window, shown)
    guarded_window.until_shown("These credentials are not accepted")
    assert guarded_window.page.evaluate("sessionStorage.length") == 0

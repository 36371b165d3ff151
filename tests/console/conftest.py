# SPDX-License-Identifier: Apache-2.0
"""A real browser, and real brokers with something to see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.console.shop import OpenShop, guarded_shop, open_shop
from tests.console.window import Window
from tests.examples.browser import browsing, find_browser
from tests.needed import skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing.process import BrokerProcess
    from tests.examples.browser import Page


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A headless Chromium with one tab."""
    program = find_browser()
    if program is None:
        skip("there is no Chromium on the PATH: apt-get install chromium")
    with browsing(program, tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenShop]:
    """A broker without authentication, with topics, clients and hostile names."""
    with open_shop(tmp_path_factory.mktemp("shop")) as shop:
        yield shop


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that asks for tokens, with two tenants."""
    with guarded_shop(tmp_path_factory.mktemp("guarded")) as broker:
        yield broker


@pytest.fixture
def window(tab: Page, shop: OpenShop) -> Window:
    """The console of the open broker."""
    return Window(tab, shop.broker.admin_url)


@pytest.fixture
def guarded_window(tab: Page, guarded: BrokerProcess) -> Window:
    """The console of the guarded broker; nobody is signed in."""
    window = Window(tab, guarded.admin_url)
    window.show("/overview")
    tab.evaluate("sessionStorage.clear()")
    return window

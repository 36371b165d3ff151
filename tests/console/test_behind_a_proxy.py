# SPDX-License-Identifier: Apache-2.0
"""The console of a proxy: before penstock, and before brokers that have no other routes than Apache Pulsar's."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from penstock import __version__
from penstock.testing.process import ProxyProcess
from penstock.testing.tokens import token
from tests.console.shop import CHECKOUT
from tests.console.window import DESK, TELEPHONE, Window
from tests.proxy.guarded import ADMIN, GUARDING, administer, broker_process, proxy_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.console.shop import OpenShop
    from tests.examples.browser import Page

# What a proxy answers with 404 if none of its clients uses the topic.
_UNUSED: Final = "/admin/v3/why/"
# What Apache Pulsar does not have.
_OWN: Final = ("/admin/v3/overview", "/admin/v3/topics", "/admin/v3/tenants", "/admin/v3/settings", "/admin/v3/who")
# What Apache Pulsar calls JSON, and is a text without quotes.
_TEXTS: Final = ("/admin/v2/brokers/health", "/admin/v2/brokers/version")
PAGES: Final[tuple[tuple[str, dict[str, str], str], ...]] = (
    ("/overview", {}, "Memory of this proxy"),
    ("/topics", {"within": "shop/orders"}, "checkout"),
    ("/topic", {"name": CHECKOUT}, "billing"),
    ("/tenants", {}, "shop"),
    ("/settings", {}, "shown as"),
    ("/why", {}, "looked at"),
    ("/why", {"of": "shop/orders/checkout"}, "looked at"),
)
# Texts of the pages before brokers of others.
FOREIGN_TEXTS: Final[tuple[tuple[str, dict[str, str], str], ...]] = (
    ("/overview", {}, "The cluster behind this proxy"),
    ("/overview", {}, "has stored a message and received it again"),
    ("/overview", {}, "Direct memory"),
    ("/overview", {}, __version__),
    ("/tenants", {}, "Resource groups of the cluster"),
    ("/tenants", {}, "gold"),
    ("/topic", {"name": CHECKOUT}, "its client has as many messages as it has asked for"),
    ("/why", {"of": CHECKOUT}, "its client has as many messages as it has asked for"),
)


@contextmanager
def foreign(admin_url: str) -> Iterator[str]:
    """An admin port that has only what Apache Pulsar's has, too."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith(_OWN):
                self._send(404, b'{"reason":"HTTP 404 Not Found"}', "application/json")
                return
            answer = httpx.request(self.command, admin_url + self.path, trust_env=False, timeout=60)
            kind = answer.headers.get("content-type", "text/plain")
            self._send(answer.status_code, answer.content, "application/json" if self.path.startswith(_TEXTS) else kind)

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def complaints_but_for(window: Window, *paths: str) -> list[dict[str, Any]]:
    """Complaints of the page, without paths that are not there: the browser writes them down, the console goes on."""
    absent = tuple(window.url + path for path in paths)
    return [one for one in window.complaints() if not one.get("entry", {}).get("url", "").startswith(absent)]


@pytest.fixture(scope="module")
def proxy(shop: OpenShop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy before the open broker."""
    log = tmp_path_factory.mktemp("proxy") / "proxy.log"
    config = log.with_name("proxy.conf")
    config.write_text(f"consoleClusters=the shop={shop.broker.admin_url},west=https://west.example.com:8443\n")
    arguments = ["--config", str(config), "--upstream-admin", shop.broker.admin_url]
    with ProxyProcess(shop.broker.url, arguments, log_path=log) as process:
        yield process


@pytest.fixture(scope="module")
def foreign_proxy(shop: OpenShop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy before the same broker, which seems to be another one."""
    log = tmp_path_factory.mktemp("foreign") / "proxy.log"
    with (
        foreign(shop.broker.admin_url) as admin_url,
        ProxyProcess(shop.broker.url, ["--upstream-admin", admin_url], log_path=log) as process,
    ):
        yield process


@pytest.mark.parametrize(("width", "dark"), [(DESK, False), (TELEPHONE, True)])
@pytest.mark.parametrize(("page", "values", "text"), PAGES, ids=lambda one: one if isinstance(one, str) else "")
def test_a_page_of_the_proxy_fits_and_complains_of_nothing(
    tab: Page, proxy: ProxyProcess, page: str, values: dict[str, str], text: str, width: int, dark: bool
) -> None:
    window = Window(tab, proxy.admin_url)
    window.show(page, values, width=width, dark=dark)
    window.until_shown(text)
    assert complaints_but_for(window, _UNUSED) == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_the_overview_of_a_proxy_has_its_brokers_too(tab: Page, proxy: ProxyProcess) -> None:
    window = Window(tab, proxy.admin_url)
    window.show("/overview")
    window.until_shown("Memory of this proxy")
    window.until_shown("Memory of the broker")
    window.until_shown("Connections to brokers")


@pytest.mark.parametrize(("page", "values", "text"), PAGES, ids=lambda one: one if isinstance(one, str) else "")
def test_before_other_brokers_the_pages_show_what_their_rest_tells(
    tab: Page, foreign_proxy: ProxyProcess, page: str, values: dict[str, str], text: str
) -> None:
    window = Window(tab, foreign_proxy.admin_url)
    window.show(page, values)
    window.until_shown(text)
    assert complaints_but_for(window, *_OWN, _UNUSED) == []


@pytest.mark.parametrize(("page", "values", "text"), FOREIGN_TEXTS)
def test_before_other_brokers_there_are_panels_of_what_they_tell(
    tab: Page, foreign_proxy: ProxyProcess, shop: OpenShop, page: str, values: dict[str, str], text: str
) -> None:
    groups = f"{shop.broker.admin_url}/admin/v2/resourcegroups/gold"
    httpx.put(groups, json={"publishRateInMsgs": 250}, trust_env=False, timeout=60).raise_for_status()
    window = Window(tab, foreign_proxy.admin_url)
    window.show(page, values, width=TELEPHONE)
    window.until_shown(text)
    assert tab.evaluate("document.documentElement.scrollWidth") <= TELEPHONE


def test_the_head_leads_to_the_consoles_of_other_clusters(tab: Page, proxy: ProxyProcess, shop: OpenShop) -> None:
    window = Window(tab, proxy.admin_url)
    window.show("/topics", {"within": "shop/orders"}, width=TELEPHONE)
    window.click("Cluster")
    found = tab.evaluate("[...document.querySelectorAll('.clusters a')].map((one) => [one.innerText.trim(), one.href])")
    assert found == [
        ["the shop", f"{shop.broker.admin_url}/#/topics"],
        ["west", "https://west.example.com:8443/#/topics"],
    ]
    window.click("the shop")
    tab.until(f"location.origin === {shop.broker.admin_url!r}")
    window.until_shown("checkout")


def test_a_subscription_is_skipped_through_a_proxy(tab: Page, proxy: ProxyProcess, shop: OpenShop) -> None:
    topic = shop.filled("proxied", "s", 3)
    window = Window(tab, proxy.admin_url)
    window.show("/topic", {"name": topic})
    window.click("Skip: subscription s")
    window.confirm("Skip")
    window.until_shown("Skipped 1 entry of subscription s.")
    assert shop.subscription(topic, "s")["msgBacklog"] == 2


def test_a_proxy_that_asks_for_tokens_shows_its_console_and_nothing_else_without_one(tab: Page, tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        administer(broker)
        with proxy_process(broker, tmp_path, f"{GUARDING}authorizationEnabled=true\nsuperUserRoles={ADMIN}\n") as proxy:
            window = Window(tab, proxy.admin_url)
            window.show("/overview")
            tab.evaluate("sessionStorage.clear()")
            window.show("/overview")
            window.until_shown("asks who you are")
            for path in ("/proxy-stats/overview", "/admin/v3/why", "/admin/v3/overview", "/metrics"):
                assert httpx.get(proxy.admin_url + path, trust_env=False, timeout=60).status_code == 401, path
            window.type_into("Token", token(ADMIN))
            window.click("Sign in", "button")
            window.until_shown("Memory of this proxy")
            window.until_shown("Memory of the broker")

# SPDX-License-Identifier: Apache-2.0
"""Takes the pictures of docs/guide/console.md.

python -m tests.console.pictures            # of penstock
python -m tests.console.pictures pulsar     # of Apache Pulsar behind a proxy, which is tried so, too
"""

from __future__ import annotations

import base64
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pulsar

from benchmarks.pulsar_peer import PulsarProcess
from penstock.testing.process import ProxyProcess
from tests.console.shop import CHECKOUT, open_shop
from tests.console.window import DESK, TELEPHONE, Window
from tests.examples.browser import browsing, find_browser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.examples.browser import Page

FIGURES: Final = Path(__file__).parents[2] / "docs/figures"
# Name of the file, page, its values, a text of it, width, height, dark.
PICTURES: Final = (
    ("console-overview", "/overview", None, "as many messages", DESK, 1_100, False),
    ("console-topics", "/topics", None, "checkout", TELEPHONE, 844, True),
    ("console-messages", "/messages", {"name": CHECKOUT}, "order 2", DESK, 800, False),
)
# A standalone broker has no load report without it.
BALANCED: Final = {
    "loadBalancerEnabled": "true",
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
}
STUCK: Final = "persistent://public/default/checkout"
# Page, its values, and a text of it, before Apache Pulsar. The second and the fourth are taken.
BEFORE_PULSAR: Final = (
    ("/overview", None, "has stored a message and received it again"),
    ("/overview", None, "Direct memory"),
    ("/topic", {"name": STUCK}, "its client has as many messages as it has asked for"),
    ("/why", {"of": "public/default/checkout"}, "its client has as many messages as it has asked for"),
    ("/topics", None, "checkout"),
    ("/tenants", None, "Resource groups of the cluster"),
    ("/settings", None, "brokerServicePort"),
)


def main() -> None:
    """Take them."""
    program = find_browser()
    assert program is not None, "there is no Chromium on the PATH: apt-get install chromium"
    with tempfile.TemporaryDirectory() as name, browsing(program, Path(name) / "browser") as tab:
        if sys.argv[1:] == ["pulsar"]:
            _of_pulsar(Path(name), tab)
        else:
            _of_penstock(Path(name), tab)


def _of_penstock(directory: Path, tab: Page) -> None:
    with open_shop(directory, hostile=False) as shop:
        producer = shop.client.create_producer("persistent://shop/orders/checkout")
        window = Window(tab, shop.broker.admin_url)
        for file, page, values, text, width, height, dark in PICTURES:
            window.show(page, values, width=width, dark=dark)
            window.until_shown(text)
            for _ in range(300 if page == "/overview" else 0):
                producer.send(b"order")
                tab.evaluate("new Promise((done) => setTimeout(done, 30))")
            _take(tab, file, width, height)


def _of_pulsar(directory: Path, tab: Page) -> None:
    with _before_pulsar(directory) as proxy:
        window = Window(tab, proxy.admin_url)
        for number, (page, values, text) in enumerate(BEFORE_PULSAR):
            window.show(page, values)
            tab.until(f"document.body.innerText.includes({text!r})", within_s=120)
            sys.stdout.write(f"{page}: {text}\n")
            if number in {1, 3}:
                _take(tab, ("console-before-pulsar", "console-why-of-pulsar")[number // 3], DESK, 900)


@contextmanager
def _before_pulsar(directory: Path) -> Iterator[ProxyProcess]:
    """Yield a proxy before Apache Pulsar, one of whose consumers takes nothing."""
    log = directory / "proxy.log"
    with (
        PulsarProcess(directory / "pulsar", BALANCED) as peer,
        ProxyProcess(peer.url, ["--upstream-admin", peer.admin_url], log_path=log) as proxy,
    ):
        client = pulsar.Client(proxy.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        stuck = client.subscribe(STUCK, "stuck", receiver_queue_size=5)
        producer = client.create_producer(STUCK)
        for number in range(200):
            producer.send(b"order %d" % number)
        try:
            yield proxy
        finally:
            del stuck
            client.close()


def _take(tab: Page, file: str, width: int, height: int) -> None:
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = tab.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    (FIGURES / f"{file}.png").write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    main()

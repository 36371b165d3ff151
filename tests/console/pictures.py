# SPDX-License-Identifier: Apache-2.0
"""Takes the pictures of docs/guide/console.md: `python -m tests.console.pictures`."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import Final

from tests.console.shop import CHECKOUT, open_shop
from tests.console.window import DESK, TELEPHONE, Window
from tests.examples.browser import browsing, find_browser

FIGURES: Final = Path(__file__).parents[2] / "docs/figures"
# Name of the file, page, its values, a text of it, width, height, dark.
PICTURES: Final = (
    ("console-overview", "/overview", None, "as many messages", DESK, 1_100, False),
    ("console-topics", "/topics", None, "checkout", TELEPHONE, 844, True),
    ("console-messages", "/messages", {"name": CHECKOUT}, "order 2", DESK, 800, False),
)


def main() -> None:
    """Take them."""
    program = find_browser()
    assert program is not None, "there is no Chromium on the PATH: apt-get install chromium"
    with tempfile.TemporaryDirectory() as name, open_shop(Path(name), hostile=False) as shop:
        producer = shop.client.create_producer("persistent://shop/orders/checkout")
        with browsing(program, Path(name) / "browser") as tab:
            window = Window(tab, shop.broker.admin_url)
            for file, page, values, text, width, height, dark in PICTURES:
                window.show(page, values, width=width, dark=dark)
                window.until_shown(text)
                for _ in range(300 if page == "/overview" else 0):
                    producer.send(b"order")
                    tab.evaluate("new Promise((done) => setTimeout(done, 30))")
                clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
                shot = tab.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
                (FIGURES / f"{file}.png").write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The console in a browser, as its tests use it: pages by their address, buttons and fields by their names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.examples.browser import Page

DESK, TELEPHONE = 1280, 390
# Something that a page complains of: what it logs, what it throws, what its policy refuses, what was not loaded.
_COMPLAINTS: Final = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Network.loadingFailed")
# Elements that are seen. A dialog, while it is open, is all there is.
_SEEN: Final = """((selector, text) => {
  const root = document.querySelector("dialog[open]") ?? document;
  return [...root.querySelectorAll(selector)].find((one) =>
    one.checkVisibility() && (one.ariaLabel ?? one.innerText).trim().startsWith(text));
})"""


class Window:
    """One console."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url

    def show(
        self, page: str, values: Mapping[str, str] | None = None, *, width: int = DESK, dark: bool = False
    ) -> None:
        """Load a page of the console anew, with these values, and wait until its heading is there."""
        self.page.call("Page.navigate", url="about:blank")
        address = f"{page}?{urlencode(values)}" if values else page
        self.page.visit(f"{self.url}/#{address}", width=width, dark=dark)
        self.page.until("document.querySelector('h1') !== null")

    def text(self) -> str:
        """What is read in the window."""
        text: str = self.page.evaluate("(document.querySelector('dialog[open]') ?? document.body).innerText")
        return text

    def until_shown(self, text: str) -> None:
        """Wait until a text is read in the window."""
        what = "(document.querySelector('dialog[open]') ?? document.body).innerText"
        self.page.until(f"{what}.includes({json.dumps(text)})")

    def click(self, name: str, selector: str = "button, a, summary, label") -> None:
        """Click what has this name, once it is there."""
        found = f"{_SEEN}({json.dumps(selector)}, {json.dumps(name)})"
        self.page.until(f"{found} !== undefined && !{found}.disabled")
        self.page.evaluate(f"{found}.click()")

    def confirm(self, name: str) -> None:
        """Click a button of a dialog, once that is open: behind it others have names that begin like this."""
        self.click(name, "dialog[open] button")

    def type_into(self, name: str, text: str) -> None:
        """Replace what is in the field with this label."""
        self.page.until(f"{_SEEN}('label', {json.dumps(name)}) !== undefined")
        self.page.evaluate(f"{_SEEN}('label', {json.dumps(name)}).querySelector('input, textarea').select()")
        self.page.evaluate(f"{_SEEN}('label', {json.dumps(name)}).querySelector('input, textarea').focus()")
        self.page.call("Input.insertText", text=text)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press a key, as its user does."""
        common: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.page.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.page.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def complaints(self) -> list[dict[str, Any]]:
        """What the page has complained of since it was loaded. Requests that it has ended itself are none."""
        return [one for one in self.page.heard(*_COMPLAINTS) if not one.get("canceled")]

    def asked(self) -> set[str]:
        """The addresses of its requests."""
        return {one["request"]["url"] for one in self.page.heard("Network.requestWillBeSent")}

# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, spoken to in its own DevTools protocol over a pair of pipes.

Why: what a page looks like on a telephone only a browser knows. The protocol is JSON between zero bytes, so no library
is needed to speak it; and unlike the command line it can set the width to 390 pixels and hear complaints and requests.
Where: the tests of the demo's report, and of the console.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
FLAGS: Final = (
    "--headless",
    "--no-sandbox",  # tests may run as root, where Chromium refuses its sandbox
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
)
Message = dict[str, Any]


def find_browser() -> str | None:
    """The browser's program, if there is one on the PATH."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._numbers = count(1)
        self._unread = b""
        self._session: str | None = None
        self.events: list[Message] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> Message:
        """Ask for something and wait for the answer; events that come meanwhile are kept."""
        number = next(self._numbers)
        request: Message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            request["sessionId"] = self._session
        rest = json.dumps(request).encode() + b"\0"
        while rest:
            rest = rest[os.write(self._writer, rest) :]
        answer = self._until(lambda message: message.get("id") == number)
        assert "error" not in answer, answer
        result: Message = answer["result"]
        return result

    def open(self, path: Path, *, width: int, dark: bool = False) -> None:
        """Show a file in a window of so many pixels, and wait until it is there."""
        self.visit(path.as_uri(), width=width, dark=dark)

    def visit(self, url: str, *, width: int, dark: bool = False) -> None:
        """Load a page in a window of so many pixels, and wait until it is there."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=url)
        if not self.heard("Page.loadEventFired"):
            self._until(lambda message: message.get("method") == "Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:  # noqa: ANN401 -- whatever the script returns
        """The value of a piece of JavaScript; of a promise, what becomes of it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, condition: str, within_s: float = 30.0) -> None:
        """Wait until a piece of JavaScript is true; fails with the text of the page."""
        came = self.evaluate(
            f"""new Promise((tell) => {{
              const look = () => {{ if ({condition}) tell(true); else setTimeout(look, 30); }};
              setTimeout(() => tell(false), {within_s * 1_000:.0f});
              look();
            }})"""
        )
        assert came, f"never: {condition}\n{self.evaluate('document.body.innerText')}"

    def heard(self, *methods: str) -> list[Message]:
        """What happened since the page was opened, of these kinds."""
        return [event["params"] for event in self.events if event["method"] in methods]

    def _until(self, wanted: Any) -> Message:  # noqa: ANN401
        while True:
            message = self._read()
            if "method" in message:
                self.events.append(message)
            if wanted(message):
                return message

    def _read(self) -> Message:
        while b"\0" not in self._unread:
            data = os.read(self._reader, 1 << 20)
            assert data, "the browser is gone"
            self._unread += data
        text, _, self._unread = self._unread.partition(b"\0")
        message: Message = json.loads(text)
        return message


@contextmanager
def browsing(program: str, directory: Path) -> Iterator[Page]:
    """A browser with one tab, which keeps all its files in `directory`; gone at the end."""
    hear, tell = os.pipe(), os.pipe()
    # The browser reads from descriptor 3 and writes to 4; a shell puts the pipes there (dash knows only up to 9).
    command = ["bash", "-c", f'exec "$@" 3<&{tell[0]} 4>&{hear[1]}', "bash", program, *FLAGS]
    process = subprocess.Popen(
        [*command, f"--user-data-dir={directory}"],
        pass_fds=(tell[0], hear[1]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(directory)},
    )
    os.close(tell[0])
    os.close(hear[1])
    try:
        page = Page(hear[0], tell[1])
        yield page
        page.call("Target.getTargets")
    finally:
        os.close(tell[1])  # The browser ends when nobody can speak to it.
        process.wait(timeout=60)
        os.close(hear[0])

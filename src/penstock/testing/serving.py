# SPDX-License-Identifier: Apache-2.0
"""A Pulsar broker for the length of a `with` block, for notebooks, scripts and tests.

Why apart from the fixtures: who tries penstock in a notebook need not have pytest. Why imports are late: pytest loads
this module in every project that has penstock installed; the broker is imported for the first one that is started.
Where: the fixtures of `penstock.testing.broker`, `examples/spark.ipynb`, the guides.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.settings import Settings

# Small limits, enough for tests.
MEMORY_LIMIT_MB: Final = "512"
START_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """Service URLs of a running broker."""

    url: str
    admin_url: str


class BrokerThread:
    """One broker with a thread and an event loop of its own. Made by `serving`."""

    def __init__(self, settings: Settings, data_dir: Path) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._ready = threading.Event()
        self._serving: RunningBroker | None = None
        self._failed: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="penstock", daemon=True)

    def start(self) -> RunningBroker:
        """Start; returns when clients can connect. Raises the exception that prevented the start."""
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise TimeoutError(f"the broker was not ready within {START_TIMEOUT_S:g} s")
        if self._serving is None:
            assert self._failed is not None
            raise self._failed
        return self._serving

    def stop(self) -> None:
        """Stop cleanly and wait for it."""
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 -- raised by `start`
            self._failed = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from penstock import app  # noqa: PLC0415 -- see above

        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            serving = await app.start(self._settings, self._data_dir, stack)
            self._serving = RunningBroker(serving.url, serving.admin_url)
            self._ready.set()
            await self._stopping.wait()


@contextlib.contextmanager
def serving(
    given: Mapping[str, str] | None = None, *, data_dir: Path | None = None, own_process: bool = False
) -> Iterator[RunningBroker]:
    """Run a broker during a `with` block; yields its `url` and `admin_url`.

    Args:
        given: settings by key, as in a `broker.conf`; by default, ports are free ones.
        data_dir: its data directory, which is kept; None: a temporary directory.
        own_process: run it in a process of its own instead of a thread.

    Raises:
        ConfigurationError, BrokerDidNotStart: it could not start; the message says why.
    """
    from penstock import settings  # noqa: PLC0415 -- see above

    given = {"memoryLimitMB": MEMORY_LIMIT_MB, **(given or {})}
    with contextlib.ExitStack() as stack:
        where = data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-")))
        if own_process:
            config = where.with_name(f"{where.name}.conf")
            stack.callback(config.unlink, missing_ok=True)
            config.write_text("".join(f"{key}={value}\n" for key, value in given.items()), encoding="utf-8")
            log = where.with_name(f"{where.name}.log")
            if data_dir is None:
                stack.callback(log.unlink, missing_ok=True)
            process = stack.enter_context(BrokerProcess(where, ["--config", str(config)], log_path=log))
            yield RunningBroker(process.url, process.admin_url)
        else:
            thread = BrokerThread(
                settings.load(flags={"brokerServicePort": "0", "webServicePort": "0", **given}), where
            )
            stack.callback(thread.stop)
            yield thread.start()

# SPDX-License-Identifier: Apache-2.0
"""A Pulsar broker for tests: in anybody's project, after `pip install penstock`, `def test_x(pulsar_url)` works.

Why: a test that needs a broker should not need a container, a JVM or half a minute. One broker starts in a fraction of
a second and serves the whole test session; tests keep out of each other's way by topics of their own (`pulsar_topic`).
Why imports wait: pytest loads this module in every project that has penstock installed; the broker itself comes with
the first test that asks for one.
Where: pytest finds the fixtures by the entry point of the package; without pytest, `serving()` is a context manager.

The broker runs in a thread of the test process, on free ports of the loopback address, in a directory that is removed
afterwards. `--pulsar-broker=process`, or the ini option of that name, gives it a process of its own, which a crash of
the tests cannot take along and whose work does not share the interpreter with them. To change its settings, override
the fixture `pulsar_settings`:

    @pytest.fixture(scope="session")
    def pulsar_settings() -> dict[str, str]:
        return {"brokerDeduplicationEnabled": "true"}
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.settings import Settings

OPTION: Final = "pulsar_broker"
IN_PROCESS, OWN_PROCESS = "in-process", "process"
# What a test needs; a broker of its own machine would be given far more.
MEMORY_LIMIT_MB: Final = "512"
START_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """Where a broker that is ready may be reached."""

    url: str
    admin_url: str


class BrokerThread:
    """One broker on a thread and a loop of its own. Made by `serving`."""

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
        """Serve; returns when clients may connect. Raises what kept the broker from starting."""
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
            with contextlib.suppress(RuntimeError):  # it ended on its own
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 -- told to whoever waits for the start
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
    """Run a broker for the length of a `with` block; yields its `url` and `admin_url`.

    Args:
        given: settings by key, as in a `broker.conf`; ports are free ones unless given.
        data_dir: where it keeps everything, also afterwards; None: a directory that is removed.
        own_process: run it as a process of its own rather than in a thread of this one.

    Raises:
        ConfigurationError, BrokerDidNotStart: it could not start, and why.
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


# -- the fixtures ----------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the broker of the fixtures runs."""
    text = f"where the broker of the Pulsar fixtures runs: {IN_PROCESS} (a thread of the tests) or {OWN_PROCESS}"
    parser.getgroup("penstock").addoption(
        "--pulsar-broker", dest=OPTION, choices=(IN_PROCESS, OWN_PROCESS), default=None, help=text
    )
    parser.addini(OPTION, text, default=IN_PROCESS)


@pytest.fixture(scope="session")
def pulsar_settings() -> Mapping[str, str]:
    """Settings of the broker, by key; override it to change them."""
    return {}


@pytest.fixture(scope="session")
def pulsar_broker(request: pytest.FixtureRequest, pulsar_settings: Mapping[str, str]) -> Iterator[RunningBroker]:
    """A running broker that all tests of the session share: `url` for clients, `admin_url` for administration."""
    where = request.config.getoption(OPTION) or request.config.getini(OPTION)
    if where not in {IN_PROCESS, OWN_PROCESS}:
        raise pytest.UsageError(f"{OPTION}={where}: want {IN_PROCESS} or {OWN_PROCESS}")
    with serving(pulsar_settings, own_process=where == OWN_PROCESS) as broker:
        yield broker


@pytest.fixture(scope="session")
def pulsar_url(pulsar_broker: RunningBroker) -> str:
    """Where Pulsar clients connect: `pulsar.Client(pulsar_url)`."""
    return pulsar_broker.url


@pytest.fixture(scope="session")
def pulsar_admin_url(pulsar_broker: RunningBroker) -> str:
    """Where the admin port answers."""
    return pulsar_broker.admin_url


@pytest.fixture
def pulsar_topic() -> str:
    """The full name of a topic that no other test uses."""
    return f"persistent://public/default/test-{uuid.uuid4().hex}"

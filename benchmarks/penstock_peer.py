# SPDX-License-Identifier: Apache-2.0
"""`penstock serve` as a process of its own, started and stopped the way its peer is.

Where: all benchmarks of a running broker.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.process import Address, PeerError
from penstock.testing.process import BrokerDidNotStart, BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextmanager
def penstock(data: Path | None = None, environment: Mapping[str, str] | None = None) -> Iterator[Address]:
    """Start penstock, yield it when it serves, and stop it.

    Args:
        data: the data directory; a second start there finds what the first one stored. None: one of its own that is
            removed afterwards.
        environment: settings on top of this process's own environment, e.g. PENSTOCK_QUEUED_MAX_REQUEST_BYTES.

    Raises:
        PeerError: the broker did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-peer-") as scratch:
        home = data or Path(scratch) / "data"
        broker = BrokerProcess(home)
        started_s = time.monotonic()
        try:
            with changed_environment(environment or {}):
                broker.start()
        except BrokerDidNotStart as error:
            raise PeerError(str(error)) from error
        with broker:
            yield Address(
                port=broker.port, admin_port=broker.admin_port, pid=broker.pid, data=home, started_s=started_s
            )


@contextmanager
def changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Let processes that are started meanwhile inherit some changed variables."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

# SPDX-License-Identifier: Apache-2.0
"""Brokers as processes of their own, started and stopped in the same way: `penstock serve`, and its peer by name.

Where: all benchmarks of a running broker.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from benchmarks.process import Address, PeerError
from benchmarks.pulsar_peer import pulsar
from benchmarks.report import PEER, PENSTOCK
from penstock.testing.process import BrokerDidNotStart, BrokerProcess

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager


@contextmanager
def penstock(
    data: Path | None = None, *, settings: Mapping[str, str] = MappingProxyType({}), arguments: Sequence[str] = ()
) -> Iterator[Address]:
    """Start penstock, yield it when it serves, and stop it.

    Args:
        data: the data directory; a second start there finds what the first one stored. None: one of its own that is
            removed afterwards.
        settings: what differs from the defaults, as in a configuration file.
        arguments: of `penstock serve`.

    Raises:
        PeerError: the broker did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-peer-") as scratch:
        home, file = data or Path(scratch) / "data", Path(scratch) / "broker.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        broker = BrokerProcess(home, ["--config", str(file), *arguments])
        started_s = time.monotonic()
        try:
            broker.start()
        except BrokerDidNotStart as error:
            raise PeerError(str(error)) from error
        with broker:
            yield Address(
                port=broker.port, admin_port=broker.admin_port, pid=broker.pid, data=home, started_s=started_s
            )


BROKERS: Final[Mapping[str, Callable[..., AbstractContextManager[Address]]]] = {PENSTOCK: penstock, PEER: pulsar}


def add_peer_option(parser: ArgumentParser) -> None:
    """Let the command line name a peer."""
    parser.add_argument("--peer", choices=[PEER], help="measure this broker in the same run")


def chosen(options: Namespace) -> list[str]:
    """Penstock, and the peer if one was named."""
    return [PENSTOCK, options.peer] if options.peer else [PENSTOCK]

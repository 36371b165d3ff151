# SPDX-License-Identifier: Apache-2.0
"""The checks of `penstock doctor URL`: what a running broker says of itself, penstock's or Apache Pulsar's.

Where: `doctor` calls `cluster`.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

from penstock import __version__
from penstock.cli.exits import CommandFailed, Exit
from penstock.cli.findings import Finding
from penstock.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.cli.rest import Rest

_VERSION: Final = "/admin/v2/brokers/version"
_HEALTH: Final = "/admin/v2/brokers/health"
# The header has whole seconds, and both ways take time.
_CLOCK_TOLERANCE_MS: Final = 30_000
_DISK_LOW_RATIO: Final = 0.05
_DISK: Final = re.compile(r"^penstock_disk_(free|size)_bytes(?:\{[^}]*\})? (\S+)", re.MULTILINE)


def cluster(rest: Rest, *, wall_ms: int) -> Iterator[Finding]:
    """Yield what is wrong. Args: wall_ms: the time now. Raises CommandFailed: it does not answer, or refuses."""
    answer = rest.ask("GET", _VERSION)
    version = str(answer.value()).strip('"').removesuffix("-penstock")
    if version != __version__:
        yield Finding("version-differs", f"the broker has version {version}, and this command {__version__}")
    if stamped := answer.headers.get("date"):
        apart = round(wall_ms - parsedate_to_datetime(stamped).timestamp() * 1_000)
        if abs(apart) > _CLOCK_TOLERANCE_MS:
            behind = "ahead of" if apart < 0 else "behind"
            yield Finding("clock-differs", f"the broker's clock is {abs(apart) / 1_000:,.0f} s {behind} this machine's")
    yield from _health(rest)
    yield from _disk(rest)


def _health(rest: Rest) -> Iterator[Finding]:
    try:
        health = rest.get("/healthz")
    except CommandFailed as error:
        if error.status != Exit.NOT_FOUND:
            yield Finding("cluster-failing", str(error))
            return
        health = None
    if isinstance(health, dict):
        yield from (Finding("cluster-degraded", str(one)) for one in health.get("problems", []))
        return
    try:
        rest.get(_HEALTH)  # Apache Pulsar publishes a message and reads it.
    except CommandFailed as error:
        if error.status in {Exit.NOT_ALLOWED, Exit.NO_ANSWER}:
            raise
        yield Finding("cluster-failing", str(error))


def _disk(rest: Rest) -> Iterator[Finding]:
    try:
        metrics = str(rest.ask("GET", "/metrics").body, "utf-8", "replace")
    except CommandFailed:
        return  # Others keep them on another port, or from us.
    disk = {name: float(value) for name, value in _DISK.findall(metrics)}
    if {"free", "size"} <= disk.keys() and disk["free"] < disk["size"] * _DISK_LOW_RATIO:
        what = f"the broker's disk has {disk['free'] / MIB:,.0f} of {disk['size'] / MIB:,.0f} MiB free"
        yield Finding("disk-nearly-full", what)

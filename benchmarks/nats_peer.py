# SPDX-License-Identifier: Apache-2.0
"""A real NATS server with JetStream on this machine, to measure against.

Why: a broker in Go that is known for its speed. It answers a publisher before its files are synced, every two minutes
by default; told so, it syncs them before each answer, as penstock does. Both are measured.
Where: `run` with `--peer nats`. By hand: `python -m benchmarks.nats_peer` keeps one up until Ctrl-C.

A `nats-server` on the PATH is used if it is new enough. Else Go builds one the first time, in minutes, and it is kept
in `~/.cache/penstock-peer`, or where PENSTOCK_PEER_CACHE says.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from benchmarks.process import Address, PeerError, accepts, cache_of, free_port, stop, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION: Final = "2.15.2"
MODULE: Final = f"github.com/nats-io/nats-server/v2@v{VERSION}"
BUILD_TIMEOUT_S: Final = 1_800.0
# Older ones do not know the settings below.
OLDEST: Final = (2, 11)
# A window of entries of 128 KiB must fit a stream's queue, whose default of 128 MB would refuse some.
CONFIGURATION: Final = """listen: 127.0.0.1:{port}
log_file: "{log}"
jetstream {{
  store_dir: "{store}"
  max_buffered_size: 512MB
{more}}}
"""
SYNC_ALWAYS: Final = "  sync_interval: always\n"


@contextmanager
def nats(data: Path, *, sync: bool = False) -> Iterator[Address]:
    """Start the server on a data directory, yield it when it serves, and stop it.

    Args:
        data: a second start there finds what the first one stored.
        sync: whether each message is synced before its receipt.

    Raises:
        PeerError: it is not there and cannot be built, or did not come up.
    """
    server, port, log = find_server(), free_port(), data / "server.log"
    data.mkdir(exist_ok=True)
    configuration = data / "server.conf"
    configuration.write_text(
        CONFIGURATION.format(port=port, log=log, store=data / "streams", more=SYNC_ALWAYS if sync else "")
    )
    started_s = time.monotonic()
    with (data / "stdout.log").open("wb") as output:
        process = subprocess.Popen(
            [server, "-c", configuration], stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=data
        )
    try:
        wait_for(process, lambda: accepts(port), "NATS", (log, data / "stdout.log"))
        yield Address(port=port, admin_port=0, pid=process.pid, data=data, started_s=started_s)
    finally:
        stop(process)


def find_server() -> str:
    """Where the server is, built the first time if there is none. Raises PeerError."""
    kept = cache_of(f"nats-{VERSION}") / "nats-server"
    for found in (shutil.which("nats-server"), shutil.which(kept)):
        if found is not None and version_of(found) >= OLDEST:
            return found
    go = shutil.which("go")
    if go is None:
        raise PeerError(
            "NATS is built by Go the first time: install go (1.25 or later), or put nats-server 2.11 on the PATH"
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    try:
        build = subprocess.run(
            [go, "install", MODULE],
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_TIMEOUT_S,
            env={**os.environ, "GOBIN": str(kept.parent)},
        )
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"Go did not build {MODULE} within {BUILD_TIMEOUT_S:.0f} s") from error
    if build.returncode:
        raise PeerError(f"Go could not build {MODULE}:\n{build.stderr[-2000:]}")
    return str(kept)


def version_of(server: str) -> tuple[int, int]:
    """The version that a server says it has, without its last part; (0, 0) if it says none."""
    said = subprocess.run([server, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"v(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def main() -> None:
    """Keep one server up until Ctrl-C or SIGTERM, and print where it is as one line of JSON."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with TemporaryDirectory(prefix="nats-peer-") as data, suppress(KeyboardInterrupt), nats(Path(data)) as address:
        print(json.dumps({"port": address.port, "pid": address.pid}), flush=True)
        signal.pause()


if __name__ == "__main__":
    main()

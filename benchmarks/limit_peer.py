# SPDX-License-Identifier: Apache-2.0
"""The machine itself as a peer: a process that moves the bytes of a load, and does nothing else with them.

Why: a ratio to another broker does not say how much is left. What this process reaches, no broker exceeds: each byte
goes through the loopback interface once each way, and to the disk with as few writes and syncs as penstock could have.
Where: `run` with `--peer limit` starts it; `limit_generator` is its client. The first line of a connection is JSON: the
`role` of the process, and what that needs. The roles:

- `take`: take entries, and answer each with as many bytes as a receipt has.
- `echo`: send back what comes, as to a consumer.
- `sync`: write each entry and sync it before it is answered, one by one.
- `write`: write groups and sync each for some seconds, over a file that is there already; then say how many bytes.
- `copy`: the same in memory.
- `fill`: store so many bytes; then say how many.
- `give`: send what is stored, again and again, without it passing through this process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.process import Address, PeerError, stop
from penstock.storage.limits import LogLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Asked = Mapping[str, Any]

REPOSITORY: Final = Path(__file__).resolve().parent.parent
# As many bytes as a receipt of penstock has, about.
RECEIPT: Final = bytes(40)
READ_BYTES: Final = 1024 * 1024
LINE_BYTES_MAX: Final = 4096
# Segments of the log are recycled, so that the disk need not find room for what is written.
SEGMENT_BYTES: Final = LogLimits().segment_bytes


@contextmanager
def machine(data: Path) -> Iterator[Address]:
    """Start the process, yield where it is, and stop it. Raises PeerError."""
    data.mkdir(exist_ok=True)
    started_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.limit_peer", str(data)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
    )
    try:
        assert process.stdout is not None, "it is a pipe"
        line = process.stdout.readline()
        if not line:
            raise PeerError(f"the process of --peer limit ended with {process.wait()}")
        yield Address(port=int(line), admin_port=0, pid=process.pid, data=data, started_s=started_s)
    finally:
        stop(process)
        if process.stdout is not None:
            process.stdout.close()


def take(client: socket.socket, asked: Asked, _folder: Path) -> None:
    """Answer entries."""
    buffer, came, answered = memoryview(bytearray(READ_BYTES)), 0, 0
    while nbytes := client.recv_into(buffer):
        came += nbytes
        due = came // asked["entry_bytes"] - answered
        answered += due
        client.sendall(RECEIPT * due)


def echo(client: socket.socket, _asked: Asked, _folder: Path) -> None:
    """Send back."""
    buffer = memoryview(bytearray(READ_BYTES))
    while nbytes := client.recv_into(buffer):
        client.sendall(buffer[:nbytes])


def sync(client: socket.socket, asked: Asked, folder: Path) -> None:
    """Write and sync entries one by one."""
    buffer, at = memoryview(bytearray(asked["entry_bytes"])), 0
    prepare(folder)
    with (folder / "segment").open("r+b", buffering=0) as file:
        while client.recv_into(buffer, len(buffer), socket.MSG_WAITALL) == len(buffer):
            os.pwrite(file.fileno(), buffer, at)
            os.fdatasync(file.fileno())
            at = (at + len(buffer)) % (SEGMENT_BYTES - len(buffer))
            client.sendall(RECEIPT)


def write(client: socket.socket, asked: Asked, folder: Path) -> None:
    """Write groups, and sync each."""
    group = memoryview(random.Random(1).randbytes(asked["group_bytes"]))
    prepare(folder)
    with (folder / "segment").open("r+b", buffering=0) as file:
        at = 0

        def step() -> None:
            nonlocal at
            os.pwrite(file.fileno(), group, at)
            os.fdatasync(file.fileno())
            at = (at + len(group)) % (SEGMENT_BYTES - len(group))

        repeat(client, step, len(group), asked["seconds"])


def copy(client: socket.socket, asked: Asked, _folder: Path) -> None:
    """Copy groups in memory, from and to as much as a segment has."""
    group_bytes = asked["group_bytes"]
    source, target, at = memoryview(bytes(SEGMENT_BYTES)), memoryview(bytearray(SEGMENT_BYTES)), 0

    def step() -> None:
        nonlocal at
        target[at : at + group_bytes] = source[at : at + group_bytes]
        at = (at + group_bytes) % (SEGMENT_BYTES - group_bytes)

    repeat(client, step, group_bytes, asked["seconds"])


def repeat(client: socket.socket, step: Callable[[], None], nbytes: int, seconds: float) -> None:
    """Take steps for some seconds, and say how many bytes they moved in how many seconds."""
    began_s, steps = time.monotonic(), 0
    while not steps or time.monotonic() - began_s < seconds:
        step()
        steps += 1
    client.sendall(json.dumps({"bytes": steps * nbytes, "seconds": time.monotonic() - began_s}).encode() + b"\n")


def prepare(folder: Path) -> None:
    """Write the segment once, so that all of it has a place on the disk."""
    path = folder / "segment"
    if not path.exists():
        store(path, SEGMENT_BYTES)


def store(path: Path, nbytes: int) -> None:
    """Write so many bytes to a new file and sync them."""
    piece = random.Random(1).randbytes(READ_BYTES)
    with path.open("wb", buffering=0) as file:
        for at in range(0, nbytes, READ_BYTES):
            file.write(piece[: min(READ_BYTES, nbytes - at)])
        os.fsync(file.fileno())


def fill(client: socket.socket, asked: Asked, folder: Path) -> None:
    """Store a backlog."""
    store(folder / "backlog", asked["bytes"])
    client.sendall(json.dumps({"bytes": asked["bytes"]}).encode() + b"\n")


def give(client: socket.socket, _asked: Asked, folder: Path) -> None:
    """Send the backlog until the client has enough."""
    with (folder / "backlog").open("rb") as file:
        at, end = 0, os.fstat(file.fileno()).st_size
        while end:
            at = (at + os.sendfile(client.fileno(), file.fileno(), at, min(READ_BYTES, end - at))) % end


ROLES: Final[Mapping[str, Callable[[socket.socket, Asked, Path], None]]] = {
    role.__name__: role for role in (take, echo, sync, write, copy, fill, give)
}


def main() -> None:
    """Serve one connection after the other until SIGTERM."""
    parser = argparse.ArgumentParser(description="Move bytes, as the limit of what any broker reaches.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            client, _ = server.accept()
            # Clients of "take", "echo" and "give" end by closing.
            with client, suppress(ConnectionError):
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line = bytearray()
                while not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX and (byte := client.recv(1)):
                    line += byte
                if line.endswith(b"\n"):
                    asked = json.loads(line)
                    ROLES[asked["role"]](client, asked, folder)


if __name__ == "__main__":
    main()

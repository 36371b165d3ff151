# SPDX-License-Identifier: Apache-2.0
"""A process that is no broker, and tries every way to the sockets between brokers. It has the standard library only.

Where: `test_intruders.py` runs it as several users and in several namespaces. It reads from standard input what to try,
as JSON, and prints what it was answered.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys

ANSWER_S = 2.0
ANSWER_BYTES = 1 << 16


def names_of(inodes: set[int]) -> list[str]:
    """The names of Unix sockets that this process sees, of those with these inodes."""
    with open("/proc/net/unix", encoding="utf-8") as file:  # noqa: PTH123 -- as simple as can be
        rows = [line.split() for line in file][1:]
    return [row[7] for row in rows if len(row) > 7 and int(row[6]) in inodes]


def asked(name: str, request: bytes) -> bytes:
    """What the socket of this name answers to a request; nothing, if it cannot be reached."""
    address = f"\0{name[1:]}" if name.startswith("@") else name
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(ANSWER_S)
        answer = b""
        with contextlib.suppress(OSError):
            sock.connect(address)
            sock.sendall(request)
            while len(answer) < ANSWER_BYTES and (piece := sock.recv(ANSWER_BYTES)):
                answer += piece
        return answer


def opened(pid: int) -> list[str]:
    """The sockets of another process that can be opened by their descriptors in /proc."""
    found = []
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            path = f"/proc/{pid}/fd/{descriptor}"
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith("socket:"):  # noqa: PTH115
                    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
                    found.append(path)
    return found


def main() -> None:
    """Try everything."""
    wanted = json.load(sys.stdin)
    names = names_of(set(wanted["inodes"]))
    answers = [asked(name, bytes.fromhex(each)).hex() for name in names for each in wanted["requests"]]
    found = [one for pid in wanted["pids"] for one in opened(pid)]
    print(json.dumps({"names": names, "answers": answers, "opened": found}))


if __name__ == "__main__":
    main()

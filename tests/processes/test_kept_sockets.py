# SPDX-License-Identifier: Apache-2.0
"""Listening sockets for the program that replaces this one."""

from __future__ import annotations

import json
import os
import socket

import pytest

from penstock.processes.sockets import VARIABLE, close_rest, keep, take

pytestmark = pytest.mark.real


@pytest.fixture
def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_what_was_kept_is_taken_once_by_its_name_and_accepts_who_connected_meanwhile(listening: socket.socket) -> None:
    address = listening.getsockname()
    with listening:
        keep({"clients": listening})
    with socket.create_connection(address) as client:
        assert take("web") is None
        sock = take("clients")
        assert sock is not None
        assert take("clients") is None
        assert VARIABLE not in os.environ
        with sock, sock.accept()[0] as accepted:
            assert accepted.getpeername() == client.getsockname()
            assert not os.get_inheritable(sock.fileno())


def test_what_nobody_takes_is_closed(listening: socket.socket) -> None:
    address = listening.getsockname()
    with listening:
        keep({"clients": listening})
    close_rest()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_another_process_that_inherits_the_variable_takes_nothing(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening:
        monkeypatch.setenv(VARIABLE, json.dumps({"pid": os.getpid() + 1, "clients": listening.fileno()}))
        assert take("clients") is None
        close_rest()
        assert listening.fileno() >= 0
        assert listening.getsockname()


def test_sockets_of_several_brokers_are_kept_together(listening: socket.socket) -> None:
    with listening, socket.create_server(("127.0.0.1", 0)) as other:
        keep({"0": listening})
        keep({"1": other})
    for name, sock in (("0", take("0")), ("1", take("1"))):
        assert sock is not None, name
        sock.close()

# SPDX-License-Identifier: Apache-2.0
"""The handshake: CONNECT, and AUTH_RESPONSE to what we asked.

Where: the session's table of handlers leads here; until the handshake is done, nothing else is carried out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock import __version__
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.session import Handler, Session

SERVER_VERSION: Final = f"Pulsar Server{__version__}-penstock"
PROTOCOL_VERSION_MAX: Final = 21


def _on_connect(session: Session, body: codec.CommandConnect) -> None:
    session.connected = True
    session.client_version = body.client_version
    session.protocol_version = min(PROTOCOL_VERSION_MAX, body.protocol_version)
    limits = session.broker.limits
    session.reply(codec.connected(SERVER_VERSION, session.protocol_version, limits.message_bytes_max))


def _on_auth_response(_session: Session, _body: object) -> None:
    """Nothing was asked; an answer to nothing is ignored."""


HANDLERS: Final[Mapping[int, Handler]] = {
    codec.BaseCommand.CONNECT: _on_connect,
    codec.BaseCommand.AUTH_RESPONSE: _on_auth_response,
}

# SPDX-License-Identifier: Apache-2.0
"""What a peer can do to the protocol itself: after it, nothing further on that connection can be trusted.

Where: raised while `FrameReader` cuts and decodes frames; whoever owns the socket closes it and logs the message.
"""

from __future__ import annotations

from penstock.core.errors import PenstockError


class ProtocolError(PenstockError):
    """The bytes are not Pulsar's protocol, or break one of its limits; close the connection."""

    http_status = 400

# SPDX-License-Identifier: Apache-2.0
"""Protocol errors: after one, nothing on that connection can be trusted.

Where: raised while `FrameReader` cuts and decodes frames; the owner of the socket closes it and logs the message.
"""

from __future__ import annotations

from penstock.core.errors import PenstockError


class ProtocolError(PenstockError):
    """The bytes are not Pulsar's protocol, or exceed one of its limits; close the connection."""

    http_status = 400

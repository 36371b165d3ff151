# SPDX-License-Identifier: Apache-2.0
"""A role as the text of a header: any string of Python survives unchanged, and no other text is accepted.

Why: values of headers lose spaces at their ends, and have no characters beyond Latin-1. A role that changes on its way
is another role. Where: requests that one process passes on to another for a caller.
"""

from __future__ import annotations

import base64


def encode_role(role: str) -> str:
    """Return the role as letters, digits, `-` and `_`."""
    return base64.urlsafe_b64encode(role.encode("utf-8", "surrogatepass")).decode("ascii").rstrip("=")


def decode_role(text: str) -> str:
    """Return the role that `encode_role` has encoded. Raises ValueError for a text that is not its result."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    role = data.decode("utf-8", "surrogatepass")
    if encode_role(role) != text:
        raise ValueError(f"{text!r} is not a role as it is encoded in headers")
    return role

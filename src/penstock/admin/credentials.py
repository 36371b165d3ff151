# SPDX-License-Identifier: Apache-2.0
"""The credentials of a request to an admin port.

In order: those of the provider that the header X-Pulsar-Auth-Method-Name names; `Authorization: Bearer` or `Basic`; the
certificate of the TLS handshake; none. Where: the checks of routes (`access`), and a proxy's admin port.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final

from penstock.authentication.credentials import Credentials
from penstock.core.errors import AuthenticationFailed

if TYPE_CHECKING:
    from starlette.requests import Request

# The key of a client's certificate in the state of a request.
CERTIFICATE: Final = "client_certificate"
METHOD_HEADER: Final = "x-pulsar-auth-method-name"
ORIGINAL_HEADER: Final = "x-original-principal"
_SCHEMES: Final = {"bearer": "token", "basic": "basic"}


def credentials_of(request: Request) -> Credentials:
    """Return the credentials of a request. Raises AuthenticationFailed for unreadable ones."""
    certificate = getattr(request.state, CERTIFICATE, None)
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    method = request.headers.get(METHOD_HEADER) or _SCHEMES.get(scheme.lower())
    if method is None:
        if scheme:
            raise AuthenticationFailed("the Authorization header has a scheme other than Bearer and Basic")
        method = "tls" if certificate else "none"
    data = value.strip().encode("latin-1")
    if method == "basic":
        try:
            data = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise AuthenticationFailed("the Authorization header holds no base64") from None
    return Credentials(method, data, certificate)

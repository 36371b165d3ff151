# SPDX-License-Identifier: Apache-2.0
"""The provider `tls`: the certificate that a client showed in its TLS handshake names a role.

Where: `authentication` makes it when `tls` is among the providers. That the certificate is signed by somebody we trust
is TLS's business (`net.tls`): what it did not verify does not come here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.access.credentials import Credentials, Identity
from penstock.core.errors import AuthenticationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class CertificateProvider:
    """The role is the certificate's common name."""

    slow = False

    def identify(self, credentials: Credentials, now_ms: int) -> Identity:  # noqa: ARG002 - TLS saw to the dates
        """See `Provider.identify`."""
        if not credentials.certificate:
            raise AuthenticationFailed("the client showed no certificate that tlsTrustCertsFilePath vouches for")
        role = _common_name(credentials.certificate)
        if not role:
            raise AuthenticationFailed("the client's certificate has no common name")
        return Identity(role)


def _common_name(certificate: Mapping[str, Any]) -> str | None:
    """The most specific one, which stands last."""
    found = None
    for parts in certificate.get("subject", ()):
        for name, value in parts:
            if name == "commonName":
                found = value
    return found

# SPDX-License-Identifier: Apache-2.0
"""The provider `tls`: the role is the common name of the client's TLS certificate.

Where: `authentication` makes it if `tls` is enabled. TLS (`net.tls`) verifies the certificate; an unverified one never
gets here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.authentication.credentials import Credentials, Identity
from penstock.core.errors import AuthenticationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class CertificateProvider:
    """The role is the certificate's common name."""

    slow = False

    def identify(self, credentials: Credentials, now_ms: int) -> Identity:  # noqa: ARG002 - TLS saw to the dates
        if not credentials.certificate:
            raise AuthenticationFailed("the client showed no certificate that tlsTrustCertsFilePath vouches for")
        role = _common_name(credentials.certificate)
        if not role:
            raise AuthenticationFailed("the client's certificate has no common name")
        return Identity(role)


def _common_name(certificate: Mapping[str, Any]) -> str | None:
    """The last common name, which is the most specific one."""
    found = None
    for parts in certificate.get("subject", ()):
        for name, value in parts:
            if name == "commonName":
                found = value
    return found

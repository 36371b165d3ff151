# SPDX-License-Identifier: Apache-2.0
"""The enabled authentication providers, by method name.

Why imported late: keys, tokens and hashes take a tenth of a second and 15 MiB to import, which a broker without
authentication saves. It does not need the packages either: they are the extra `penstock[auth]`.
Where: app makes one if authentication is enabled, and calls `reload` on SIGHUP; `AccessControl` uses it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.authentication.credentials import Credentials, Identity
from penstock.core.errors import AuthenticationFailed, ConfigurationError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from penstock.authentication.credentials import Provider, ProviderOptions


# -- the provider `tls`: the role is the common name of the client's TLS certificate -----------------------------------


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


log = logging.getLogger(__name__)


class Authenticator:
    """Providers by method. The table is replaced as a whole, so any thread may read it."""

    def __init__(self, options: ProviderOptions) -> None:
        """Read keys and users. Raises ConfigurationError."""
        self._options = options
        self._providers = _providers(options)

    def provider(self, method: str) -> Provider | None:
        return self._providers.get(method)

    def reload(self) -> None:
        """Read keys and users again, for clients that connect from now on; on an error, everything stays unchanged."""
        try:
            self._providers = _providers(self._options)
        except PenstockError as error:
            log.error("keys and users stay as they were: %s", error)  # noqa: TRY400 -- the message is enough
        else:
            log.info("keys and users were read again")


def _providers(options: ProviderOptions) -> Mapping[str, Provider]:
    """Import and make the enabled providers only. Raises ConfigurationError."""
    providers: dict[str, Provider] = {}
    try:
        if "token" in options.methods:
            from penstock.authentication.token import TokenProvider  # noqa: PLC0415 -- see above

            providers["token"] = TokenProvider(options)
        if "basic" in options.methods:
            from penstock.authentication.basic import BasicProvider  # noqa: PLC0415

            providers["basic"] = BasicProvider(options)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"authenticationProviders needs the package {error.name}, which is not installed: "
            f"pip install 'penstock[auth]'"
        ) from error
    if "tls" in options.methods:
        providers["tls"] = CertificateProvider()
    return providers

# SPDX-License-Identifier: Apache-2.0
"""Converts the security settings for the parts that use them.

Where: app passes the results to TLS ports, to the broker's limits and to the authenticator. Keys and passwords are not
read here, only the names of their files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.authentication.options import ProviderOptions
from penstock.broker.access.rules import AccessRules
from penstock.core.units import NS_PER_S
from penstock.net.tls_context import TlsOptions
from penstock.settings.rows.security import PROVIDER_BASIC, PROVIDER_TLS, PROVIDER_TOKEN

if TYPE_CHECKING:
    from penstock.settings.model import Settings

_METHODS: Final = {PROVIDER_TOKEN: "token", PROVIDER_TLS: "tls", PROVIDER_BASIC: "basic"}


def access_rules(settings: Settings) -> AccessRules:
    """Return the roles and authorization rules."""
    return AccessRules(
        authorizing=settings.authorization_enabled,
        super_user_roles=frozenset(settings.super_user_roles),
        proxy_roles=frozenset(settings.proxy_roles),
        anonymous_role=settings.anonymous_user_role,
        allow_wildcards=settings.authorization_allow_wildcards_matching,
        authenticate_original=settings.authenticate_original_auth_data,
        refresh_check_ns=settings.authentication_refresh_check_s * NS_PER_S,
    )


def provider_options(settings: Settings) -> ProviderOptions | None:
    """Return how clients authenticate; None without authentication."""
    if not settings.authentication_enabled:
        return None
    return ProviderOptions(
        methods=frozenset(_METHODS[name] for name in settings.authentication_providers),
        token_secret_key=settings.token_secret_key,
        token_public_key=settings.token_public_key,
        token_public_alg=settings.token_public_alg,
        token_auth_claim=settings.token_auth_claim,
        token_audience_claim=settings.token_audience_claim,
        token_audience=settings.token_audience,
        token_clock_skew_s=settings.token_allowed_clock_skew_s,
        basic_users=settings.basic_auth_conf,
    )


def tls_options(settings: Settings) -> TlsOptions | None:
    """Return the options of TLS ports; None without a certificate.

    A certificate that names a role must be trusted: with the TLS provider, `tlsAllowInsecureConnection` has no effect.
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    names_roles = settings.authentication_enabled and PROVIDER_TLS in settings.authentication_providers
    return TlsOptions(
        certificate=settings.tls_certificate,
        key=settings.tls_key,
        trust=settings.tls_trust_certs,
        require_client_certificate=settings.tls_require_client_cert,
        allow_untrusted=settings.tls_allow_insecure and not names_roles,
        protocols=settings.tls_protocols,
        ciphers=settings.tls_ciphers,
    )

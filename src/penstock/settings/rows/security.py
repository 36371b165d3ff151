# SPDX-License-Identifier: Apache-2.0
"""Rows on who a client is and what it may do. `model.Settings` joins the groups; `rules` checks them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.core.setting import choice, names, names_among, row, switch, whole

_PACKAGE: Final = "org.apache.pulsar.broker."
PROVIDER_TOKEN: Final = f"{_PACKAGE}authentication.AuthenticationProviderToken"
PROVIDER_TLS: Final = f"{_PACKAGE}authentication.AuthenticationProviderTls"
PROVIDER_BASIC: Final = f"{_PACKAGE}authentication.AuthenticationProviderBasic"
AUTHORIZATION_PROVIDER: Final = f"{_PACKAGE}authorization.PulsarAuthorizationProvider"

TOKEN_ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "HS256", "HS384", "HS512",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Authentication:
    """Authentication: who a client is."""

    authentication_enabled: bool = row(
        "authenticationEnabled", switch, False, "Whether clients must show who they are."
    )
    authentication_providers: tuple[str, ...] = row(
        "authenticationProviders",
        names_among(PROVIDER_TOKEN, PROVIDER_TLS, PROVIDER_BASIC),
        (),
        "How they may show it, by the names of Pulsar's classes: AuthenticationProviderToken, …Tls, …Basic.",
    )
    authentication_refresh_check_s: int = row(
        "authenticationRefreshCheckSeconds",
        whole(1),
        60,
        "How often it is checked whether what clients showed has expired.",
    )
    authenticate_original_auth_data: bool = row(
        "authenticateOriginalAuthData",
        switch,
        False,
        "Whether a proxy must hand on what its client showed, to be checked again here.",
    )
    anonymous_user_role: str | None = row(
        "anonymousUserRole", str, "<none>", "Role of those who show nothing; not set: they are turned away."
    )
    token_secret_key: str | None = row(
        "tokenSecretKey",
        str,
        "<none>",
        "Key that signs tokens (HS256 and its like): `file:///…`, or `data:;base64,…`.",
        secret=True,
    )
    token_public_key: str | None = row(
        "tokenPublicKey",
        str,
        "<none>",
        "Public key that proves who signed tokens: `file:///…`, or `data:;base64,…`.",
    )
    token_public_alg: str = row(
        "tokenPublicAlg", choice(*TOKEN_ALGORITHMS), "RS256", "The algorithm that tokenPublicKey is for."
    )
    token_auth_claim: str = row("tokenAuthClaim", str, "sub", "The claim of a token that names the role.")
    token_audience_claim: str | None = row(
        "tokenAudienceClaim", str, "<none>", "The claim that names for whom a token was made; not set: not looked at."
    )
    token_audience: str | None = row("tokenAudience", str, "<none>", "What that claim must name: this broker.")
    token_allowed_clock_skew_s: int = row(
        "tokenAllowedClockSkewSeconds", whole(0), 0, "How far the clock of whoever made a token may be off."
    )
    basic_auth_conf: str | None = row(
        "basicAuthConf",
        str,
        "<none>",
        "Users with hashed passwords, as htpasswd writes them: a file, `file:///…` or `data:;base64,…`.",
        secret=True,
    )


@dataclass(frozen=True, kw_only=True)
class Authorization:
    """Authorization: what a client may do."""

    authorization_enabled: bool = row(
        "authorizationEnabled", switch, False, "Whether it is checked what a role may do."
    )
    authorization_provider: str = row(
        "authorizationProvider",
        choice(AUTHORIZATION_PROVIDER),
        AUTHORIZATION_PROVIDER,
        "How it is checked: grants to roles on namespaces and topics. There is no other.",
    )
    authorization_allow_wildcards_matching: bool = row(
        "authorizationAllowWildcardsMatching",
        switch,
        False,
        "Whether a grant to `name*` or `*name` holds for all roles that begin or end so.",
    )
    super_user_roles: tuple[str, ...] = row("superUserRoles", names, (), "Roles that may do everything.", dynamic=True)
    proxy_roles: tuple[str, ...] = row(
        "proxyRoles", names, (), "Roles of proxies: what they ask must be allowed to them and to their client."
    )

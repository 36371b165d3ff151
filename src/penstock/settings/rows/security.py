# SPDX-License-Identifier: Apache-2.0
"""Settings of authentication and authorization. `model.Settings` joins the groups; `rules` checks them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.core.setting import choice, dynamic, names, names_among, row, switch, whole

_PACKAGE: Final = "org.apache.pulsar.broker."
PROVIDER_TOKEN: Final = f"{_PACKAGE}authentication.AuthenticationProviderToken"
PROVIDER_TLS: Final = f"{_PACKAGE}authentication.AuthenticationProviderTls"
PROVIDER_BASIC: Final = f"{_PACKAGE}authentication.AuthenticationProviderBasic"
AUTHORIZATION_PROVIDER: Final = f"{_PACKAGE}authorization.PulsarAuthorizationProvider"

TOKEN_ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "HS256", "HS384", "HS512",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Authentication:
    """Authentication."""

    authentication_enabled: bool = row("authenticationEnabled", switch, False, "Whether clients must authenticate.")
    authentication_providers: tuple[str, ...] = row(
        "authenticationProviders",
        names_among(PROVIDER_TOKEN, PROVIDER_TLS, PROVIDER_BASIC),
        (),
        "Pulsar's class names of the authentication methods: AuthenticationProviderToken, …Tls, …Basic.",
    )
    authentication_refresh_check_s: int = row(
        "authenticationRefreshCheckSeconds",
        whole(1),
        60,
        "How often clients' credentials are checked for expiry, in seconds.",
    )
    authenticate_original_auth_data: bool = row(
        "authenticateOriginalAuthData",
        switch,
        False,
        "Whether a proxy must forward its client's credentials, which are checked again here.",
    )
    anonymous_user_role: str | None = row(
        "anonymousUserRole", str, "<none>", "Role of clients without credentials; not set: they are refused."
    )
    token_secret_key: str | None = row(
        "tokenSecretKey",
        str,
        "<none>",
        "Secret key of tokens (HS256, HS384, HS512): `file:///…`, or `data:;base64,…`.",
        secret=True,
    )
    token_public_key: str | None = row(
        "tokenPublicKey", str, "<none>", "Public key of tokens: `file:///…`, or `data:;base64,…`."
    )
    token_public_alg: str = row("tokenPublicAlg", choice(*TOKEN_ALGORITHMS), "RS256", "Algorithm of tokenPublicKey.")
    token_auth_claim: str = row("tokenAuthClaim", str, "sub", "Claim of a token with the role.")
    token_audience_claim: str | None = row(
        "tokenAudienceClaim", str, "<none>", "Claim of a token with its audience; not set: not checked."
    )
    token_audience: str | None = row("tokenAudience", str, "<none>", "The audience that tokens must have.")
    token_allowed_clock_skew_s: int = row(
        "tokenAllowedClockSkewSeconds", whole(0), 0, "Allowed clock difference to the issuer of tokens, in seconds."
    )
    basic_auth_conf: str | None = row(
        "basicAuthConf",
        str,
        "<none>",
        "Users with hashed passwords, in htpasswd's format: a file, `file:///…` or `data:;base64,…`.",
        secret=True,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Authorization:
    """Authorization."""

    authorization_enabled: bool = row(
        "authorizationEnabled", switch, False, "Whether permissions of roles are checked."
    )
    authorization_provider: str = row(
        "authorizationProvider",
        choice(AUTHORIZATION_PROVIDER),
        AUTHORIZATION_PROVIDER,
        "Class of the authorization provider; only this one is supported.",
    )
    authorization_allow_wildcards_matching: bool = row(
        "authorizationAllowWildcardsMatching",
        switch,
        False,
        "Whether a permission for `name*` or `*name` applies to all roles with this prefix or suffix.",
    )
    super_user_roles: tuple[str, ...] = dynamic("superUserRoles", names, (), "Roles that may do everything.")
    proxy_roles: tuple[str, ...] = row(
        "proxyRoles",
        names,
        (),
        "Roles of proxies: a request needs the permission of the proxy's and of the client's role.",
    )

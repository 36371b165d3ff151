# SPDX-License-Identifier: Apache-2.0
"""Keys, certificates and credentials of a proxy: made from its settings, and read again on SIGHUP.

Where: `proxy_app` only.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from penstock.authentication.identification import Identification
from penstock.core.errors import ConfigurationError
from penstock.core.units import NS_PER_S
from penstock.net.own_credentials import own_credentials
from penstock.net.tls import client_context, server_context
from penstock.proxy.client_identity import Authentication
from penstock.proxy.upstreams import Identity
from penstock.settings.limits import provider_options, tls_options
from penstock.settings.sources import DEFAULT

if TYPE_CHECKING:
    import contextlib
    import ssl

    from penstock.admin.server import AdminServer
    from penstock.core.clock import Clock
    from penstock.net.listener import Listener
    from penstock.net.own_credentials import OwnCredentials
    from penstock.net.tls import TlsOptions
    from penstock.proxy.cluster_admin import AdminRequests
    from penstock.proxy.upstreams import Upstreams
    from penstock.settings import Settings
    from penstock.stats.expiry import Expiries

log = logging.getLogger(__name__)


def authentication(settings: Settings, clock: Clock, stack: contextlib.AsyncExitStack) -> Authentication | None:
    """Return how clients are authenticated; None: brokers do that. Raises ConfigurationError."""
    options = provider_options(settings)
    if options is None:
        return None
    from penstock.authentication.authenticator import Authenticator  # noqa: PLC0415 -- nor without authentication

    identification = Identification(Authenticator(options), lambda: settings.anonymous_user_role, clock)
    stack.callback(identification.close)
    return Authentication(
        identification=identification,
        own=own_credentials("brokerClientAuthentication", settings.own_method, settings.own_parameters),
        forward=settings.forward_credentials,
        methods=options.methods,
        proxy_roles=frozenset(settings.proxy_roles),
        refresh_check_ns=settings.authentication_refresh_check_s * NS_PER_S,
    )


def own_identity(settings: Settings) -> Identity:
    """Return who the proxy is for topics of its own. Raises ConfigurationError."""
    same = settings.sources["proxyTopicsAuthenticationPlugin"] == DEFAULT
    key = "brokerClientAuthentication" if same else "proxyTopicsAuthentication"
    own = own_credentials(key, settings.own_topics_method, settings.own_topics_parameters)
    return Identity(own.method, b"", own=own)


def own_tokens(settings: Settings, authentication: Authentication | None) -> dict[str, OwnCredentials]:
    """Return what the proxy shows to brokers, by what it is for. Raises ConfigurationError."""
    own = own_identity(settings).own
    assert own is not None, "an identity of the proxy itself"
    if authentication is None:
        return {"own topics": own}
    same = settings.sources["proxyTopicsAuthenticationPlugin"] == DEFAULT
    return {"brokers": authentication.own} if same else {"brokers": authentication.own, "own topics": own}


def web_tls(settings: Settings, tls: TlsOptions | None) -> TlsOptions | None:
    """Return the options of the admin port with TLS, with its own versions and ciphers."""
    if tls is None or settings.admin_tls_port is None:
        return None
    return replace(tls, protocols=settings.admin_tls_protocols, ciphers=settings.admin_tls_ciphers)


class Contexts(NamedTuple):
    """TLS of all ports and connections; None: without TLS."""

    clients: ssl.SSLContext | None
    web: ssl.SSLContext | None
    brokers: ssl.SSLContext | None
    own_brokers: ssl.SSLContext | None  # with the proxy's certificate
    admins: ssl.SSLContext | None  # of requests to the cluster's admin port

    @classmethod
    def read(cls, settings: Settings, *, brokers: bool) -> Contexts:
        """Read all certificates. Raises ConfigurationError. `brokers`: whether they are reached with TLS."""
        tls = tls_options(settings)
        web = web_tls(settings, tls)
        https = (settings.upstream_admin_url or "").startswith("https:")
        return cls(
            clients=server_context(tls) if tls is not None else None,
            web=server_context(web) if web is not None else None,
            brokers=_to_brokers(settings, shown=False) if brokers else None,
            own_brokers=_to_brokers(settings, shown=True) if brokers else None,
            admins=_to_brokers(settings, shown=settings.authentication_enabled) if https else None,
        )


def _to_brokers(settings: Settings, *, shown: bool) -> ssl.SSLContext:
    """Return a context for connections to brokers, with the proxy's certificate or without.

    Without authentication at the proxy, brokers would take every client for the proxy if they were shown it.
    """
    return client_context(
        settings.upstream_trust_certs,
        check_hostname=settings.upstream_hostname_check,
        certificate=settings.own_certificate if shown else None,
        key=settings.own_key,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """Reads keys, users and certificates again, for new connections; on an error, certificates stay as they were."""

    settings: Settings
    authentication: Authentication | None
    upstreams: Upstreams
    requests: AdminRequests
    secure: Listener | None  # of clients
    admin: AdminServer
    expiries: Expiries | None

    def __call__(self) -> None:
        """Read them."""
        if self.authentication is not None:
            self.authentication.identification.reload()
        options = self.upstreams.options
        try:
            contexts = Contexts.read(self.settings, brokers=options.tls is not None)
        except ConfigurationError as error:
            log.error("certificates stay as they were: %s", error)  # noqa: TRY400 -- the message is enough
            return
        if self.secure is not None:
            self.secure.tls = contexts.clients
        if contexts.web is not None:
            self.admin.tls = contexts.web
        self.upstreams.options = replace(options, tls=contexts.brokers, own_tls=contexts.own_brokers)
        self.requests.tls = contexts.admins
        if self.expiries is not None:
            self.expiries.measure_soon()
        log.info("certificates were read again")

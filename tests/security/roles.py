# SPDX-License-Identifier: Apache-2.0
"""A broker where it is checked who may do what, and one role of each kind. The matrices of this folder share it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.authentication.authenticator import Authenticator
from penstock.authentication.credentials import ProviderOptions
from penstock.broker.access.rules import AccessRules
from penstock.broker.configuration import NoKeys
from penstock.storage.shared_view import KINDS
from penstock.testing.client import Type, frame
from penstock.testing.tokens import SECRET, data_url, token
from tests.net.harness import Client, Harness, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from penstock.broker.configuration import Keys
    from penstock.broker.limits import BrokerLimits

TENANT: Final = "shop"
NAMESPACE: Final = "shop/orders"

NOBODY: Final = "nobody"  # known, and granted nothing
STRANGER: Final = "stranger"  # administers another tenant, and may produce and consume there
READER: Final = "reader"  # may consume in the namespace
WRITER: Final = "writer"  # may produce there
OWNER: Final = "owner"  # administers the tenant
ROOT: Final = "root"  # a superuser
ROLES: Final = (NOBODY, STRANGER, READER, WRITER, OWNER, ROOT)
NO_CREDENTIALS: Final = None
EVERYBODY: Final = (NO_CREDENTIALS, *ROLES)

# Who may do what, which the matrices of this folder hold the broker to, and whom its words let in.
DOCUMENT: Final = Path(__file__).parents[2] / "docs/reference/authorization.md"
LETS_IN: Final[Mapping[str, frozenset[str | None]]] = {
    "anybody": frozenset(EVERYBODY),
    "any role": frozenset(ROLES),
    "lookup": frozenset({READER, WRITER, OWNER, ROOT}),
    "lookup in the namespace": frozenset({READER, WRITER, OWNER, ROOT}),
    "produce": frozenset({WRITER, OWNER, ROOT}),
    "produce, and consume": frozenset({OWNER, ROOT}),
    "consume": frozenset({READER, OWNER, ROOT}),
    "consume in the namespace": frozenset({READER, OWNER, ROOT}),
    "tenant admin": frozenset({OWNER, ROOT}),
    "superuser": frozenset({ROOT}),
    "other brokers": frozenset(),
}

GRANTS: Final = {READER: ["consume"], WRITER: ["produce"]}


@asynccontextmanager
async def guarded(directory: Path, keys: Callable[[BrokerLimits], Keys] = NoKeys) -> AsyncIterator[Harness]:
    """The broker, with its tenant, its namespace and what is granted on it."""
    options = ProviderOptions(methods=frozenset({"token"}), token_secret_key=data_url(SECRET))
    rules = AccessRules(authorizing=True, super_user_roles=frozenset({ROOT}))
    authenticator = Authenticator(options)
    async with running(directory, authenticator=authenticator, keys=keys, access=rules) as harness:
        await administer(harness, TENANT, OWNER, NAMESPACE, GRANTS)
        await administer(harness, "other", STRANGER, "other/ns", {STRANGER: ["produce", "consume"]})
        yield harness


async def administer(
    harness: Harness, tenant: str, admin: str, namespace: str, grants: Mapping[str, list[str]]
) -> None:
    """Make a tenant and a namespace."""
    broker = harness.broker
    await broker.changes.stored(lambda done: broker.catalog.put_tenant(tenant, {"adminRoles": [admin]}, done))
    policies = {
        "auth_policies": {"namespace_auth": dict(grants), "destination_auth": {}, "subscription_auth_roles": {}}
    }
    await broker.changes.stored(lambda done: broker.catalog.put_namespace(namespace, policies, done))


async def connected(harness: Harness, role: str) -> Client:
    """A client of this role."""
    client = await Client.open(harness.port)
    client.write(
        frame(
            Type.CONNECT,
            client_version="test",
            protocol_version=20,
            auth_method_name="token",
            auth_data=token(role).encode(),
        )
    )
    await client.expect(Type.CONNECTED)
    return client


def everything(harness: Harness, tenant: str = "") -> dict[str, Any]:
    """All that is stored, and of what is in memory all that whoever may not must not change.

    Topics are those of one tenant, if it is named: in others, something may still go on in the background.
    """
    broker = harness.broker
    catalog = broker.catalog
    topics = [topic for topic in catalog.topics() if f"://{tenant}" in topic.name]
    return {
        "tenants": dict(catalog.tenants()),
        "namespaces": dict(catalog.namespaces()),
        "topics": topics,
        "subscriptions": [one for topic in topics for one in catalog.subscriptions(topic.name)],
        "documents": {
            (kind, name): document
            for kind, named in (*catalog._view._tables.items(), *catalog._own._documents.items())  # noqa: SLF001
            if kind not in KINDS
            for name, document in named.items()
            if "://" not in name or f"://{tenant}" in name
        },
        "configuration": dict(catalog.configuration()),
        "limits": broker.limits,
        "loaded": [
            (
                id(topic),
                topic.text,
                topic.last_entry_id,
                topic.terminated,
                len(topic.producers),
                [(one.name, one.cursor.mark_delete, one.cursor.version) for one in topic.subscriptions.values()],
            )
            for topic in broker.topics.loaded()
            if f"://{tenant}" in topic.text
        ],
    }

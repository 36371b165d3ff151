# SPDX-License-Identifier: Apache-2.0
"""Routes of the policies of namespaces and topics, made from one table of paths.

Why a table: forty policies are read, set and removed in the same way. Their values and meaning are in the broker's own
table (`broker.policies.policy_table`), which the keys here refer to.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from penstock.admin import models_policies as models
from penstock.admin.gateway import Ask
from penstock.admin.models import Int, IntInQuery, Model, Properties
from penstock.admin.routing import NAMESPACE, NO_CONTENT, TOPIC, Namespace, NoBody, Topic
from penstock.broker.policies.policy_rows import Level, Policy, Stored
from penstock.broker.policies.shapes import Json  # noqa: TC001 -- FastAPI reads annotations
from penstock.broker.policies.unenforced_policies import ALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastapi.params import Depends

    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway

QuotaKind = Annotated[Literal["destination_storage", "message_age"], Query(alias="backlogQuotaType")]
Applied = Annotated[bool, Query(description="Return the effective value, rather than the one set here")]


@dataclass(frozen=True, slots=True)
class Resource:
    """One policy and its path."""

    path: str  # after the namespace's or the topic's path
    key: str  # its name in `broker.policies`
    model: Any
    verb: str  # the HTTP method that sets it
    removable: bool
    unset: Any  # the response of GET if nothing is set; None: 204
    example: Any


def _resources(levels: Iterable[tuple[Stored, Level | None]]) -> tuple[Resource, ...]:
    return tuple(
        Resource(
            level.path or one.name,
            one.name if isinstance(one, Policy) else level.key,
            models.model(one.shape),
            level.verb,
            level.removable,
            level.unset,
            one.example,
        )
        for one, level in levels
        if level is not None and level.routed
    )


OF_NAMESPACES: Final = _resources((one, one.namespace) for one in ALL)
OF_TOPICS: Final = _resources((one, one.topic) for one in ALL)


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes of every policy, of namespaces and of topics."""
    router = APIRouter()
    ask = Ask(gateway)
    for resource in OF_NAMESPACES:
        _add_of_namespace(router, ask, resource, needs.namespace_admin)
    for resource in OF_TOPICS:
        _add_of_topic(router, ask, resource, needs.namespace_admin)
    _add_quotas_of_namespace(router, ask, needs)
    _add_odd_ones_of_namespace(router, ask, needs)
    _add_quotas_of_topic(router, ask, needs)
    _add_odd_ones_of_topic(router, ask, needs)
    return router


def _answer(value: Json, unset: Json = None) -> Response:
    value = unset if value is None else value
    return Response(status_code=HTTPStatus.NO_CONTENT) if value is None else JSONResponse(value)


# A single text is returned without quotes, as Pulsar does.
TEXT: Final[dict[str, Any]] = {
    "response_class": PlainTextResponse,
    "responses": {HTTPStatus.NO_CONTENT: {"description": "Nothing is set", "content": None}},
}


def text_or_nothing(value: str | None) -> Response:
    return Response(status_code=HTTPStatus.NO_CONTENT) if value is None else PlainTextResponse(value)


def _plain(value: Json) -> Json:
    return value.given() if isinstance(value, Model) else value


def _add(
    router: APIRouter, method: str, path: str, endpoint: Callable[..., Any], *, summary: str, **options: Json
) -> None:
    router.add_api_route(path, endpoint, methods=[method], summary=summary, **options)


def _reads(model: Json) -> dict[str, Any]:
    return {
        "response_class": JSONResponse,
        "responses": {
            HTTPStatus.OK: {"model": model},
            HTTPStatus.NO_CONTENT: {"description": "Nothing is set", "content": None},
        },
    }


def _add_of_namespace(router: APIRouter, ask: Ask, resource: Resource, need: Depends) -> None:
    path, key = f"{NAMESPACE}/{resource.path}", resource.key
    common = {"tags": ["namespace policies"], "dependencies": [need]}

    async def get(name: Namespace) -> Response:
        return _answer(await ask(lambda broker: broker.policies.of_namespace(name, key)), resource.unset)

    async def put(name: Namespace, value: Json = NoBody) -> None:
        given = _plain(value)
        await ask(lambda broker: broker.policies.set_of_namespace(name, key, given))

    async def delete(name: Namespace) -> None:
        await ask(lambda broker: broker.policies.set_of_namespace(name, key, None))

    put.__annotations__["value"] = resource.model | None
    _add(router, "GET", path, get, summary=f"Read {resource.path} of a namespace", **_reads(resource.model), **common)
    _add(router, resource.verb, path, put, summary=f"Set {resource.path} of a namespace", **NO_CONTENT, **common)
    if resource.removable:
        _add(router, "DELETE", path, delete, summary=f"Remove {resource.path} of a namespace", **NO_CONTENT, **common)


def _add_of_topic(router: APIRouter, ask: Ask, resource: Resource, need: Depends) -> None:
    path, key = f"{TOPIC}/{resource.path}", resource.key
    common = {"tags": ["topic policies"], "dependencies": [need]}

    async def get(name: Topic, *, applied: Applied = False) -> Response:
        return _answer(await ask(lambda broker: broker.policies.of_topic(name, key, applied=applied)), resource.unset)

    async def put(name: Topic, value: Json = NoBody) -> None:
        given = _plain(value)
        await ask(lambda broker: broker.policies.set_of_topic(name, key, given))

    async def delete(name: Topic) -> None:
        await ask(lambda broker: broker.policies.set_of_topic(name, key, None))

    put.__annotations__["value"] = resource.model | None
    _add(router, "GET", path, get, summary=f"Read {resource.path} of a topic", **_reads(resource.model), **common)
    _add(router, resource.verb, path, put, summary=f"Set {resource.path} of a topic", **NO_CONTENT, **common)
    if resource.removable:
        _add(router, "DELETE", path, delete, summary=f"Remove {resource.path} of a topic", **NO_CONTENT, **common)


def _add_quotas_of_namespace(router: APIRouter, ask: Ask, needs: Needs) -> None:
    common: dict[str, Any] = {"tags": ["namespace policies"], "dependencies": [needs.namespace_admin]}

    @router.get(
        f"{NAMESPACE}/backlogQuotaMap", response_class=JSONResponse, response_model=models.BacklogQuotas, **common
    )
    async def backlog_quotas(name: Namespace) -> Response:
        """Read the backlog quotas of a namespace."""
        return JSONResponse(await ask(lambda broker: broker.policies.quotas_of_namespace(name)))

    @router.post(f"{NAMESPACE}/backlogQuota", **NO_CONTENT, **common)
    async def set_backlog_quota(
        name: Namespace, quota: models.BacklogQuota, kind: QuotaKind = "destination_storage"
    ) -> None:
        """Set one backlog quota of a namespace."""
        given = quota.given()
        await ask(lambda broker: broker.policies.set_quota_of_namespace(name, kind, given))

    @router.delete(f"{NAMESPACE}/backlogQuota", **NO_CONTENT, **common)
    async def remove_backlog_quota(name: Namespace, kind: QuotaKind = "destination_storage") -> None:
        """Remove one backlog quota of a namespace."""
        await ask(lambda broker: broker.policies.set_quota_of_namespace(name, kind, None))


def _add_odd_ones_of_namespace(router: APIRouter, ask: Ask, needs: Needs) -> None:
    common: dict[str, Any] = {"tags": ["namespace policies"], "dependencies": [needs.namespace_admin]}

    @router.get(f"{NAMESPACE}/replication", **common)
    async def replication(name: Namespace) -> list[str]:
        """List the replication clusters of a namespace."""
        clusters: list[str] = (await ask(lambda broker: broker.namespaces.get(name)))["replication_clusters"]
        return clusters

    @router.post(f"{NAMESPACE}/replication", **NO_CONTENT, **common)
    async def set_replication(name: Namespace, clusters: list[str]) -> None:
        """Set the clusters that have the messages of a namespace, this one included."""
        await ask(lambda broker: broker.policies.set_replication(name, clusters))

    @router.get(f"{NAMESPACE}/properties", **common)
    async def properties(name: Namespace) -> Properties:
        """Read the properties of a namespace."""
        return await ask(lambda broker: broker.policies.properties_of_namespace(name))

    @router.put(f"{NAMESPACE}/properties", **NO_CONTENT, **common)
    async def put_properties(name: Namespace, properties: Properties) -> None:
        """Add properties to a namespace."""
        await ask(lambda broker: broker.policies.change_properties_of_namespace(name, properties, remove=[]))

    @router.delete(f"{NAMESPACE}/properties", **NO_CONTENT, **common)
    async def clear_properties(name: Namespace) -> None:
        """Remove all properties of a namespace."""
        await ask(lambda broker: broker.policies.change_properties_of_namespace(name, {}))

    @router.get(f"{NAMESPACE}/property/{{key}}", **TEXT, **common)
    async def get_property(name: Namespace, key: str) -> Response:
        """Read one property of a namespace."""
        return text_or_nothing((await ask(lambda broker: broker.policies.properties_of_namespace(name))).get(key))

    @router.put(f"{NAMESPACE}/property/{{key}}/{{value}}", **NO_CONTENT, **common)
    async def put_property(name: Namespace, key: str, value: str) -> None:
        """Set one property of a namespace."""
        await ask(lambda broker: broker.policies.change_properties_of_namespace(name, {key: value}, remove=[]))

    @router.delete(f"{NAMESPACE}/property/{{key}}", **TEXT, **common)
    async def remove_property(name: Namespace, key: str) -> Response:
        """Remove one property of a namespace, and return its value."""
        return text_or_nothing(
            (await ask(lambda broker: broker.policies.change_properties_of_namespace(name, {}, remove=[key]))).get(key)
        )

    @router.get(f"{NAMESPACE}/antiAffinity", response_class=Response, status_code=204, **common)
    async def anti_affinity(name: Namespace) -> None:
        """Read the anti-affinity group of a namespace: one broker has none."""
        await ask(lambda broker: broker.namespaces.check(name))

    superuser: dict[str, Any] = {**common, "dependencies": [needs.superuser]}

    @router.get(f"{NAMESPACE}/persistence/bookieAffinity", response_class=Response, status_code=204, **superuser)
    async def bookie_affinity(name: Namespace) -> None:
        """Read the bookie affinity group of a namespace: none, there are no bookies."""
        await ask(lambda broker: broker.namespaces.check(name))


def _add_quotas_of_topic(router: APIRouter, ask: Ask, needs: Needs) -> None:
    common: dict[str, Any] = {"tags": ["topic policies"], "dependencies": [needs.namespace_admin]}

    @router.get(f"{TOPIC}/backlogQuotaMap", response_class=JSONResponse, response_model=models.BacklogQuotas, **common)
    async def backlog_quotas_of_topic(name: Topic, *, applied: Applied = False) -> Response:
        """Read the backlog quotas of a topic."""
        return JSONResponse(await ask(lambda broker: broker.policies.quotas_of_topic(name, applied=applied)))

    @router.post(f"{TOPIC}/backlogQuota", **NO_CONTENT, **common)
    async def set_backlog_quota_of_topic(
        name: Topic, quota: models.BacklogQuota, kind: QuotaKind = "destination_storage"
    ) -> None:
        """Set one backlog quota of a topic."""
        given = quota.given()
        await ask(lambda broker: broker.policies.set_quota_of_topic(name, kind, given))

    @router.delete(f"{TOPIC}/backlogQuota", **NO_CONTENT, **common)
    async def remove_backlog_quota_of_topic(name: Topic, kind: QuotaKind = "destination_storage") -> None:
        """Remove one backlog quota of a topic."""
        await ask(lambda broker: broker.policies.set_quota_of_topic(name, kind, None))


def _add_odd_ones_of_topic(router: APIRouter, ask: Ask, needs: Needs) -> None:
    common: dict[str, Any] = {"tags": ["topic policies"], "dependencies": [needs.namespace_admin]}

    @router.get(f"{TOPIC}/messageTTL", **_reads(Int), **common)
    async def ttl_of_topic(name: Topic, *, applied: Applied = False) -> Response:
        """Read messageTTL of a topic."""
        return _answer(await ask(lambda broker: broker.policies.of_topic(name, "messageTTL", applied=applied)))

    @router.post(f"{TOPIC}/messageTTL", **NO_CONTENT, **common)
    async def set_ttl_of_topic(name: Topic, seconds: Annotated[IntInQuery, Query(alias="messageTTL")]) -> None:
        """Set messageTTL of a topic."""
        await ask(lambda broker: broker.policies.set_of_topic(name, "messageTTL", seconds))

    @router.delete(f"{TOPIC}/messageTTL", **NO_CONTENT, **common)
    async def remove_ttl_of_topic(name: Topic) -> None:
        """Remove messageTTL of a topic."""
        await ask(lambda broker: broker.policies.set_of_topic(name, "messageTTL", None))

    @router.get(f"{TOPIC}/{{subscription:twice}}/dispatchRate", **_reads(models.DispatchRate), **common)
    async def rate_of_subscription(name: Topic, subscription: str, *, applied: Applied = False) -> Response:
        """Read the dispatch rate of one subscription."""
        return _answer(
            await ask(lambda broker: broker.policies.rate_of_subscription(name, subscription, applied=applied))
        )

    @router.post(f"{TOPIC}/{{subscription:twice}}/dispatchRate", **NO_CONTENT, **common)
    async def set_rate_of_subscription(name: Topic, subscription: str, rate: models.DispatchRate) -> None:
        """Set the dispatch rate of one subscription."""
        given = rate.given()
        await ask(lambda broker: broker.policies.set_rate_of_subscription(name, subscription, given))

    @router.delete(f"{TOPIC}/{{subscription:twice}}/dispatchRate", **NO_CONTENT, **common)
    async def remove_rate_of_subscription(name: Topic, subscription: str) -> None:
        """Remove the dispatch rate of one subscription."""
        await ask(lambda broker: broker.policies.set_rate_of_subscription(name, subscription, None))

    @router.delete(f"{TOPIC}/policies", **NO_CONTENT, **common)
    async def remove_policies_of_topic(name: Topic) -> None:
        """Remove all policies of a topic."""
        await ask(lambda broker: broker.policies.delete_topic_policies(name))

# SPDX-License-Identifier: Apache-2.0
"""Routes of topic schemas: their versions, and compatibility checks."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Depends
from pydantic import Field

from penstock.admin.gateway import Ask
from penstock.admin.models import Model, Properties, Reason
from penstock.admin.routing import Force  # noqa: TC001 - FastAPI reads it
from penstock.broker.administration import schema_admin
from penstock.core.names import TopicName

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway
    from penstock.broker.schemas.checks.model import Schema

TOPIC: Final = "/{tenant}/{namespace}/{topic:local}"
INVALID: Final[dict[int | str, dict[str, Any]]] = {
    HTTPStatus.UNPROCESSABLE_ENTITY.value: {"model": Reason, "description": "Not a schema"}
}


class PostSchemaPayload(Model):
    """A schema in a request. The definition of KEY_VALUE is JSON: `{"key": …, "value": …}`."""

    type: str
    schema_: str = Field("", alias="schema")
    properties: Properties | None = None

    def read(self) -> Schema:
        """Return the schema. Raises InvalidSchema."""
        return schema_admin.schema_of(self.type, self.schema_, self.properties or {})


class GetSchemaResponse(Model):
    """One version of a topic's schema."""

    version: int
    type: str
    timestamp: int = Field(description="When it was added, in milliseconds since 1970")
    data: str
    properties: Properties


class GetAllVersionsSchemaResponse(Model):
    """All versions of a topic's schema."""

    get_schema_responses: list[GetSchemaResponse] = Field(alias="getSchemaResponses")


class SchemaVersion(Model):
    """The number of a version; -1 for none."""

    version: int


class PostSchemaResponse(Model):
    """The version of the schema that was posted."""

    version: SchemaVersion


class IsCompatibilityResponse(Model):
    """Whether a schema is compatible with the existing versions."""

    compatibility: bool
    schema_compatibility_strategy: str = Field(alias="schemaCompatibilityStrategy")


def topic_of(tenant: str, namespace: str, topic: str) -> TopicName:
    """Return the topic that a path names; a non-persistent topic of this name has the same schema.

    Raises InvalidTopicName.
    """
    return TopicName("persistent", tenant, namespace, topic)


Topic: TypeAlias = Annotated[TopicName, Depends(topic_of)]


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v2/schemas."""
    router = APIRouter(prefix="/admin/v2/schemas", tags=["schemas"])
    ask = Ask(gateway)

    @router.get(f"{TOPIC}/schema", dependencies=[needs.topic_lookup])
    async def get_schema(name: Topic) -> GetSchemaResponse:
        """Return the latest version."""
        return GetSchemaResponse.model_validate(await ask(lambda broker: broker.schemas.get(name)))

    @router.get(f"{TOPIC}/schema/{{version}}", dependencies=[needs.topic_lookup])
    async def get_schema_version(name: Topic, version: int) -> GetSchemaResponse:
        """Return one version."""
        return GetSchemaResponse.model_validate(await ask(lambda broker: broker.schemas.get(name, version)))

    @router.get(f"{TOPIC}/schemas", dependencies=[needs.topic_lookup])
    async def get_all_schemas(name: Topic) -> GetAllVersionsSchemaResponse:
        """Return all versions since the schema was last deleted."""
        found = await ask(lambda broker: broker.schemas.versions(name))
        return GetAllVersionsSchemaResponse.model_validate({"getSchemaResponses": found})

    @router.post(f"{TOPIC}/schema", dependencies=[needs.tenant_admin], responses=INVALID)
    async def post_schema(name: Topic, payload: PostSchemaPayload) -> PostSchemaResponse:
        """Add a version, if it is compatible with the existing ones."""
        schema = payload.read()
        version = await ask(lambda broker: broker.schemas.post(name, schema))
        return PostSchemaResponse(version=SchemaVersion(version=version))

    @router.delete(f"{TOPIC}/schema", dependencies=[needs.tenant_admin])
    async def delete_schema(name: Topic, *, force: Force = False) -> SchemaVersion:
        """Delete the schema of a topic. Version numbers continue; with `force` they start from 0 again."""
        return SchemaVersion(version=await ask(lambda broker: broker.schemas.delete(name, force=force)))

    @router.post(
        f"{TOPIC}/compatibility",
        dependencies=[needs.tenant_admin],
        responses=INVALID,
        status_code=HTTPStatus.ACCEPTED,
    )
    async def test_compatibility(name: Topic, payload: PostSchemaPayload) -> IsCompatibilityResponse:
        """Check whether a schema is compatible with the topic's schema."""
        schema = payload.read()
        fits, strategy = await ask(lambda broker: broker.schemas.check_compatibility(name, schema))
        return IsCompatibilityResponse(compatibility=fits, schemaCompatibilityStrategy=strategy)

    @router.post(f"{TOPIC}/version", dependencies=[needs.topic_lookup], responses=INVALID)
    async def get_version_by_schema(name: Topic, payload: PostSchemaPayload) -> SchemaVersion:
        """Return the version of a schema; -1 if the topic does not have it."""
        schema = payload.read()
        return SchemaVersion(version=await ask(lambda broker: broker.schemas.find_version(name, schema)))

    return router

# SPDX-License-Identifier: Apache-2.0
"""Routes of topics: create, list, partition, truncate and delete them.

Statistics, subscriptions, messages and policies of topics are in modules of their own.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Body, Query
from fastapi.responses import JSONResponse

from penstock.admin.gateway import Ask
from penstock.admin.models import (
    AuthAction,
    BatchMessageId,
    CompactionStatus,
    Int,
    Long,
    MessageId,
    PartitionedMetadata,
    PartitionedRequest,
    Properties,
    Reason,
)
from penstock.admin.responses import TOO_MANY_LISTINGS, ListingResponse
from penstock.admin.routing import NO_CONTENT, TOPIC, Domain, Force, Namespace, Topic
from penstock.broker.topics.listing import Mode
from penstock.core.errors import NotAllowed
from penstock.core.position import Position

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway

IN_NAMESPACE: Final = "/admin/v2/{domain:domain}/{tenant}/{namespace}"
BUNDLE: Final = "/admin/v2/non-persistent/{tenant}/{namespace}/{bundle}"
PERSISTENT: Final = "persistent"

IncludeSystem = Annotated[bool, Query(alias="includeSystemTopic", description="Include system topics")]
NOT_ACCEPTABLE: Final[dict[int | str, dict[str, Any]]] = {
    HTTPStatus.NOT_ACCEPTABLE: {"model": Reason, "description": "There cannot be so many partitions"}
}
UNPROCESSABLE: Final[dict[int | str, dict[str, Any]]] = {
    HTTPStatus.UNPROCESSABLE_ENTITY: {"model": Reason, "description": "A topic never loses partitions"}
}


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v2/persistent and /admin/v2/non-persistent."""
    router = APIRouter(tags=["topics"])
    ask = Ask(gateway)
    _add_listing(router, ask, needs)
    _add_partitions(router, ask, needs)
    _add_life(router, ask, needs)
    _add_end(router, ask, needs)
    _add_compaction(router, ask, needs)
    _add_permissions(router, ask, needs)
    _add_properties(router, ask, needs)
    return router


def _add_listing(router: APIRouter, ask: Ask, needs: Needs) -> None:
    @router.get(
        IN_NAMESPACE,
        dependencies=[needs.topic_lookup],
        response_model=list[str],
        response_class=JSONResponse,
        responses=TOO_MANY_LISTINGS,
    )
    async def list_topics(
        domain: Domain, name: Namespace, bundle: str | None = None, *, system: IncludeSystem = False
    ) -> list[str] | ListingResponse:
        """List the topics of a namespace, or of one of its bundles, in one domain; each partition is a topic."""
        if bundle is not None:
            topics = await ask(lambda broker: broker.namespaces.topics(name, bundle))
            return [topic for topic in topics if topic.startswith(f"{domain}:")]
        return ListingResponse(
            ask, name, Mode.PERSISTENT if domain == PERSISTENT else Mode.NON_PERSISTENT, system=system
        )

    @router.get(f"{IN_NAMESPACE}/partitioned", dependencies=[needs.topic_lookup])
    async def list_partitioned(domain: Domain, name: Namespace, *, system: IncludeSystem = False) -> list[str]:
        """List the partitioned topics of a namespace in one domain."""
        return await ask(
            lambda broker: broker.topics.list_partitioned(name, persistent=domain == PERSISTENT, system=system)
        )

    @router.get(BUNDLE, dependencies=[needs.topic_lookup])
    async def list_bundle(name: Namespace, bundle: str) -> list[str]:
        """List the non-persistent topics of one bundle."""
        topics = await ask(lambda broker: broker.namespaces.topics(name, bundle))
        return [topic for topic in topics if topic.startswith("non-persistent:")]


def _add_partitions(router: APIRouter, ask: Ask, needs: Needs) -> None:
    path = f"{TOPIC}/partitions"
    admin: dict[str, Any] = {"dependencies": [needs.namespace_admin]}

    @router.put(path, **admin, **NO_CONTENT, responses=NOT_ACCEPTABLE)
    async def create_partitioned(name: Topic, partitions: Annotated[Int | PartitionedRequest, Body()]) -> None:
        """Create a partitioned topic. The body is the number of partitions, or an object that also has properties."""
        if isinstance(partitions, PartitionedRequest):
            await ask(
                lambda broker: broker.topics.create_partitioned(name, partitions.partitions, partitions.properties)
            )
        else:
            await ask(lambda broker: broker.topics.create_partitioned(name, partitions))

    @router.post(path, **admin, **NO_CONTENT, responses={**NOT_ACCEPTABLE, **UNPROCESSABLE})
    async def update_partitioned(name: Topic, partitions: Annotated[Int, Body()]) -> None:
        """Increase the number of partitions of a topic."""
        await ask(lambda broker: broker.topics.update_partitioned(name, partitions))

    @router.get(path, dependencies=[needs.topic_lookup], response_model_exclude_none=True)
    async def get_partitioned(
        name: Topic,
        *,
        check: Annotated[
            bool,
            Query(
                alias="checkAllowAutoCreation",
                description="Create the topic if it does not exist and auto-creation is allowed",
            ),
        ] = False,
    ) -> PartitionedMetadata:
        """Return the number of partitions of a topic; 0 if it is not partitioned."""
        return PartitionedMetadata.model_validate(
            await ask(lambda broker: broker.topics.get_partitioned(name, check_auto_creation=check))
        )

    @router.delete(path, **admin, **NO_CONTENT)
    async def delete_partitioned(name: Topic, *, force: Force = False) -> None:
        """Delete a partitioned topic with its partitions."""
        await ask(lambda broker: broker.topics.delete_partitioned(name, force=force))

    @router.post(f"{TOPIC}/createMissedPartitions", **admin, **NO_CONTENT)
    async def create_missed_partitions(name: Topic) -> None:
        """Create missing partitions."""
        await ask(lambda broker: broker.topics.create_missed_partitions(name))


def _add_life(router: APIRouter, ask: Ask, needs: Needs) -> None:
    admin: dict[str, Any] = {"dependencies": [needs.namespace_admin], **NO_CONTENT}

    @router.put(TOPIC, **admin)
    async def create_topic(name: Topic, properties: Annotated[Properties | None, Body()] = None) -> None:
        """Create a non-partitioned topic."""
        await ask(lambda broker: broker.topics.create(name, properties))

    @router.delete(TOPIC, **admin)
    async def delete_topic(name: Topic, *, force: Force = False) -> None:
        """Delete an unused topic; with `force`, disconnect its clients."""
        await ask(lambda broker: broker.topics.delete(name, force=force))

    @router.put(f"{TOPIC}/unload", **admin)
    async def unload_topic(name: Topic) -> None:
        """Unload a topic; its clients reconnect."""
        await ask(lambda broker: broker.topics.unload(name))

    @router.post(f"{TOPIC}/trim", **admin)
    async def trim_topic(name: Topic) -> None:
        """Delete messages that all subscriptions have acknowledged and retention does not keep."""
        await ask(lambda broker: broker.topics.trim(name))

    @router.delete(f"{TOPIC}/truncate", **admin)
    async def truncate_topic(name: Topic) -> None:
        """Acknowledge all messages for all subscriptions and delete them, whatever retention says."""
        await ask(lambda broker: broker.topics.truncate(name))


def _add_end(router: APIRouter, ask: Ask, needs: Needs) -> None:
    admin: dict[str, Any] = {"dependencies": [needs.namespace_admin]}

    @router.post(f"{TOPIC}/terminate", **admin)
    async def terminate(name: Topic) -> MessageId:
        """Terminate a topic: it accepts no more messages. Returns the last message id."""
        return _message_id(name.partition, await ask(lambda broker: broker.topics.terminate(name)))

    @router.post(f"{TOPIC}/terminate/partitions", **admin)
    async def terminate_partitions(name: Topic) -> dict[str, MessageId]:
        """Terminate all partitions of a topic. Returns the last message id of each."""
        last = await ask(lambda broker: broker.topics.terminate_partitions(name))
        return {str(index): _message_id(index, position) for index, position in last.items()}

    @router.put(f"{TOPIC}/backlogSize", dependencies=[needs.consume])
    async def backlog_size(name: Topic, position: BatchMessageId) -> Long:
        """Estimate the backlog after a position, in bytes."""
        start = Position(position.ledger_id, position.entry_id)
        return await ask(lambda broker: broker.messages.backlog_size(name, start))

    @router.put(f"{TOPIC}/offload", **admin, **NO_CONTENT)
    async def offload(name: Topic, _position: MessageId) -> None:
        """Offload old entries to long-term storage: not supported."""
        raise NotAllowed(f"Offload is not configured: {name} stays on this disk")

    @router.get(f"{TOPIC}/offload", **admin)
    async def offload_status(name: Topic) -> CompactionStatus:
        """Return the status of the last offload: there was none."""
        await ask(lambda broker: broker.subscriptions.names(name))
        return CompactionStatus(status="NOT_RUN", lastError="")


def _add_compaction(router: APIRouter, ask: Ask, needs: Needs) -> None:
    admin: dict[str, Any] = {"dependencies": [needs.namespace_admin]}

    @router.put(f"{TOPIC}/compaction", **admin, **NO_CONTENT)
    async def compact(name: Topic) -> None:
        """Start compaction of a topic: it keeps the last message of each key."""
        await ask(lambda broker: broker.topics.compact(name))

    @router.get(f"{TOPIC}/compaction", **admin)
    async def compaction_status(name: Topic) -> CompactionStatus:
        """Return the status of the last compaction."""
        return CompactionStatus.model_validate(await ask(lambda broker: broker.topics.compaction_status(name)))


def _add_permissions(router: APIRouter, ask: Ask, needs: Needs) -> None:
    admin: dict[str, Any] = {"dependencies": [needs.tenant_admin]}

    @router.get(f"{TOPIC}/permissions", **admin)
    async def get_permissions(name: Topic) -> dict[str, list[str]]:
        """Return the permissions of each role on a topic, those of its namespace included."""
        return await ask(lambda broker: broker.permissions.get_topic(name))

    @router.post(f"{TOPIC}/permissions/{{role}}", **admin, **NO_CONTENT)
    async def grant(name: Topic, role: str, actions: list[AuthAction]) -> None:
        """Set the permissions of a role on a topic."""
        await ask(lambda broker: broker.permissions.grant_topic(name, role, list(actions)))

    @router.delete(f"{TOPIC}/permissions/{{role}}", **admin, **NO_CONTENT)
    async def revoke(name: Topic, role: str) -> None:
        """Revoke all permissions of a role on a topic."""
        await ask(lambda broker: broker.permissions.revoke_topic(name, role))


def _add_properties(router: APIRouter, ask: Ask, needs: Needs) -> None:
    path = f"{TOPIC}/properties"
    admin: dict[str, Any] = {"dependencies": [needs.namespace_admin]}

    @router.get(path, dependencies=[needs.topic_lookup])
    async def get_properties(name: Topic) -> Properties:
        """Read the properties of a topic."""
        return await ask(lambda broker: broker.topics.get_properties(name))

    @router.put(path, **admin, **NO_CONTENT)
    async def update_properties(name: Topic, properties: Properties) -> None:
        """Add properties to a topic."""
        await ask(lambda broker: broker.topics.update_properties(name, properties))

    @router.delete(path, **admin, **NO_CONTENT)
    async def remove_property(name: Topic, key: str) -> None:
        """Remove one property of a topic."""
        await ask(lambda broker: broker.topics.remove_property(name, key))


def _message_id(partition: int, position: Position) -> MessageId:
    return MessageId(ledgerId=position.ledger_id, entryId=position.entry_id, partitionIndex=partition)

# SPDX-License-Identifier: Apache-2.0
"""Topic lookup over HTTP: all topics are served by this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from penstock.admin.gateway import Ask
from penstock.admin.models import LookupData
from penstock.admin.routing import Topic  # noqa: TC001 -- FastAPI reads annotations

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway

TOPIC: Final = "/lookup/v2/topic/{domain:domain}/{tenant}/{namespace}/{topic:local}"


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /lookup/v2."""
    router = APIRouter(tags=["lookup"])
    ask = Ask(gateway)

    @router.get(TOPIC, dependencies=[needs.topic_lookup], response_model_exclude_none=True)
    async def lookup_topic(
        name: Topic,
        listener: Annotated[str | None, Query(alias="listenerName", description="Of advertisedListeners")] = None,
    ) -> LookupData:
        """Return the URLs for clients of a topic."""
        return LookupData.model_validate(await ask(lambda broker: broker.lookup.of_topic(name, listener)))

    @router.get(f"{TOPIC}/bundle", dependencies=[needs.namespace_lookup], response_class=PlainTextResponse)
    async def bundle(name: Topic) -> str:
        """Return the bundle of a topic, as a hash range."""
        return await ask(lambda broker: broker.lookup.bundle_of_topic(name))

    return router

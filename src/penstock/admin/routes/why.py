# SPDX-License-Identifier: Apache-2.0
"""Routes that explain what slows a tenant, a namespace, a topic or a producer. `penstock why` asks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import APIRouter, Request

from penstock.admin.models import Explanation
from penstock.admin.routing import Namespace, Topic  # noqa: TC001 -- FastAPI reads annotations
from penstock.stats.visibility import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway
    from penstock.broker.administration.administration import Administration
    from penstock.broker.stats.why import Why
    from penstock.stats.findings import Json


WHY: Final = "/admin/v3/why"
NAMESPACE: Final = f"{WHY}/namespaces/{{tenant}}/{{namespace}}"
TOPIC: Final = f"{WHY}/{{domain:domain}}/{{tenant}}/{{namespace}}/{{topic:local}}"


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v3/why."""
    router = APIRouter(tags=["explanations"])

    async def explained(request: Request, question: Callable[[Why], Awaitable[Json]]) -> Explanation:
        """Ask, and leave out what the caller may not see."""
        administers = await needs.check_superuser.administers(request)

        async def asked(broker: Administration) -> Json:
            found = await question(broker.why)
            return {**found, "findings": [shown(finding, administers) for finding in found["findings"]]}

        return Explanation.model_validate(await gateway.ask(asked))

    @router.get(WHY, dependencies=[needs.superuser])
    async def why_everything(request: Request) -> Explanation:
        """Explain what slows producers and subscriptions, whosever they are. Backlog quotas are not compared."""
        return await explained(request, lambda why: why.of_everything())

    @router.get(f"{WHY}/tenants/{{tenant}}", dependencies=[needs.tenant_admin])
    async def why_tenant(request: Request, tenant: str) -> Explanation:
        """Explain what slows the producers and subscriptions of a tenant."""
        return await explained(request, lambda why: why.of_tenant(tenant))

    @router.get(NAMESPACE, dependencies=[needs.namespace_admin])
    async def why_namespace(request: Request, name: Namespace) -> Explanation:
        """Explain what slows the producers and subscriptions of a namespace."""
        return await explained(request, lambda why: why.of_namespace(name))

    @router.get(f"{WHY}/producers/{{producer}}", dependencies=[needs.superuser])
    async def why_producer(request: Request, producer: str) -> Explanation:
        """Explain what slows the connected producers of this name."""
        return await explained(request, lambda why: why.of_producer(producer))

    @router.get(TOPIC, dependencies=[needs.namespace_admin])
    async def why_topic(request: Request, name: Topic) -> Explanation:
        """Explain what slows the producers and subscriptions of a topic, or of its partitions."""
        return await explained(request, lambda why: why.of_topic(name))

    return router

# SPDX-License-Identifier: Apache-2.0
"""Routes that explain what slows a tenant, a namespace, a topic or a producer. `penstock why` asks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import APIRouter

from penstock.admin.gateway import Ask
from penstock.admin.models import Explanation
from penstock.admin.routing import Namespace, Topic  # noqa: TC001 -- FastAPI reads annotations

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway


WHY: Final = "/admin/v3/why"
NAMESPACE: Final = f"{WHY}/namespaces/{{tenant}}/{{namespace}}"
TOPIC: Final = f"{WHY}/{{domain:domain}}/{{tenant}}/{{namespace}}/{{topic:local}}"


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v3/why."""
    router = APIRouter(tags=["explanations"])
    ask = Ask(gateway)

    @router.get(f"{WHY}/tenants/{{tenant}}", dependencies=[needs.tenant_admin])
    async def why_tenant(tenant: str) -> Explanation:
        """Explain what slows the producers and subscriptions of a tenant."""
        return Explanation.model_validate(await ask(lambda broker: broker.why.of_tenant(tenant)))

    @router.get(NAMESPACE, dependencies=[needs.namespace_admin])
    async def why_namespace(name: Namespace) -> Explanation:
        """Explain what slows the producers and subscriptions of a namespace."""
        return Explanation.model_validate(await ask(lambda broker: broker.why.of_namespace(name)))

    @router.get(f"{WHY}/producers/{{producer}}", dependencies=[needs.superuser])
    async def why_producer(producer: str) -> Explanation:
        """Explain what slows the connected producers of this name."""
        return Explanation.model_validate(await ask(lambda broker: broker.why.of_producer(producer)))

    @router.get(TOPIC, dependencies=[needs.namespace_admin])
    async def why_topic(name: Topic) -> Explanation:
        """Explain what slows the producers and subscriptions of a topic, or of its partitions."""
        return Explanation.model_validate(await ask(lambda broker: broker.why.of_topic(name)))

    return router

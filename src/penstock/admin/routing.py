# SPDX-License-Identifier: Apache-2.0
"""Shared parts of routes: path parameters, responses without a body, and documented errors.

Where: modules of `routes` use it; `api` completes the OpenAPI document with `documented`.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from fastapi import Body, Depends, Path, Query, Request
from fastapi.responses import Response

from penstock.admin.http_memory import CHARGE
from penstock.admin.models import LONG_MAX
from penstock.core.names import NamespaceName, TopicName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.admin.http_memory import RequestCharge

Domain: TypeAlias = Literal["persistent", "non-persistent"]
# Every topic route serves both domains; the broker refuses operations that a non-persistent topic does not support.
TOPIC: Final = "/admin/v2/{domain:domain}/{tenant}/{namespace}/{topic:local}"
NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"

Force: TypeAlias = Annotated[bool, Query(description="Also delete everything that depends on it")]

NO_CONTENT: Final[Mapping[str, Any]] = {"status_code": HTTPStatus.NO_CONTENT, "response_class": Response}
Wall: TypeAlias = Annotated[int, Path(ge=0, le=LONG_MAX)]


# These two read the request: FastAPI would create parameters for each of three hundred routes, which takes half a
# second. `documented` adds the parameters to the document.
async def namespace_of(request: Request) -> NamespaceName:
    """Return the namespace that a path names. Raises InvalidTopicName."""
    path = request.path_params
    return NamespaceName(path["tenant"], path["namespace"])


async def topic_of(request: Request) -> TopicName:
    """Return the topic that a path names. Raises InvalidTopicName."""
    path = request.path_params
    return TopicName(path["domain"], path["tenant"], path["namespace"], path["topic"])


async def room_for_entry(request: Request) -> None:
    """Charge a request that reads an entry, from the disk and into a copy. Raises ServiceNotReady."""
    charge: RequestCharge = request.scope[CHARGE]
    await charge.charge_when_free(2 * charge.memory.entry_bytes_max)


# A dependency of routes that read entries of a topic, after their check of the caller.
READS_ENTRY: Final = Depends(room_for_entry)

Namespace: TypeAlias = Annotated[NamespaceName, Depends(namespace_of)]
Topic: TypeAlias = Annotated[TopicName, Depends(topic_of)]
NoBody: Final = Body(None)


# The errors of all routes, and of those that change something. A route adds its own.
_READS: Final = {
    HTTPStatus.BAD_REQUEST: "A parameter or the body is invalid",
    HTTPStatus.UNAUTHORIZED: "The caller is not authenticated",
    HTTPStatus.FORBIDDEN: "The caller is not authorized",
    HTTPStatus.NOT_FOUND: "The tenant, namespace, topic or other object of the path does not exist",
    HTTPStatus.METHOD_NOT_ALLOWED: "The object of the path does not support this, or it is switched off",
    HTTPStatus.PRECONDITION_FAILED: "A name or a value is not allowed, or conflicts with the current state",
    HTTPStatus.INTERNAL_SERVER_ERROR: "Internal error; see the broker's log",
    HTTPStatus.SERVICE_UNAVAILABLE: "The broker is starting, stopping or busy: retry",
}
_WRITES: Final = {
    HTTPStatus.CONFLICT: "It exists already, or is in use",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large",
}
REASON: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/Reason"}}}
_DOMAINS: Final = {"type": "string", "enum": ["persistent", "non-persistent"]}
_NAMED: Final = re.compile(r"{(\w+)}")
_VERBS: Final = frozenset({"get", "put", "post", "delete"})


def documented(openapi: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI document with the errors that routes really return, instead of FastAPI's own."""
    schemas = openapi.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Reason"] = {
        "title": "Reason",
        "type": "object",
        "description": "Why a request was not carried out.",
        "properties": {"reason": {"type": "string"}},
        "required": ["reason"],
    }
    for path, operations in openapi["paths"].items():
        if path.startswith(("/admin/", "/lookup/")):
            for verb in _VERBS & operations.keys():
                _add_errors(operations[verb], {**_READS, **({} if verb == "get" else _WRITES)})
        for verb in _VERBS & operations.keys():
            _drop_framework_errors(operations[verb]["responses"])
            _add_path_parameters(path, operations[verb])
    return openapi


def _add_errors(operation: dict[str, Any], errors: Mapping[HTTPStatus, str]) -> None:
    for status, text in errors.items():
        operation["responses"].setdefault(str(status.value), {"description": text, "content": REASON})


def _add_path_parameters(path: str, operation: dict[str, Any]) -> None:
    said = operation.setdefault("parameters", [])
    names = {parameter["name"] for parameter in said if parameter["in"] == "path"}
    said[:0] = [
        {"name": name, "in": "path", "required": True, "schema": _DOMAINS if name == "domain" else {"type": "string"}}
        for name in _NAMED.findall(path)
        if name not in names
    ]


def _drop_framework_errors(responses: dict[str, Any]) -> None:
    schema = responses.get("422", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if schema.get("$ref", "").endswith("/HTTPValidationError"):
        del responses["422"]

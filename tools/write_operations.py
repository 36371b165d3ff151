# SPDX-License-Identifier: Apache-2.0
"""Rewrite src/penstock/cli/operations.json: the routes of the admin port, as the command line needs them.

Why a file: importing the routes takes half a second, and `penstock topics list` must answer in a tenth of that. Why
generated: a route that is added becomes a command, and a policy that is added can be set, without a line of the command
line. Where: `make docs` rewrites it; `tests/test_docs.py` fails while it is behind.

The name of a command is that of its route's function, without the name of its resource: `create_topic` is
`topics create`. Two routes with the same name are an error here, until `_NAMES` says how to call them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from penstock.admin.api import build

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.admin.gateway import Gateway

Json: TypeAlias = dict[str, Any]

FILE: Final = Path(__file__).resolve().parent.parent / "src/penstock/cli/operations.json"

# The resource that the operations of a tag belong to.
_RESOURCES: Final = {
    "clusters": "clusters",
    "tenants": "tenants",
    "namespaces": "namespaces",
    "namespace policies": "namespaces",
    "resource groups": "groups",
    "topics": "topics",
    "topic policies": "topics",
    "messages": "topics",
    "statistics": "topics",
    "lookup": "topics",
    "subscriptions": "subscriptions",
    "schemas": "schemas",
    "transactions": "transactions",
    "brokers": "brokers",
    "broker-stats": "brokers",
}
# Routes without a command, and why.
LEFT_OUT: Final[Mapping[str, str]] = {
    r"/admin/v3/why(/|$)": "`penstock why` and the console ask them",
    r"/admin/v3/messages/": "the console asks them; commands as consume, produce and redrive are clients",
    r"/admin/v3/(overview|topics|tenants|settings|who)(/|$)": "the console asks them",
    r"/admin/v2/brokers/backup$": "`penstock backup` asks it",
    r"/metrics$|/healthz$|/status\.html$|/$": "for monitoring and browsers",
    r"/admin/v2/resourcegroup($|/)": "another spelling of /admin/v2/resourcegroups",
    r"/admin/v2/bookies/": "there are no bookies",
    r"/admin/v2/resource-quotas": "quotas of bundles, which nothing enforces",
    r"/admin/v2/broker-stats/(mbeans|allocator-stats)": "of a Java process",
    r"/admin/v2/non-persistent/{tenant}/{namespace}/{bundle}$": "topics list --domain non-persistent has them",
}
# Names of functions that do not make good names of commands, or make one name twice.
_NAMES: Final = {
    ("namespaces", "get_policies"): "policies",
    ("namespaces", "grant"): "grant-permission",
    ("namespaces", "revoke"): "revoke-permission",
    ("namespaces", "get_permissions"): "permissions",
    ("namespaces", "get_subscription_permissions"): "subscription-permissions",
    ("topics", "grant"): "grant-permission",
    ("topics", "revoke"): "revoke-permission",
    ("topics", "get_permissions"): "permissions",
    ("topics", "get_properties"): "properties",
    ("topics", "get_partitioned"): "partitions",
    ("topics", "lookup_topic"): "lookup",
    ("subscriptions", "get_properties"): "properties",
    ("subscriptions", "put_properties"): "set-properties",
    ("groups", "put_group"): "set",
    ("brokers", "topics"): "topic-stats",
    ("brokers", "change"): "set-config",
    ("brokers", "remove_change"): "remove-config",
    ("brokers", "overridden"): "changed-config",
    ("brokers", "runtime"): "config",
    ("schemas", "post_schema"): "create",
    ("transactions", "coordinator_stats"): "coordinators",
    ("transactions", "slow_transactions"): "slow",
    ("transactions", "transaction_metadata"): "show",
    ("transactions", "abort_transaction"): "abort",
    ("schemas", "get_version_by_schema"): "version-of",
    ("subscriptions", "analyze"): "analyze-backlog",
}
_POLICIES: Final = {"namespace policies", "topic policies"}
_ACTIONS: Final = {"get": "get", "put": "set", "post": "set", "delete": "remove"}
_SCALARS: Final = ("integer", "number", "boolean", "string")


def operations() -> str:
    """Return the text of the file."""
    found: dict[str, Json] = {}
    for resource, name, operation in _all():
        place = found.setdefault(resource, {})
        if name in place and place[name]["verb"] != "POST":
            continue  # PUT and POST that do the same: Pulsar has POST.
        place[name] = operation
    return json.dumps(found, indent=0, ensure_ascii=False, sort_keys=True) + "\n"


def left_out(path: str) -> str | None:
    """Return why a route has no command; None if it has one."""
    return next((why for pattern, why in LEFT_OUT.items() if re.match(pattern, path)), None)


def routes() -> Iterator[tuple[str, str, Json, Json]]:
    """Yield path, verb, operation and the document's schemas, of every route with a command."""
    document = build(cast("Gateway", None)).openapi()
    for path, verbs in document["paths"].items():
        if left_out(path) is None:
            for verb, operation in verbs.items():
                yield path, verb, operation, document["components"]["schemas"]


def _all() -> Iterator[tuple[str, str, Json]]:
    taken: dict[tuple[str, str], str] = {}
    for path, verb, operation, schemas in routes():
        resource = _resource(path, operation["tags"][0])
        name = _name(resource, path, verb, operation)
        parts = re.sub(r"\W", "", path)
        # PUT and POST of one path, and of both spellings of an assignment, are one command.
        if taken.setdefault((resource, name), parts) != parts:
            raise ValueError(f"{resource} {name} is {taken[resource, name]} and {parts}: give one a name in _NAMES")
        yield resource, name, _operation(path, verb, operation, schemas)


def _resource(path: str, tag: str) -> str:
    of_subscription = "{topic}/" in path and "{subscription}" in path and tag != "transactions"
    return "subscriptions" if of_subscription else _RESOURCES[tag]


def _name(resource: str, path: str, verb: str, operation: Json) -> str:
    if operation["tags"][0] in _POLICIES:
        return f"{_ACTIONS[verb]} {_policy(path)}"
    function = operation["operationId"].removesuffix(re.sub(r"\W", "_", path) + f"_{verb}")
    if (resource, function) in _NAMES:
        return _NAMES[resource, function]
    own = {resource, resource.removesuffix("s")}
    words = [word for word in function.split("_") if word not in own] or [function]
    return "-".join(words)


def _policy(path: str) -> str:
    """Return the name of a policy: the end of its path."""
    tail = re.split(r"{(?:topic|namespace)}/", path)[-1]
    name = "/".join(part for part in tail.split("/") if not part.startswith("{"))
    return name.removesuffix("Map")


def _operation(path: str, verb: str, operation: Json, schemas: Json) -> Json:
    text = operation.get("description") or operation["summary"]
    made: Json = {"verb": verb.upper(), "path": path, "text": " ".join(text.split())}
    if query := [_parameter(one, schemas) for one in operation.get("parameters", ()) if one["in"] == "query"]:
        made["query"] = query
    if "requestBody" in operation:
        made["body"] = _body(next(iter(operation["requestBody"]["content"].values()))["schema"], schemas)
    return made


def _parameter(parameter: Json, schemas: Json) -> Json:
    made = {"name": parameter["name"], **_body(parameter["schema"], schemas)}
    if parameter.get("required"):
        made["required"] = True
    if text := parameter.get("description"):
        made["text"] = text
    return made


def _body(schema: Json, schemas: Json) -> Json:
    """Return what the command line needs of a schema: kind, fields, words, and whether it may be left out."""
    schema = _resolved(schema, schemas)
    if "anyOf" in schema:
        first, *others = (one for one in schema["anyOf"] if one.get("type") != "null")
        made = _body(first, schemas)
        return {**made, "optional": True} if len(others) < len(schema["anyOf"]) - 1 else made
    kind = schema.get("type", "json")
    if kind == "object":
        fields = {name: _body(one, schemas) for name, one in schema.get("properties", {}).items()}
        if fields:
            required = schema.get("required", [])
            return {"kind": "object", "fields": fields} | ({"needs": required} if required else {})
        return {"kind": "map"}
    made = {"kind": kind if kind in (*_SCALARS, "array") else "json"}
    words = schema.get("enum") or _resolved(schema.get("items", {}), schemas).get("enum")
    return made | ({"words": words} if words else {})


def _resolved(schema: Json, schemas: Json) -> Json:
    return schemas[schema["$ref"].rsplit("/", 1)[-1]] if "$ref" in schema else schema

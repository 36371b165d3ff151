# SPDX-License-Identifier: Apache-2.0
"""Names and types that the admin port takes: numbers are numbers, and names can be written in a path.

The bodies are the examples of all policies, with one value after the other replaced; a new policy is tested without a
new test.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from penstock.admin.access import _routes
from penstock.admin.routes.policies import OF_NAMESPACES, OF_TOPICS, Resource
from tests.admin.application import application

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

GROUPS, SEED = "/admin/v2/resourcegroups", "/admin/v2/resourcegroup"
RATES = ("publishRateInMsgs", "publishRateInBytes", "dispatchRateInMsgs", "dispatchRateInBytes")
BAD_NAMES = {
    ".": "%2E",
    "..": "%2E%2E",
    "a/b": "a%2Fb",
    "a b": "a%20b",
    "line": "a%0Ab",
    "nul": "a%00",
    "end of line": "a%0A",
    "not ASCII": "%C3%A4",
    "too long": "a" * 256,
}
# Not of the kind of the key: what JSON has instead.
WRONG: dict[type, tuple[Any, ...]] = {
    int: (True, False, "7", "true", 7.5, [7], {"a": 7}),
    float: (True, False, "7.5", "nan", [7.5], {"a": 7.5}),
    bool: ("true", "false", "yes", 1, 0, [True], {"a": True}),
}


def broken(body: Any) -> Iterator[tuple[str, Any, Any]]:  # noqa: ANN401 -- JSON
    """Yield the name of each number and switch in a body, and bodies in which it is of another type."""
    if isinstance(body, dict):
        for name, value in body.items():
            for inner, wrong, bad in broken(value):
                yield inner or name, wrong, {**copy.deepcopy(body), name: bad}
    elif type(body) in WRONG:
        for wrong in WRONG[type(body)]:
            yield "", wrong, wrong


def check_refused(answer: httpx.Response, name: str) -> None:
    assert answer.status_code == 400, answer.request.content
    assert name in answer.json()["reason"]


@pytest.mark.parametrize(
    ("base", "resource"),
    [
        *(("/admin/v2/namespaces/public/default", resource) for resource in OF_NAMESPACES),
        *(("/admin/v2/persistent/public/default/typed", resource) for resource in OF_TOPICS),
    ],
    ids=lambda value: value.path if isinstance(value, Resource) else value.split("/")[3],
)
def test_a_policy_takes_numbers_and_switches_as_such_only(rest: httpx.Client, base: str, resource: Resource) -> None:
    rest.put("/admin/v2/persistent/public/default/typed")
    path = f"{base}/{resource.path}"
    before = rest.get(path).content
    for name, _, body in broken(resource.example):
        check_refused(rest.request(resource.verb, path, json=body), name)
    assert rest.get(path).content == before


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("prefix", [GROUPS, SEED])
def test_a_rate_of_a_group_is_a_number(rest: httpx.Client, prefix: str, name: str) -> None:
    for _, _, body in broken({name: 7}):
        check_refused(rest.put(f"{prefix}/typed", json=body), name)
    assert rest.get(f"{GROUPS}/typed").status_code == 404
    assert rest.put(f"{prefix}/typed", json={name: 7.0}).is_success  # JSON has one kind of numbers.
    assert rest.get(f"{GROUPS}/typed").json()[name] == 7
    assert rest.delete(f"{prefix}/typed").is_success


def test_other_bodies_take_numbers_as_such_only(rest: httpx.Client) -> None:
    topic = "/admin/v2/persistent/public/default/typed"
    rest.put(topic)
    for verb, path, body in (
        ("PUT", f"{topic}-p/partitions", 3),
        ("PUT", f"{topic}-p/partitions", {"partitions": 3}),
        ("PUT", f"{topic}/subscription/s", {"ledgerId": 1, "entryId": 1, "partitionIndex": 1, "excluded": True}),
        ("PUT", f"{topic}/backlogSize", {"ledgerId": 1, "entryId": 1, "batchIndex": 1}),
        ("PUT", "/admin/v2/namespaces/public/typed", {"bundles": {"numBundles": 4}, "max_topics_per_namespace": 3}),
        ("POST", "/admin/v2/resource-quotas", {"msgRateIn": 1.0, "dynamic": True}),
    ):
        for name, _, bad in broken(body):
            check_refused(rest.request(verb, path, json=bad), name)


def test_every_number_and_switch_of_every_body_is_of_a_strict_type() -> None:
    bodies = {
        str(getattr(route, "path", None)): body._type_adapter  # noqa: SLF001 - with all annotations
        for route in _routes(application().routes)
        if (body := getattr(route, "body_field", None)) is not None
    }
    assert len(bodies) > 80
    for path, body in bodies.items():
        assert not list(lenient(body.core_schema, strict=False)), path


def lenient(schema: Any, *, strict: bool) -> Iterator[Any]:  # noqa: ANN401 -- of pydantic's core
    """Yield the types in a schema that take values of other types."""
    if isinstance(schema, list | tuple):
        for each in schema:
            yield from lenient(each, strict=strict)
    elif isinstance(schema, dict):
        if (
            any(schema.get("type") == kind for kind in ("int", "float", "bool"))
            and not strict
            and not schema.get("strict")
        ):
            yield schema
        # `Int` and its like look at a value before pydantic does.
        strict = strict or schema.get("type") == "function-before"
        for name, each in schema.items():
            if name not in {"metadata", "serialization"}:
                yield from lenient(each, strict=strict)


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_what_is_created_has_a_name_that_a_path_can_hold(rest: httpx.Client, name: str) -> None:
    tenant = {"adminRoles": [], "allowedClusters": ["standalone"]}
    for path, body in (
        (f"{GROUPS}/{name}", {"publishRateInMsgs": 1}),
        (f"{SEED}/{name}", {"publishRateInMsgs": 1}),
        (f"/admin/v2/tenants/{name}", tenant),
        (f"/admin/v2/namespaces/public/{name}", None),
        (f"/admin/v2/clusters/{name}", {"serviceUrl": "http://other"}),
    ):
        answer = send_as_it_is(rest, path, body)
        assert answer.status_code == 412, (path, answer.text)
        assert "letters, digits" in answer.json()["reason"]


def test_names_of_255_characters_are_allowed(rest: httpx.Client) -> None:
    path = f"{GROUPS}/{'a' * 255}"
    assert rest.put(path, json={"publishRateInMsgs": 1}).status_code == 204
    assert rest.delete(path).status_code == 204


def send_as_it_is(rest: httpx.Client, path: str, body: object) -> httpx.Response:
    """Put a body at a path that libraries would shorten: they take `%2E%2E` for the directory above."""
    request = rest.build_request("PUT", "/", json=body)
    request.url = request.url.copy_with(raw_path=path.encode())
    return rest.send(request)

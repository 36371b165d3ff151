# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document: complete, and honest about parameters and errors."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.admin.access import unguarded
from penstock.admin.api import build

if TYPE_CHECKING:
    from fastapi import FastAPI

    from penstock.admin.gateway import Gateway

VERBS = {"get", "put", "post", "delete"}


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return build(cast("Gateway", None))


@pytest.fixture(scope="module")
def document(app: FastAPI) -> dict[str, Any]:
    return app.openapi()


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (verb, path, operation)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
        if verb in VERBS
    ]


def test_every_route_says_who_may_call_it(app: FastAPI) -> None:
    assert set(unguarded(app)) <= {"/openapi.json"}


def test_every_part_of_a_path_is_a_parameter(document: dict[str, Any]) -> None:
    for verb, path, operation in operations(document):
        named = [one["name"] for one in operation.get("parameters", []) if one["in"] == "path"]
        assert sorted(named) == sorted(re.findall(r"{(\w+)}", path)), (verb, path)


def test_every_operation_says_what_it_does(document: dict[str, Any]) -> None:
    for verb, path, operation in operations(document):
        assert operation.get("description") or operation.get("summary"), (verb, path)


def test_no_two_operations_share_an_id(document: dict[str, Any]) -> None:
    ids = Counter(operation["operationId"] for _, _, operation in operations(document))
    assert [one for one, count in ids.items() if count > 1] == []


def test_every_error_of_the_administration_has_one_shape(document: dict[str, Any]) -> None:
    for verb, path, operation in operations(document):
        if not path.startswith(("/admin/", "/lookup/")):
            continue
        assert {"400", "401", "403", "404", "500", "503"} <= operation["responses"].keys(), (verb, path)
        for status, response in operation["responses"].items():
            if int(status) >= 400 and "content" in response and "/health" not in path:
                schema = response["content"]["application/json"]["schema"]
                assert schema["$ref"].endswith("/Reason"), (verb, path, status)


def test_the_frameworks_own_errors_are_not_documented_for_they_do_not_happen(document: dict[str, Any]) -> None:
    assert not {"HTTPValidationError", "ValidationError"} & document["components"]["schemas"].keys()


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"].keys()
    named = set(re.findall(r"#/components/schemas/([\w.]+)", str(document)))
    assert named <= schemas

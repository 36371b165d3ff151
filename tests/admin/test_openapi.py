# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document: complete, and honest about parameters and errors.

Requests are made from it at random and put to a running broker: its answers must be as the document has them, and never
a fault of ours. A few of each kind here; PENSTOCK_API_CASES=50 puts more, PENSTOCK_API_SEED=2 others.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.admin.access import unguarded
from penstock.admin.api import build
from penstock.testing.client import RawClient, Type
from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI
    from schemathesis import APIOperation
    from schemathesis.core.result import Ok

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


# -- what the document promises, asked of a running broker ------------------------------------------------------------


CASES: Final = int(os.environ.get("PENSTOCK_API_CASES", "2"))  # of each operation and kind
SEED: Final = int(os.environ.get("PENSTOCK_API_SEED", "1"))
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
# It would end what the others ask.
NOT_ASKED: Final = "POST /admin/v2/brokers/shutdown"
# Asked last: what was configured at random stays so.
CONFIGURATION: Final = "/admin/v2/brokers/configuration/{key}"
SETTINGS: Final = """\
forceDeleteNamespaceAllowed=true
forceDeleteTenantAllowed=true
maxNumPartitionsPerPartitionedTopic=20
"""
# Of these there is nothing, whatever is made.
NOWHERE: Final = {
    "GET /status.html",  # statusFilePath is not set
    "GET /admin/v2/brokers/{cluster}/{broker}/ownedNamespaces",
    "GET /admin/v3/why/producers/{producer}",  # none is connected
    "GET /admin/v3/transactions/transactionMetadata/{coordinator}/{number}",  # none is open
    "POST /admin/v3/transactions/abortTransaction/{coordinator}/{number}",
}
BUNDLE: Final = "0x00000000_0x40000000"
NUMBERS: Final = {"version", "ledger", "entry", "nth"}


Places: TypeAlias = "dict[str, st.SearchStrategy[Any]]"


class Asked:
    """A broker, and what is in it."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self._client = httpx.Client(base_url=process.admin_url, trust_env=False, timeout=60)
        self._session = requests.Session()
        self._session.trust_env = False
        self._tenants = 0
        self._places: Places = {}
        self.schema = schemathesis.openapi.from_dict(self._client.get("/openapi.json").json())
        self.schema.config.update(base_url=process.admin_url)
        self._brokers: list[str] = self._client.get("/admin/v2/brokers").json()
        self._settings: list[str] = self._client.get("/admin/v2/brokers/configuration").json()

    def close(self) -> None:
        self._session.close()
        self._client.close()

    def operations(self) -> list[APIOperation[Any, Any, Any, Any]]:
        """All but one, in the order they are asked in."""
        found = [
            cast("Ok[APIOperation[Any, Any, Any, Any]]", result).ok() for result in self.schema.get_all_operations()
        ]
        wanted = [one for one in found if one.label != NOT_ASKED]
        return sorted(wanted, key=lambda one: (one.path.startswith(CONFIGURATION), one.method.upper() != "GET"))

    def places(self) -> Places:
        """A tenant with something of everything in it: made anew when the last one misses something."""
        if not self._intact():
            self._places = self._furnished()
        return self._places

    def _intact(self) -> bool:
        namespace = f"tenant{self._tenants}/orders"
        looks = {
            f"/admin/v2/persistent/{namespace}/t/subscriptions": '["s"]',
            f"/admin/v2/persistent/{namespace}/p/subscriptions": '["s"]',
            f"/admin/v2/namespaces/{namespace}/property/size": "large",
            f"/admin/v2/resource-quotas/{namespace}/{BUNDLE}": "",
            f"/admin/v2/resourcegroups/tenant{self._tenants}": "",
        }
        answers = {path: self._client.get(path) for path in looks}
        return all(answer.is_success and looks[path] in answer.text for path, answer in answers.items())

    def _furnished(self) -> Places:
        """Strategies for what there is, by the names that paths have for it."""
        self._tenants += 1
        tenant = f"tenant{self._tenants}"
        namespace = f"{tenant}/orders"
        topics = f"/admin/v2/persistent/{namespace}"
        self._make(f"/admin/v2/tenants/{tenant}", {"allowedClusters": ["standalone"]})
        self._make(f"/admin/v2/namespaces/{namespace}")
        self._make(f"/admin/v2/resourcegroups/{tenant}", {"publishRateInMsgs": 5})
        self._make(f"{topics}/t", {"size": "large"})
        self._make(f"{topics}/p/partitions", 2)
        for topic in ("t", "p"):
            self._make(f"{topics}/{topic}/subscription/s", {"ledgerId": -1, "entryId": -1})
        self._make(f"/admin/v2/namespaces/{namespace}/property/size/large")
        with RawClient(self._process.port) as raw:
            raw.produce(f"persistent://{namespace}/t", schema={"name": "s", "schema_data": b"", "type": 1})
            raw.publish([b"one", b"two", b"three"])
            raw.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=0)
        ledger = self._client.get(f"{topics}/t/lastMessageId").json()["ledgerId"]
        there: dict[str, list[Any]] = {
            "tenant": [tenant],
            "namespace": ["orders"],
            "domain": ["persistent", "persistent", "non-persistent"],
            "topic": ["t", "p-partition-0", "p"],
            "partitioned": ["p", "t"],
            "subscription": ["s"],
            "bundle": [BUNDLE],
            "cluster": ["standalone"],
            "broker": self._brokers,
            "key": ["size", *self._settings],
            "version": [0, 1],
            "ledger": [ledger],
            "entry": [0, 2, 3],
            "nth": [1, 4],
            "allocator": ["default", "ml-cache"],
            "group": [tenant],
        }
        return {name: st.sampled_from(values) for name, values in there.items()}

    def _make(self, path: str, body: object = None) -> None:
        answer = self._client.put(path, json=body) if body is not None else self._client.put(path)
        assert answer.status_code == 204, (path, answer.text)

    def ask(
        self,
        operation: APIOperation[Any, Any, Any, Any],
        mode: GenerationMode,
        places: Places,
    ) -> tuple[set[int], list[str]]:
        """Put requests to one operation. Returns the statuses of the answers, and what is wrong with them."""
        statuses: set[int] = set()
        faults: list[str] = []
        # The first of the values is tried first, so with few cases too it is what there should be.
        named = {one.name: places[one.name] for one in operation.path_parameters if one.name in places}
        if "topic" in named and "artition" in operation.path:
            named["topic"] = places["partitioned"]
        if mode is GenerationMode.NEGATIVE:
            named = {name: values for name, values in named.items() if name not in NUMBERS}

        @seed(SEED)
        @settings(
            max_examples=CASES,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=mode), st.fixed_dictionaries(named))
        def put(case: Case[Any], named: dict[str, Any]) -> None:
            case.path_parameters.update(named)
            answer = case.call(session=self._session)
            statuses.add(answer.status_code)
            try:
                case.validate_response(answer, checks=CHECKS)
            except FailureGroup as group:
                faults.append(f"{operation.label}: {group}")

        put()
        return statuses, faults

    def errors(self) -> str:
        """What the broker's log says of faults of its own."""
        log = self._process.log_path.read_text(encoding="utf-8")
        return "".join(re.findall(r"^\S+ ERROR .*\n(?:(?!\d{4}-).*\n)*", log, re.MULTILINE))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """A broker of its own: what is asked of it at random is not for others to live with.

    At the end it must start again with all that was stored.
    """
    directory = tmp_path_factory.mktemp("asked")
    (directory / "broker.conf").write_text(SETTINGS)
    with BrokerProcess(directory / "data", ["--config", str(directory / "broker.conf")]) as process:
        found = Asked(process)
        try:
            yield found
        finally:
            found.close()
        assert process.stop() == 0
        process.start()
        with httpx.Client(base_url=process.admin_url, trust_env=False, timeout=60) as client:
            assert client.get("/admin/v2/brokers/health").text == "ok"


def test_of_what_exists_everything_is_answered_as_the_document_says(asked: Asked) -> None:
    nowhere, faults = set(), []
    for operation in asked.operations():
        statuses, found = asked.ask(operation, GenerationMode.POSITIVE, asked.places())
        faults += found
        if statuses == {HTTPStatus.NOT_FOUND}:
            nowhere.add(operation.label)
    assert not faults, "\n\n".join(faults) + asked.errors()
    assert not asked.errors()
    assert nowhere <= NOWHERE


def test_of_what_does_not_exist_everything_is_answered_as_the_document_says(asked: Asked) -> None:
    faults = []
    for operation in asked.operations():
        faults += asked.ask(operation, GenerationMode.POSITIVE, {})[1]
    assert not faults, "\n\n".join(faults) + asked.errors()
    assert not asked.errors()


def test_what_does_not_fit_the_document_is_answered_as_it_says(asked: Asked) -> None:
    faults = []
    places = asked.places()
    for operation in asked.operations():
        if operation.body or any(_is_typed(one) for one in operation.iter_parameters()):
            faults += asked.ask(operation, GenerationMode.NEGATIVE, places)[1]
    assert not faults, "\n\n".join(faults) + asked.errors()
    assert not asked.errors()


def _is_typed(parameter: Any) -> bool:  # noqa: ANN401 - of the library's own
    return "string" not in str(parameter.definition.get("schema"))

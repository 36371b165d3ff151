# SPDX-License-Identifier: Apache-2.0
"""What holds for every request to the admin port: paths, methods, bodies and the shape of errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from penstock.admin.middleware import BODY_BYTES_MAX, RequestMiddleware

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import Receive, Scope, Send

TENANTS = "/admin/v2/tenants"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("s%2F1", "s/1"),  # as a path, once: Go, curl
        ("s%252F1", "s/1"),  # twice over, as Java's admin client does
        ("s+1%252B2", "s 1+2"),
        ("50%25", "50%"),
        ("%C3%BC", "ü"),
        ("%25C3%25BC", "ü"),
        ("-_.~", "-_.~"),
    ],
)
def test_a_subscriptions_name_survives_however_a_client_encodes_it(
    rest: httpx.Client, topic: str, path: str, name: str
) -> None:
    assert rest.put(f"/admin/v2/persistent/{topic}/subscription/{path}").status_code == 204
    assert rest.get(f"/admin/v2/persistent/{topic}/subscriptions").json() == [name]
    assert rest.post(f"/admin/v2/persistent/{topic}/subscription/{path}/skip_all").status_code == 204
    assert rest.delete(f"/admin/v2/persistent/{topic}/subscription/{path}").status_code == 204


@pytest.mark.parametrize(
    ("path", "name"), [("a+b", "a b"), ("a%20b", "a b"), ("a%2Bb", "a+b"), ("a%2541b", "a%41b"), ("%C3%BC", "ü")]
)
def test_a_topics_name_is_written_as_in_a_form(rest: httpx.Client, namespace: str, path: str, name: str) -> None:
    assert rest.put(f"/admin/v2/persistent/{namespace}/{path}").status_code == 204
    assert rest.get(f"/admin/v2/persistent/{namespace}").json() == [f"persistent://{namespace}/{name}"]


def test_a_slash_in_a_topics_name_is_no_part_of_the_path_and_refused(rest: httpx.Client, namespace: str) -> None:
    answer = rest.put(f"/admin/v2/persistent/{namespace}/a%2Fb")
    assert answer.status_code == 412
    assert "holds a slash" in answer.json()["reason"]


def test_a_slash_at_the_end_means_nothing(rest: httpx.Client) -> None:
    assert rest.get(f"{TENANTS}/").json() == rest.get(TENANTS).json()


def test_an_unknown_path_is_answered_with_a_reason(rest: httpx.Client) -> None:
    answer = rest.get("/admin/v2/nowhere")
    assert (answer.status_code, answer.json()) == (404, {"reason": "Not Found"})


def test_a_method_that_is_not_served_names_those_that_are(rest: httpx.Client) -> None:
    answer = rest.patch(f"{TENANTS}/public")
    assert (answer.status_code, answer.json()) == (405, {"reason": "PATCH is not served here"})
    assert answer.headers["allow"] == "GET, HEAD, PUT, POST, DELETE, OPTIONS"


def test_options_names_the_methods_of_a_path(rest: httpx.Client) -> None:
    answer = rest.options("/admin/v2/persistent/public/default/t/subscriptions")
    assert (answer.status_code, answer.headers["allow"], answer.content) == (200, "GET, HEAD, OPTIONS", b"")
    assert rest.options("/admin/v2/nowhere").status_code == 404


def test_head_is_get_without_the_body(rest: httpx.Client) -> None:
    answer = rest.head(f"{TENANTS}/public")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == str(len(rest.get(f"{TENANTS}/public").content))
    assert rest.head(f"{TENANTS}/nobody").status_code == 404


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "JSON decode error"),
        (b"abc", "JSON decode error"),
        (b'"soon"', "want a number, not a text"),
        (b"[7]", "valid integer"),
        (b"99999999999", "less than or equal to"),
        (b"\xff", "parsing the body"),
    ],
)
def test_a_body_that_does_not_read_is_400_with_a_reason(
    rest: httpx.Client, namespace: str, body: bytes, reason: str
) -> None:
    answer = rest.post(
        f"/admin/v2/namespaces/{namespace}/messageTTL", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert reason in answer.json()["reason"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("[" * 40 + "]" * 40, "nested deeper than 32 levels"),
        ('{"a":' * 900 + "1" + "}" * 900, "nested deeper than 32 levels"),
        ("[" * 8_000, "parsing the body"),
        ("NaN", "nan is no number"),
        ("1e999", "inf is no number"),
        ('"\\ud800"', "half of a character"),
        ('{"\\udfff": 1}', "half of a character"),
        ("9" * 5000, "parsing the body"),
    ],
)
def test_what_could_not_be_kept_or_shown_again_is_not_taken(
    rest: httpx.Client, namespace: str, value: str, reason: str
) -> None:
    path = f"/admin/v2/namespaces/{namespace}/offloadPolicies"
    answer = rest.post(path, content=f'{{"anything": {value}}}')
    assert answer.status_code == 400
    assert reason in answer.json()["reason"]
    assert rest.get(path).status_code == 204


def test_what_is_as_deep_as_anything_sensible_is_kept(rest: httpx.Client, namespace: str) -> None:
    path = f"/admin/v2/namespaces/{namespace}/offloadPolicies"
    value = {"anything": [{"of": ["any", {"kind": "𝄞"}]}]}
    assert rest.post(path, json=value).status_code == 204
    assert rest.get(path).json() == value


def test_a_body_of_which_nothing_is_said_is_json(rest: httpx.Client, namespace: str) -> None:
    assert rest.post(f"/admin/v2/namespaces/{namespace}/messageTTL", content=b"7").status_code == 204
    assert rest.get(f"/admin/v2/namespaces/{namespace}/messageTTL").json() == 7


def test_an_empty_body_of_json_is_no_body(rest: httpx.Client, topic: str) -> None:
    json = {"content-type": "application/json"}
    assert rest.post(f"/admin/v2/persistent/{topic}/trim", content=b"", headers=json).status_code == 204
    assert rest.put(f"/admin/v2/persistent/{topic}/subscription/s", content=b"", headers=json).status_code == 204


def test_members_that_nobody_knows_are_ignored(rest: httpx.Client, namespace: str) -> None:
    retention = {"retentionTimeInMinutes": 5, "retentionSizeInMB": 6, "retentionSizeInBytes": 7}
    assert rest.post(f"/admin/v2/namespaces/{namespace}/retention", json=retention).status_code == 204
    assert rest.get(f"/admin/v2/namespaces/{namespace}/retention").json() == {
        "retentionTimeInMinutes": 5,
        "retentionSizeInMB": 6,
    }


def test_a_body_too_large_is_refused_by_its_announced_length(rest: httpx.Client) -> None:
    answer = rest.put(f"{TENANTS}/large", content=b" " * (BODY_BYTES_MAX + 1))
    reason = f"the body has {BODY_BYTES_MAX + 1} bytes or more, and may have {BODY_BYTES_MAX}"
    assert (answer.status_code, answer.json()) == (413, {"reason": reason})


def test_a_body_too_large_is_refused_when_no_length_was_announced(rest: httpx.Client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(BODY_BYTES_MAX // 2**16 + 1):
            yield b" " * 2**16

    try:
        answer = rest.put(f"{TENANTS}/large", content=chunks())
    except httpx.WriteError:
        return  # Refused while it was still being sent.
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 204),  # a program
        ({"sec-fetch-site": "same-origin", "origin": "http://broker"}, 204),  # the console
        ({"sec-fetch-site": "none"}, 204),  # typed by the user
        ({"origin": "HOST"}, 204),  # the console of a broker without TLS
        ({"sec-fetch-site": "cross-site", "origin": "https://evil.example"}, 403),
        ({"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:1"}, 403),  # another port of this host
        ({"sec-fetch-site": "", "origin": "HOST"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),  # a page in a frame without an origin
    ],
)
def test_a_page_of_another_site_changes_nothing(
    rest: httpx.Client, topic: str, headers: dict[str, str], status: int
) -> None:
    assert rest.put(f"/admin/v2/persistent/{topic}/subscription/s").status_code == 204
    sent = {name: value.replace("HOST", str(rest.base_url).rstrip("/")) for name, value in headers.items()}
    answer = rest.post(f"/admin/v2/persistent/{topic}/subscription/s/skip_all", headers=sent)
    assert answer.status_code == status, answer.text
    assert rest.get(f"/admin/v2/persistent/{topic}/subscriptions", headers=sent).json() == ["s"]


async def test_what_is_not_a_request_goes_through_untouched() -> None:
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    await RequestMiddleware(app)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == [{"type": "lifespan"}]

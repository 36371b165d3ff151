# SPDX-License-Identifier: Apache-2.0
"""The one question that the binary protocol has no command for: which namespaces a tenant has.

Where: the planner asks the admin port if a pattern is of several namespaces; nothing else needs `admin.url`.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from typing import TYPE_CHECKING, Final
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
)

from penstock.spark.client.errors import ClientError

if TYPE_CHECKING:
    from penstock.spark.client.credentials import Credentials
    from penstock.spark.client.endpoint import Endpoint

_ANSWER_BYTES_MAX: Final = 16 << 20
_URL: Final = re.compile(r"https?://[^/?#@\s]+/?")


class NoNamespaces(ClientError):
    """The admin port did not say which namespaces there are."""

    def __init__(self, url: str, why: str, *, may_pass: bool = False) -> None:
        self.may_pass = may_pass
        super().__init__(
            f"cannot list namespaces, {url}: {why}; check admin.url, and that these credentials may list the "
            "namespaces of the tenant; or name one namespace in topicsPattern"
        )


def check_url(url: str, endpoint: Endpoint) -> None:
    """Raise ValueError if this is no admin URL, or if credentials would leave TLS for it."""
    if not _URL.fullmatch(url):
        raise ValueError(f"option admin.url is {url!r}; want the address of one broker, like http://host:8080")
    has_tls = any(address.tls for address in endpoint.addresses)
    if endpoint.credentials.method != "none" and has_tls and url.startswith("http:"):
        raise ValueError(
            f"option admin.url is {url}: credentials for pulsar+ssl:// are not sent without TLS; use https"
        )


def namespaces(endpoint: Endpoint, url: str, tenant: str) -> list[str]:
    """Return the names of a tenant's namespaces, without the tenant, sorted.

    Raises:
        NoNamespaces: the admin port is unavailable or refuses. UnusableFile: a file of credentials or TLS.
    """
    asked = f"{url.rstrip('/')}/admin/v2/namespaces/{urllib.parse.quote(tenant, safe='')}"
    headers = {"Accept": "application/json", **_authorization(endpoint.credentials)}
    # Without redirects: credentials would be sent to whatever address they name.
    opener = OpenerDirector()
    for handler in (
        *(HTTPHandler(), HTTPSHandler(context=endpoint.tls.context())),
        *(HTTPDefaultErrorHandler(), HTTPErrorProcessor()),
    ):
        opener.add_handler(handler)
    request = urllib.request.Request(asked, headers=headers)  # noqa: S310 -- `check_url` has checked it
    try:
        with opener.open(request, timeout=endpoint.connect_timeout_s) as answer:
            said = json.loads(answer.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        error.close()
        raise NoNamespaces(asked, f"it answered {error.code} {error.reason}", may_pass=error.code >= 500) from None
    except (OSError, ValueError) as error:
        raise NoNamespaces(asked, str(error), may_pass=isinstance(error, OSError)) from None
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said):
        raise NoNamespaces(asked, "its answer is no list of names")
    return sorted(name.rpartition("/")[2] for name in said)


def _authorization(credentials: Credentials) -> dict[str, str]:
    data = credentials.data() if credentials.method in {"token", "basic"} else b""
    if credentials.method == "token":
        return {"Authorization": f"Bearer {data.decode()}"}
    return {"Authorization": f"Basic {b64encode(data).decode()}"} if data else {}

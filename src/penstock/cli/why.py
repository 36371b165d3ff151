# SPDX-License-Identifier: Apache-2.0
"""`penstock why`: asks a running broker what slows a tenant, a namespace, a topic or a producer.

Where: `main` calls it. It sends one request to the admin port, so it works from any machine that reaches it.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator

Json: TypeAlias = dict[str, Any]

_DESCRIPTION: Final = """\
Say which limits slow a tenant, a namespace, a topic or a producer now: each limit with its numbers,
since when, and what would lift it. Exit status 0, whether something is slowed or not.
"""
_URL: Final = "http://127.0.0.1:8080"
_TOKEN: Final = "PENSTOCK_TOKEN"  # noqa: S105 - the name of a variable
_TIMEOUT_S: Final = 60
_NOT_FOUND: Final = 404
# Of a finding, by its effect; older brokers do not say it.
_VERBS: Final = {"slows": "by", "waits": "waits", "would-refuse": "but"}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "why",
        help="say what slows a tenant, namespace, topic or producer",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument("name", metavar="NAME", help="TENANT, TENANT/NAMESPACE, a full topic name, or a producer name")
    parser.add_argument("--admin-url", default=_URL, metavar="URL", help=f"the broker's admin port (default: {_URL})")
    parser.add_argument("--token", metavar="TOKEN", help=f"a token of an admin (default: the variable {_TOKEN})")
    parser.add_argument("--json", action="store_true", help="print the broker's answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Ask and print; return the exit status. Raises PenstockError if the broker does not answer or refuses."""
    answer = _ask(arguments.admin_url, arguments.name, arguments.token or os.environ.get(_TOKEN))
    print(json.dumps(answer, indent=2) if arguments.json else "\n".join(lines(answer)))
    return 0


def paths(name: str) -> list[str]:
    """The routes that may know this name, to be asked in this order."""
    from urllib.parse import quote

    domain, colon, rest = name.partition("://")
    if colon:
        tenant, _, local = rest.partition("/")
        namespace, _, topic = local.partition("/")
        if domain not in {"persistent", "non-persistent"} or not topic:
            raise PenstockError(f"{name!r} is not a topic: want persistent://tenant/namespace/topic")
        return [f"{domain}/{quote(tenant, safe='')}/{quote(namespace, safe='')}/{quote(topic, safe='')}"]
    if name.count("/") == 1:
        return ["namespaces/" + "/".join(quote(part, safe="") for part in name.split("/"))]
    quoted = quote(name, safe="")
    return [f"tenants/{quoted}", f"producers/{quoted}"]


def lines(answer: Json) -> Iterator[str]:
    """The answer as text."""
    yield from _lines(answer)
    if answer.get("unanswered"):  # Older brokers do not say it.
        yield f"brokers that did not answer: {', '.join(map(str, answer['unanswered']))}"


def _lines(answer: Json) -> Iterator[str]:
    looked = f"{answer['producers']} producers, {answer['subscriptions']} subscriptions"
    if answer.get("slowed", answer["findings"]):
        yield f"{answer['of']} is slowed ({looked}):"
    else:
        yield f"{answer['of']}: nothing slows it now ({looked})"
    for found in answer["findings"]:
        since = f", for {found['forMs'] / 1_000:,.1f} s" if found["forMs"] is not None else ""
        numbers = ", ".join(f"{name} {value:,.12g}" for name, value in found["numbers"].items())
        yield f"- {found['what']}"
        yield f"    {_VERBS[found.get('effect', 'slows')]:8} {found['limit']} ({found['reason']}){since}"
        if numbers:
            yield f"    numbers  {numbers}"
        yield f"    lifted   {found['liftedBy']}"
    if answer["more"]:
        yield "… and more"


def _ask(url: str, name: str, token: str | None) -> Json:
    import http.client
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise PenstockError(f"--admin-url {url!r} is not a URL: want http://HOST:PORT")
    opener = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    status, said = 0, {"reason": "no such name"}
    for path in paths(name):
        connection = opener(parts.hostname, parts.port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", f"/admin/v3/why/{path}", headers=headers)
            response = connection.getresponse()
            status, said = response.status, json.loads(response.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise PenstockError(f"the broker at {url} does not answer: {error}; is --admin-url right?") from error
        finally:
            connection.close()
        if status != _NOT_FOUND:
            break
    if status != http.client.OK:
        raise PenstockError(f"{name}: {said.get('reason')} (status {status})")
    return said

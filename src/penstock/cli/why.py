# SPDX-License-Identifier: Apache-2.0
"""`penstock why`: asks a running broker what slows a tenant, a namespace, a topic or a producer.

Where: `main` calls it. It sends one request to the admin port, so it works from any machine that reaches it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from penstock.cli import contexts, output
from penstock.cli.exits import CommandFailed, Exit, wrong

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.cli.rest import Rest

Json: TypeAlias = dict[str, Any]

_DESCRIPTION: Final = f"""\
Say which limits slow a tenant, a namespace, a topic or a producer now: each limit with its numbers,
since when, and what would lift it. Exit status {Exit.OK:d}: nothing is slowed; {Exit.BAD_NEWS:d}: something is.
"""
# Of a finding, by its effect; older brokers do not say it.
_VERBS: Final = {"slows": "by", "waits": "waits", "would-refuse": "but"}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(
        name,
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument("name", metavar="NAME", help="TENANT, TENANT/NAMESPACE, a full topic name, or a producer name")
    output.add_option(parser)
    parser.add_argument("--json", action="store_const", const="json", dest="output", help="the same as -o json")
    contexts.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask and print; return the exit status. Raises CommandFailed if the broker does not answer or refuses."""
    from penstock.cli.rest import Rest

    with Rest(contexts.target(arguments)) as rest:
        answer = _ask(rest, arguments.name)
    if arguments.output == "table":
        print("\n".join(lines(answer)))
    else:
        output.show(answer, arguments.output)
    return Exit.BAD_NEWS if _is_slowed(answer) else Exit.OK


def _is_slowed(answer: Json) -> bool:
    return bool(answer.get("slowed", answer["findings"]))  # Older brokers do not say it.


def paths(name: str) -> list[str]:
    """The routes that may know this name, to be asked in this order."""
    from urllib.parse import quote

    domain, colon, rest = name.partition("://")
    if colon:
        tenant, _, local = rest.partition("/")
        namespace, _, topic = local.partition("/")
        if domain not in {"persistent", "non-persistent"} or not topic:
            raise wrong(f"{name!r} is not a topic: want persistent://tenant/namespace/topic")
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
    if _is_slowed(answer):
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


def _ask(rest: Rest, name: str) -> Json:
    *others, last = paths(name)
    for path in others:
        try:
            return cast("Json", rest.get(f"/admin/v3/why/{path}"))
        except CommandFailed as error:
            if error.status != Exit.NOT_FOUND:
                raise
    return cast("Json", rest.get(f"/admin/v3/why/{last}"))

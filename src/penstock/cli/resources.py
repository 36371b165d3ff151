# SPDX-License-Identifier: Apache-2.0
"""`penstock topics`, `namespaces`, `tenants` and the other resources: a command for each route of the admin port.

Why from a file: `operations.json` is generated from the routes and the table of policies (`tools/write_operations.py`),
so no route lacks its command. Where: `main`. REST only, so every command works with Apache Pulsar, too.

Three names are written as people write them: TOPIC is `t`, `tenant/ns/t` or `persistent://tenant/ns/t`, NAMESPACE is
`tenant/ns`. All other parts of a path are arguments in their order. Policies are read, set and removed by
`get`, `set` and `remove` with the policy's name.
"""

from __future__ import annotations

import argparse
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock.cli import contexts, output, values, waiting
from penstock.cli.exits import Exit, did_you_mean, wrong
from penstock.cli.main import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.cli.rest import Answer, Rest

Operation: TypeAlias = "Mapping[str, Any]"

RESOURCES: Final = [name for name, command in COMMANDS.items() if command.module == "resources"]
_TOPIC: Final = "{domain}/{tenant}/{namespace}/{topic}"
_TOPIC_OF_SCHEMA: Final = "{tenant}/{namespace}/{topic}"
_NAMESPACE: Final = "{tenant}/{namespace}"
_BARE: Final = "_BARE"  # marks a topic without its domain
_POLICY_ACTIONS: Final = {"get": "Read a policy.", "set": "Set a policy.", "remove": "Remove a policy."}
_NAMED: Final = re.compile(r"{(\w+)}")
_FILE: Final = "operations.json"
# What peeking answers: one message with its metadata in headers.
_MESSAGE: Final = "x-pulsar-"


class Action(NamedTuple):
    """One command of a resource. `policies` has an operation for each policy, by its name; else there is one."""

    name: str
    text: str
    policies: Mapping[str, Operation]


@cache
def operations() -> Mapping[str, Mapping[str, Operation]]:
    """Return the operations of each resource by the names of their commands."""
    found: Mapping[str, Mapping[str, Operation]] = json.loads(
        Path(__file__).with_name(_FILE).read_text(encoding="utf-8")
    )
    return found


def actions(resource: str) -> Iterator[Action]:
    """Yield the commands of a resource: those of policies last."""
    plain = {name: one for name, one in operations()[resource].items() if " " not in name}
    yield from (Action(name, one["text"], {"": one}) for name, one in plain.items())
    for verb, text in _POLICY_ACTIONS.items():
        policies = {
            name.removeprefix(f"{verb} "): one
            for name, one in operations()[resource].items()
            if name.startswith(f"{verb} ")
        }
        if policies:
            yield Action(verb, text, policies)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], resource: str) -> None:
    parser = commands.add_parser(resource)
    subcommands = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for action in actions(resource):
        add_action(subcommands, resource, action)


def add_action(subcommands: argparse._SubParsersAction[argparse.ArgumentParser], resource: str, action: Action) -> None:
    """Add one command with its arguments and options."""
    first = next(iter(action.policies.values()))
    of_policy = "" not in action.policies
    parser = subcommands.add_parser(
        action.name,
        help=action.text,
        description=action.text,
        epilog=_policies_text(action) if of_policy else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run, resource=resource, action=action)
    for metavar in _metavars(first["path"])[: _fixed(first["path"]) if of_policy else None]:
        parser.add_argument(metavar, metavar=metavar)
    if _wants_domain(first["path"]):
        parser.add_argument("--domain", choices=("persistent", "non-persistent"), default="persistent")
    if of_policy:
        parser.add_argument("policy", metavar="POLICY", help="its name; see below")
    for query in () if of_policy else _needed(first):
        parser.add_argument(f"query_{query['name']}", metavar=query["name"].upper(), help=values.described(query))
    if of_policy or "body" in first:
        shape = None if of_policy else values.described(first["body"]) + ", or JSON, or @FILE"
        parser.add_argument("values", metavar="VALUE", nargs="*", help=(shape or "see below").replace("%", "%%"))
    _add_queries(parser, [query for one in action.policies.values() for query in one.get("query", ())])
    if waiting.has_effect(resource, action.name):
        waiting.add_option(parser)
    output.add_option(parser)
    contexts.add_options(parser)


def _policies_text(action: Action) -> str:
    lines = ["policies:"]
    for name, one in action.policies.items():
        value = f"  {values.described(shape)}" if action.name == "set" and (shape := value_shape(one)) else ""
        lines.append(f"  {name}{value}")
    return "\n".join(lines)


def value_shape(one: Operation) -> Mapping[str, Any] | None:
    """Return the shape of the value that an operation sets: its body, or the parameter that it needs."""
    return one.get("body") or next(_needed(one), None)


def _needed(one: Operation) -> Iterator[Mapping[str, Any]]:
    """Yield the parameters that an operation needs."""
    return (query for query in one.get("query", ()) if query.get("required"))


def _fixed(path: str) -> int:
    """Return how many arguments stand before the name of a policy: the resource's own."""
    return 2 if "{subscription}" in path else 1


def _wants_domain(path: str) -> bool:
    return "{domain}" in path and "{topic}" not in path


def _metavars(path: str) -> list[str]:
    """Return the arguments of a path in their order."""
    return [name.upper().removesuffix(_BARE) for name in _NAMED.findall(_template(path)) if name != "domain"]


def _template(path: str) -> str:
    """Return a path with names of topics and namespaces in one part."""
    path = path.replace(_TOPIC, "{topic}").replace(_TOPIC_OF_SCHEMA, f"{{topic{_BARE.lower()}}}")
    return path.replace(_NAMESPACE, "{namespace}")


def _add_queries(parser: argparse.ArgumentParser, queries: Sequence[Mapping[str, Any]]) -> None:
    for query in {one["name"]: one for one in queries if not one.get("required")}.values():
        how: dict[str, Any] = (
            {"action": argparse.BooleanOptionalAction} if query["kind"] == "boolean" else {"metavar": "VALUE"}
        )
        text = query.get("text") or ("|".join(query["words"]) if "words" in query else None)
        parser.add_argument(option(query["name"]), dest=f"query_{query['name']}", default=None, help=text, **how)


def option(name: str) -> str:
    """Return the option of a query parameter: getPreciseBacklog is --get-precise-backlog."""
    return "--" + re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def _run(arguments: argparse.Namespace) -> int:
    """Ask, and print the answer. Raises CommandFailed."""
    from penstock.cli.rest import Rest

    action: Action = arguments.action
    name = "" if "" in action.policies else policy_named(arguments.policy, list(action.policies))
    request = Request(arguments, name, action.policies[name])
    target = contexts.target(arguments)
    with Rest(target) as rest:
        if getattr(arguments, "wait", None) is None:
            answer = request.ask(rest)
        else:
            waits = waiting.Waiting(arguments, target, rest, request.path())
            answer = request.ask(rest)
            waits.wait(rest)
    if answer.status == 204 and action.policies[name]["verb"] == "GET":
        output.notice("nothing is set")
    output.show(_shown(answer), arguments.output)
    return Exit.OK


class Request:
    """The request that a command line means."""

    def __init__(self, arguments: argparse.Namespace, policy: str, operation: Operation) -> None:
        self._arguments = arguments
        self._operation = operation
        self._what = policy or f"{arguments.resource} {arguments.action.name}"
        self._words: list[str] = list(getattr(arguments, "values", ()))

    def ask(self, rest: Rest) -> Answer:
        """Send it. Raises CommandFailed."""
        path = self.path()
        query = self._query()
        return rest.ask(self._operation["verb"], path, query, self._body(rest))

    def path(self) -> str:
        """Return its path; of a policy, once, as its words are used up. Raises CommandFailed."""
        return _NAMED.sub(lambda found: self._part(found[1]), _template(self._operation["path"]))

    def _part(self, name: str) -> str:
        if name == "domain":
            return str(self._arguments.domain)
        metavar = name.upper().removesuffix(_BARE)
        given = getattr(self._arguments, metavar, None)
        if given is None:  # A part that stands after the name of the policy.
            if not self._words:
                raise wrong(f"{self._what} needs {metavar}")
            given = self._words.pop(0)
        part = values.path_part(metavar, given)
        return part.partition("/")[2] if name.endswith(_BARE.lower()) else part

    def _query(self) -> dict[str, str]:
        known = {one["name"]: one for one in self._operation.get("query", ())}
        given: dict[str, Any] = {
            name.removeprefix("query_"): value
            for name, value in vars(self._arguments).items()
            if name.startswith("query_") and value is not None
        }
        if strange := given.keys() - known.keys():
            raise wrong(f"{option(strange.pop())} is not of {self._what}")
        for one in _needed(self._operation):
            if one["name"] not in given:
                given[one["name"]] = self._take(one)
        return {
            name: str(value).lower() if isinstance(value, bool) else _worded(str(value), known[name])
            for name, value in given.items()
        }

    def _take(self, shape: Mapping[str, Any]) -> str:
        if not self._words:
            raise wrong(f"{self._what} needs a value: {values.described(shape)}")
        return self._words.pop(0)

    def _body(self, rest: Rest) -> Any:  # noqa: ANN401 - JSON
        shape = self._operation.get("body")
        if shape is None:
            if self._words:
                raise wrong(f"{self._what} takes no value, and {self._words[0]!r} is one too many")
            return None
        if not self._words and not hasattr(self._arguments, "policy"):
            if shape.get("optional"):
                return None
        elif not self._words:
            raise wrong(f"{self._what} needs a value: {values.described(shape)}")
        body = values.body_of(self._words, shape, self._what)
        if self._what == "tenants create" and not body.get("allowedClusters"):
            body["allowedClusters"] = rest.get("/admin/v2/clusters")  # Pulsar refuses a tenant without.
        return body


def _worded(text: str, shape: Mapping[str, Any]) -> str:
    """Return a parameter as its route takes it."""
    return str(values.scalar(text, shape, option(shape["name"])))


def policy_named(given: str, known: list[str]) -> str:
    """Return the policy that a name means, however it is capitalised or divided. Raises CommandFailed."""
    by_plain = {_plain(name): name for name in known}
    found = by_plain.get(_plain(given))
    if found is None:
        near = did_you_mean(given, known)
        raise wrong(f"there is no policy {given!r}{near or '; --help lists them'}")
    return found


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _shown(answer: Answer) -> Any:  # noqa: ANN401 - JSON
    """Return the answer as JSON; a message with its metadata."""
    if answer.headers.get("content-type", "").startswith("application/json"):
        return answer.value()
    metadata = {name.removeprefix(_MESSAGE): text for name, text in answer.headers.items() if name.startswith(_MESSAGE)}
    if not metadata:
        return answer.value()
    return {**metadata, "payload": answer.body.decode("utf-8", "backslashreplace")}

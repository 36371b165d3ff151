# SPDX-License-Identifier: Apache-2.0
"""Rewrite the generated parts of docs/reference from the code that they describe.

Why: a table of settings that is written by hand is wrong within a month.
Where: `make docs` rewrites; `tests/test_docs.py` fails while a file is behind. A generated part stands between
`<!-- generated: NAME -->` and `<!-- end -->`; what is outside belongs to its author.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import textwrap
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.accounting.records import DecisionRecord, UsageRecord, meanings_of
from penstock.accounting.tables import COST_DIGITS, COST_SCALE, TABLES
from penstock.admin.api import build
from penstock.admin.routes.policies import OF_NAMESPACES, OF_TOPICS
from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.broker.policies.policy_table import POLICIES
from penstock.cli import contexts, output, resources, values
from penstock.cli.exits import Exit
from penstock.cli.findings import KINDS
from penstock.cli.main import COMMANDS, build_parser
from penstock.governance.budget import ROWS
from penstock.governance.holds import HoldKind
from penstock.settings.memory import PROCESS_BYTES
from penstock.settings.model import GROUPS, KEYS, keys_of
from penstock.stats.findings import SENTENCES
from penstock.telemetry.proxy_instruments import PROXY_INSTRUMENTS
from penstock.wire.bounds import CLASSES
from penstock.wire.bounds_table import CLASS_OF
from tools.write_operations import FILE as OPERATIONS
from tools.write_operations import operations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.admin.gateway import Gateway
    from penstock.admin.routes.policies import Resource
    from penstock.broker.policies.policy_rows import Policy

ROOT: Final = Path(__file__).resolve().parent.parent
SAMPLE: Final = ROOT / "ops" / "broker.conf"

AVRO_TYPES: Final = {
    "long": "long",
    "string": "string",
    "boolean": "boolean",
    "strings": "array of string",
    "long?": "long or null",
    "double?": "double or null",
}

_PART: Final = re.compile(r"(<!-- generated: (?P<name>[a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(text: str) -> str:
    """Return a document with all its generated parts written anew."""
    return _PART.sub(lambda part: f"{part[1]}\n{PARTS[part['name']]()}\n\n{part[3]}", text)


def settings_table() -> str:
    """Every key of the configuration, group by group."""
    return "\n\n".join(f"### {str(group.__doc__).rstrip('.')}\n\n{_group_table(group)}" for group in GROUPS)


def _group_table(group: type) -> str:
    return _table(
        ("key", "default", "dynamic", "flag", "environment", "meaning"),
        (
            (
                f"`{key.name}`",
                key.default_text if key.default is None else f"`{key.default_text}`" if key.default_text else "none",
                "yes" if key.dynamic else "",
                f"`{key.flag}`" if key.flag else "",
                f"`{key.variable}`",
                key.text,
            )
            for key in keys_of(group).values()
        ),
    )


def record_fields_table(record: type[UsageRecord | DecisionRecord]) -> str:
    """Every field of a class of records."""
    return _table(
        ("field", "type", "unit", "meaning"),
        (
            (f"`{name}`", AVRO_TYPES[one.type], one.unit, one.text)
            for name, one in meanings_of(cast("type[UsageRecord]", record)).items()
        ),
    )


def proxy_metrics_table() -> str:
    """Every metric of a proxy."""
    return _table(
        ("metric", "kind", "unit", "labels", "meaning", "OpenTelemetry"),
        (
            (
                f"`{one.name}`",
                one.kind,
                one.unit,
                ", ".join(f"`{label}`" for label in one.scope.labels),
                one.help,
                f"`{one.otel}`" if one.otel else "",
            )
            for one in PROXY_INSTRUMENTS
        ),
    )


def accounting_tables() -> str:
    """Every table of accounting, with its columns."""
    types = {"strings": "array of string", "decimal": f"decimal({COST_DIGITS}, {COST_SCALE})"}
    return "\n\n".join(
        f"### {table.name}\n\n{table.text}\n\n"
        + _table(
            ("column", "type", "unit", "meaning"),
            (
                (
                    f"`{one.name}`",
                    types.get(kind := one.type.rstrip("?"), kind) + (" or null" if one.optional else ""),
                    one.unit,
                    one.text,
                )
                for one in table.columns
            ),
        )
        for table in TABLES.values()
    )


def commands_table() -> str:
    """Every argument and flag of every command that is not a setting, nor of resources."""
    settings = {key.name for key in KEYS.values()}
    names = [name for name in COMMANDS if name not in resources.RESOURCES]
    return _table(
        ("command", "argument", "meaning"),
        (
            (f"`{command}`", f"`{', '.join(action.option_strings) or action.metavar}`", action.help or "")
            for command, action in actions(build_parser(names))
            if action.dest not in settings and not _is_of_all(action)
        ),
    )


def common_table() -> str:
    """The flags that all commands of clusters have."""
    parser = argparse.ArgumentParser()
    output.add_option(parser)
    contexts.add_options(parser)
    return _table(
        ("flag", "meaning"),
        ((f"`{', '.join(one.option_strings)}`", one.help or "") for _, one in actions(parser)),
    )


def _is_of_all(action: argparse.Action) -> bool:
    return action.dest in {"output", "context", "url", "admin_url", "token_file", "cacert"} and not action.required


def exits_table() -> str:
    """Every exit status."""
    return _table(("status", "meaning"), ((str(int(one)), one.text) for one in Exit))


def findings_table() -> str:
    """Every kind of finding of `penstock doctor`."""
    rows = ((f"`{name}`", kind.severity, kind.why, kind.do) for name, kind in KINDS.items())
    return _table(("finding", "severity", "why it matters", "what to do"), rows)


def resources_tables() -> str:
    """Every command of every resource."""
    parser = build_parser(resources.RESOURCES)
    return "\n\n".join(
        f"### {name.capitalize()}\n\n{_table(('command', 'what it does'), _commands_of(name, parser))}"
        for name in resources.RESOURCES
    )


def _commands_of(resource: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    by_command = {command: list(of_one) for command, of_one in groupby(actions(parser), key=lambda found: found[0])}
    for action in resources.actions(resource):
        command = f"penstock {resource} {action.name}"
        own = [one for _, one in by_command[command] if not _is_of_all(one)]
        words = " ".join(_usage(one) for one in own)
        yield f"`{command} {words}`".replace(" `", "`"), action.text


def _usage(action: argparse.Action) -> str:
    if action.option_strings:
        value = "" if isinstance(action, argparse.BooleanOptionalAction) else f" {action.metavar or 'NAME'}"
        value = f" [{value.strip()}]" if action.nargs == "?" else value
        return f"[{action.option_strings[0]}{value}]"
    return f"[{action.metavar} …]" if action.nargs == "*" else str(action.metavar)


def policy_values_table() -> str:
    """Every policy that can be set, with its value."""
    forms: dict[tuple[str, str], list[str]] = {}
    for resource in ("namespaces", "topics", "subscriptions"):
        for action in resources.actions(resource):
            for name, one in action.policies.items() if action.name == "set" else ():
                shape = resources.value_shape(one)
                forms.setdefault((name, values.described(shape) if shape else "KEY VALUE"), []).append(resource)
    return _table(
        ("policy", "of", "value"), ((f"`{name}`", ", ".join(of), form) for (name, form), of in sorted(forms.items()))
    )


def budget_table() -> str:
    """How the memory limit is divided."""
    return _table(
        ("owner", "share of the rest", "key"),
        (
            ("penstock itself", f"{PROCESS_BYTES // 2**20} MiB, taken off first", ""),
            *((row.owner, f"{row.percent} %", f"`{row.key}`" if row.key else "") for row in ROWS),
        ),
    )


def holds_table() -> str:
    """Every kind of hold, in the order of explanations."""
    blanks = {"of": "*OWNER*", "by": "*a setting*", "wait": "wait for its turn, or "}
    return _table(
        ("reason", "effect", "said of it", "what ends it"),
        (
            (
                f"`{kind.value}`",
                SENTENCES[kind].effect.value,
                SENTENCES[kind].limit.format(**blanks),
                SENTENCES[kind].lifted.format(**blanks),
            )
            for kind in HoldKind
        ),
    )


def policies_table() -> str:
    """Every policy of namespaces and topics."""
    return _table(
        ("policy", "of namespaces", "of topics", "default", "meaning"),
        (
            (
                f"`{row.name}`",
                f"`{row.namespace.key}`" if row.namespace else "",
                f"`{row.topic.path or row.name}`" if row.topic else "",
                ", ".join(f"`{key}`" for key in default_keys(row)) or "none",
                row.text,
            )
            for row in POLICIES.values()
        ),
    )


class _Asked:
    """The defaults of policies, with the keys of those that were read."""

    def __init__(self) -> None:
        self.keys: dict[str, None] = {}

    def __getattr__(self, name: str) -> object:
        self.keys[KEYS[name].name] = None
        return getattr(PolicyDefaults(), name)


def default_keys(row: Policy[Any]) -> tuple[str, ...]:
    """The keys of the configuration that the default of a policy comes from."""
    asked = _Asked()
    row.default(cast("PolicyDefaults", asked))
    return tuple(asked.keys)


def policy_routes_table(start: str, resources: Iterable[Resource]) -> str:
    """Who may use the routes that follow from policies: all are for admins of the tenant."""
    verbs = ("GET", "PUT", "POST", "DELETE")
    return _table(
        ("path", *verbs),
        (
            (
                f"`{start}/{one.path}`",
                *("tenant admin" if verb in {"GET", one.verb, one.removable and "DELETE"} else "" for verb in verbs),
            )
            for one in resources
        ),
    )


def bound_classes_table() -> str:
    """Every class of bound."""
    return _table(
        ("class", "bytes", "elements", "what it is for"),
        (
            (
                name,
                _bound(bound.bytes_max),
                _bound(bound.count_max),
                bound.what + (f"; `{bound.setting}`" if bound.setting else ""),
            )
            for name, bound in CLASSES.items()
        ),
    )


def _bound(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def bounds_tables() -> str:
    """Every field of what a client may send, with its class."""
    named = (
        (message, fields) for message, fields in CLASS_OF.items() if not set(fields.values()) & {"answer", "entry"}
    )
    return _table(
        ("message", "fields"),
        (
            (
                f"`{message}`",
                "; ".join(f"{bound}: {_listed(fields, bound)}" for bound in CLASSES if bound in fields.values()),
            )
            for message, fields in named
        ),
    )


def _listed(fields: Mapping[str, str], bound: str) -> str:
    return ", ".join(f"`{name}`" for name, found in fields.items() if found == bound)


def routes_tables() -> str:
    """Every route of the admin port, by group."""
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for path, verbs in build(cast("Gateway", None)).openapi()["paths"].items():
        for verb, operation in verbs.items():
            text = operation.get("description") or operation["summary"]
            groups.setdefault(operation["tags"][0], []).append((verb.upper(), f"`{path}`", " ".join(text.split())))
    heads = ("verb", "path", "what it does")
    return "\n\n".join(f"### {name.capitalize()}\n\n{_table(heads, rows)}" for name, rows in groups.items())


def actions(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Yield every flag of a parser and its subcommands, with the command it belongs to."""
    for action in parser._actions:  # noqa: SLF001 -- argparse has no public way to list them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                yield from actions(command)
        elif action.dest != "help":
            yield parser.prog, action


def main() -> int:
    """Rewrite every file whose generated parts are behind."""
    for file in sorted(ROOT.glob("docs/**/*.md")):
        text = file.read_text(encoding="utf-8")
        fresh = render(text)
        if fresh != text:
            file.write_text(fresh, encoding="utf-8")
            print(f"rewrote {file.relative_to(ROOT)}")
    if not SAMPLE.exists() or SAMPLE.read_text(encoding="utf-8") != sample():
        SAMPLE.write_text(sample(), encoding="utf-8")
        print(f"rewrote {SAMPLE.relative_to(ROOT)}")
    if not OPERATIONS.exists() or OPERATIONS.read_text(encoding="utf-8") != operations():
        OPERATIONS.write_text(operations(), encoding="utf-8")
        print(f"rewrote {OPERATIONS.relative_to(ROOT)}")
    return 0


# What to begin with, above the settings of a group.
QUICK_STARTS: Final = {
    "Throttling": """\
Quick start: watch what it would do, and look for [AdaptiveThrottle] in the log.

    adaptivePublisherThrottlingEnabled=true
    adaptivePublisherThrottlingObserveOnly=true

To enforce it, and to let go again at once, without a restart:

    pulsar-admin brokers update-dynamic-config --config adaptivePublisherThrottlingObserveOnly --value false
    pulsar-admin brokers update-dynamic-config --config adaptivePublisherThrottlingObserveOnly --value true
""",
}


def sample() -> str:
    """The sample of a configuration file: every setting with its default, commented out."""
    lines = [
        "# A configuration of penstock: every setting with its default. Remove the # of what you change.",
        "#",
        "#     penstock serve --config broker.conf --data-dir ./data",
        "#",
        "# `make docs` writes this file. docs/reference/configuration.md says more.",
    ]
    for group in GROUPS:
        lines += ["", "", f"# ---- {str(group.__doc__).rstrip('.')}"]
        if group.__name__ in QUICK_STARTS:
            lines += ["#", *(f"# {line}".rstrip() for line in QUICK_STARTS[group.__name__].splitlines())]
        for key in keys_of(group).values():
            meaning = key.text + (" Dynamic: it can be changed at run time." if key.dynamic else "")
            if key.default is None and key.default_text not in {"", "none"}:
                meaning += f" Default: {key.default_text}."
            lines += ["", *textwrap.wrap(meaning, 110, initial_indent="# ", subsequent_indent="# ")]
            lines.append(f"#{key.name}={'' if key.default is None else key.default_text}")
    return "\n".join(lines) + "\n"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def spark_options_table(module: str, name: str) -> str:
    """One of the tables of options of Spark's data source."""
    options = getattr(importlib.import_module(f"penstock.spark.{module}"), name)
    rows = ((f"`{one.name}`", f"`{one.default}`" if one.default else "", one.text) for one in options)
    return _table(("option", "default", "meaning"), rows)


def spark_columns_table() -> str:
    """The columns that a read has beside the value."""
    columns = importlib.import_module("penstock.spark.rows").COLUMNS
    rows = ((f"`{name}`", f"`{kind.simpleString()}`", text) for name, kind, text in columns)
    return _table(("column", "type", "what it is"), rows)


def spark_foreign_table() -> str:
    """What becomes of the options that people bring along from other sources."""
    known = importlib.import_module("penstock.spark.foreign_options")
    taken = (
        (f"`{one.name}`", one.origin, f"is taken as `{one.ours}`" + (f": {one.text}" if one.text else ""))
        for one in known.TAKEN
    )
    refused = ((f"`{one.name}`", one.origin, f"refused; write {one.instead}") for one in known.REFUSED)
    alike: dict[tuple[str, str], list[str]] = {}
    for one in known.IGNORED:
        alike.setdefault((one.origin, one.text), []).append(f"`{one.name}`")
    ignored = ((", ".join(names), origin, f"no effect: {text}") for (origin, text), names in alike.items())
    return _table(("option", "of", "here"), [*taken, *refused, *ignored])


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "settings": settings_table,
    "commands": commands_table,
    "common": common_table,
    "exits": exits_table,
    "findings": findings_table,
    "resources": resources_tables,
    "policyvalues": policy_values_table,
    "budget": budget_table,
    "holds": holds_table,
    "routes": routes_tables,
    "policies": policies_table,
    "policiesofnamespaces": partial(policy_routes_table, "NS", OF_NAMESPACES),
    "policiesoftopics": partial(policy_routes_table, "T", OF_TOPICS),
    "boundclasses": bound_classes_table,
    "bounds": bounds_tables,
    "sparkconnection": partial(spark_options_table, "options", "CONNECTION_OPTIONS"),
    "sparkread": partial(spark_options_table, "options", "READ_OPTIONS"),
    "sparkwrite": partial(spark_options_table, "write_options", "WRITE_OPTIONS"),
    "sparkcolumns": spark_columns_table,
    "sparkforeign": spark_foreign_table,
    "usagerecords": partial(record_fields_table, UsageRecord),
    "decisionrecords": partial(record_fields_table, DecisionRecord),
    "proxymetrics": proxy_metrics_table,
    "accountingtables": accounting_tables,
}

if __name__ == "__main__":
    sys.exit(main())

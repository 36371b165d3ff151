# SPDX-License-Identifier: Apache-2.0
"""`penstock support-bundle`: what a maintainer needs to help, in one bounded file without secrets.

Why REST only: it works from any machine, and against Apache Pulsar; what a route does not answer is noted in README.
Where: `main` calls it. `bundle_secrets` removes secrets, `bundle_names` replaces names, `bundle_archive` packs.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from heapq import nsmallest
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock import __version__
from penstock.cli import contexts
from penstock.cli.bundle_archive import Archive, lines_of, tail_of
from penstock.cli.exits import CommandFailed, Exit, wrong
from penstock.core.units import MIB, NS_PER_S

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from penstock.cli.bundle_names import Names
    from penstock.cli.contexts import Target
    from penstock.cli.doctor_settings import Machine
    from penstock.cli.rest import Rest

Json: TypeAlias = Any
Topics: TypeAlias = "dict[str, float]"

_DESCRIPTION: Final = """\
Write one file for those who help you: versions, settings with their sources, health, metrics of each broker at two
moments, what waits and why, statistics of the busiest topics, the findings of `penstock doctor`, and the ends of logs.
Keys, passwords, tokens and Authorization headers are removed. README in it lists the contents: look at them before you
send them. Names of tenants, topics and roles stay, unless you give --anonymous.
"""
_HEAD: Final = (
    "What `penstock support-bundle` has collected. Keys, passwords and tokens were removed, and are shown as ***.",
    "No message and no key of a message is in it.",
)
_ANONYMOUS: Final = (
    "Names were replaced by pseudonyms, the same in all files. Words that penstock's own source has, numbers and times",
    "were kept.",
)
_BROKERS_MAX: Final = 32
_TENANTS_MAX: Final = 100
_FILES_MAX: Final = 10_000
_TOPICS_MAX: Final = 1_000
_ANSWER_MAX: Final = 4 * MIB
# Topics whose counters are compared.
_COUNTED_MAX: Final = 200_000
_TIMEOUT_S: Final = 15.0
_COUNTER: Final = re.compile(r"pulsar_(?:in|out)_messages_total\{(.*)\} (\S+)")
_METRIC: Final = re.compile(r"(?:# (?:TYPE|HELP) )?([A-Za-z]\w*)")
_TOPIC: Final = re.compile(r'topic="((?:[^"\\]|\\.)*)"')
_V2: Final = "/admin/v2"
# Of each broker: what to ask, the member, and what it is.
_OF_BROKERS: Final = (
    (f"{_V2}/brokers/version", "version.json", "version of the broker"),
    (f"{_V2}/broker-stats/load-report", "load-report.json", "its load"),
    (f"{_V2}/broker-stats/muted-connections", "muted-connections.json", "connections that it does not read, and why"),
    (f"{_V2}/broker-stats/topic-listings", "topic-listings.json", "memory of topic listings"),
)
_OF_CLUSTER: Final = (
    (f"{_V2}/clusters", "clusters.json", "clusters"),
    (f"{_V2}/brokers/internal-configuration", "internal-configuration.json", "where metadata is stored"),
    ("/admin/v2/resourcegroups", "groups.json", "resource groups"),
)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = commands.add_parser(name, description=_DESCRIPTION)
    parser.set_defaults(run=_run)
    parser.add_argument(
        "place",
        nargs="?",
        metavar="URL",
        help="an admin port (default: that of the current context, unless there is --data-dir)",
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="also check a data directory, as `doctor` does")
    parser.add_argument("--config", type=Path, metavar="FILE", help="also settings, as `serve` takes them")
    parser.add_argument(
        "--log", type=Path, metavar="FILE", action="append", default=[], help="also the end of a log; may be repeated"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="a new file (default: penstock-support-TIME.tar.gz)"
    )
    parser.add_argument("--topics", type=int, default=20, metavar="N", help="how many busiest topics (default: 20)")
    parser.add_argument(
        "--seconds", type=float, default=5.0, metavar="N", help="between the two looks at metrics (default: 5)"
    )
    parser.add_argument(
        "--anonymous",
        action="store_true",
        help="replace names by pseudonyms; which is which is kept in another file, for you alone",
    )
    contexts.add_options(parser)


def _run(arguments: argparse.Namespace) -> int:
    """Collect and write. Raises CommandFailed: nothing answers, or the file cannot be written."""
    from penstock.cli.doctor_settings import Machine

    if not 0 <= arguments.topics <= _TOPICS_MAX:
        raise wrong(f"--topics {arguments.topics}: want 0 to {_TOPICS_MAX}")
    of = Machine()
    names = None
    if arguments.anonymous:
        from penstock.cli.bundle_names import Names

        names = Names()
    target = contexts.target(arguments)
    target = replace(target, admin_url=arguments.place) if arguments.place else target
    is_local = arguments.data_dir is not None or arguments.config is not None
    with Archive(_known_secrets(target, arguments.config), names) as archive:
        _about(archive, of, names)
        _local(archive, of, arguments)
        if arguments.place or not is_local or arguments.context or arguments.admin_url:
            _remote(archive, of, target, arguments, fails=not is_local and not arguments.log)
        return _write(archive, of, arguments, names)


def _known_secrets(target: Target, config: Path | None) -> Any:  # noqa: ANN401 - Secrets, which is slow to import
    """Return the rules that also hide our own token, and the secrets of settings."""
    from penstock.cli.bundle_secrets import Secrets, is_secret_name
    from penstock.core.errors import ConfigurationError
    from penstock.settings.sources import read_file

    known = [target.token(), os.environ.get(contexts.TOKEN_VARIABLE, "")]
    known += [text for name, text in os.environ.items() if is_secret_name(name)]
    if config is not None:
        with suppress(ConfigurationError):  # The doctor says so.
            known += [one.text for one in read_file(config) if is_secret_name(one.name)]
    return Secrets(known)


def _about(archive: Archive, of: Machine, names: Names | None) -> None:
    if names is not None:
        names.learn("host", platform.node())
    facts = of.facts()
    libraries = sorted((one.metadata["Name"] or "?", one.version) for one in _requirements())
    about = {
        "penstock": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "libc": " ".join(platform.libc_ver()),
        "processors": os.cpu_count(),
        "memoryLimitBytes": facts.limit_bytes,
        "openFilesMax": of.files_max(),
        "libraries": dict(libraries),
    }
    text = "the machine and the penstock that made this file, which may not be the broker's"
    archive.add("machine.json", about, text, has_names=False)


def _requirements() -> Iterator[metadata.Distribution]:
    """Yield what penstock needs, as it is installed."""
    for one in metadata.requires("penstock") or ():
        if "extra ==" in one:
            continue
        try:
            yield metadata.distribution(re.split(r"[^\w.-]", one)[0])
        except metadata.PackageNotFoundError:
            continue


def _local(archive: Archive, of: Machine, arguments: argparse.Namespace) -> None:
    """Add what this machine knows: directory, settings and logs."""
    from penstock.cli import doctor

    data_dir, config = arguments.data_dir, arguments.config
    if data_dir is not None or config is not None:
        rows = [one.row() for one in doctor.local(of, data_dir, config)]
        archive.add("doctor-local.json", rows, "what `penstock doctor` finds in the data directory and settings")
        _settings_here(archive, data_dir, config)
    if data_dir is not None:
        archive.add_lines("files.txt", _files(data_dir), "files of the data directory: bytes, mode, path")
    for number, path in enumerate(arguments.log, 1):
        try:
            archive.add_lines(f"logs/{number}.txt", tail_of(path), f"the end of {path}")
        except OSError as error:
            archive.miss(f"the log {path}", error.strerror)


def _settings_here(archive: Archive, data_dir: Path | None, config: Path | None) -> None:
    from penstock.cli.config import rows_of
    from penstock.core.errors import PenstockError

    try:
        rows, notes = rows_of(config, data_dir)
    except PenstockError as error:
        archive.miss("settings with their sources", error)
        return
    settings = {str(row["key"]): _setting(str(row["key"]), row["value"], row["source"]) for row in rows}
    archive.add("settings-local.json", settings, "settings as a start here would have them, with their sources")
    if notes:
        archive.add("settings-notes.json", notes, "what a start would say of them")


def _setting(name: str, value: Json, source: object) -> Json:
    """Return a setting by its name. Apache Pulsar answers what `penstock config` hides."""
    from penstock.cli.bundle_secrets import Secrets

    return {"value": Secrets().value(value, name), "source": source}


def _files(data_dir: Path) -> Iterator[str]:
    paths = (Path(folder) / name for folder, _, files in os.walk(data_dir) for name in files)
    for path in sorted(islice(paths, _FILES_MAX)):
        try:
            status = path.lstat()
        except OSError:
            continue  # A broker that runs has deleted it.
        yield f"{status.st_size:>14} {status.st_mode & 0o7777:04o} {path.relative_to(data_dir)}"


def _remote(archive: Archive, of: Machine, target: Target, arguments: argparse.Namespace, *, fails: bool) -> None:
    """Add what a cluster answers. Raises CommandFailed: nobody answers, if it `fails` then."""
    from penstock.cli import doctor
    from penstock.cli.rest import Rest

    try:
        with Rest(target, timeout_s=_TIMEOUT_S) as rest:
            rest.get(_OF_BROKERS[0][0])
            brokers = _brokers(archive, rest, target)
            first = _metrics(archive, brokers, target, "beginning")
            until = _Pause(arguments.seconds)
            for path, name, text in _OF_CLUSTER:
                _add(archive, rest, path, name, text)
            _settings_there(archive, rest)
            _tenants(archive, rest)
            try:
                findings = [one.row() for one in doctor.remote(target, of)]
                archive.add("doctor.json", findings, "what `penstock doctor` finds in the cluster")
            except CommandFailed as error:
                archive.miss("doctor.json", error)
            until.wait()
            second = _metrics(archive, brokers, target, "end")
            _topics(archive, rest, busiest(first, second, arguments.topics))
    except CommandFailed as error:
        if fails:
            message = f"{error}; of a broker that does not run, give --data-dir, --config and --log"
            raise CommandFailed(message, error.status) from error
        archive.miss(f"all of the cluster at {target.admin_url}", error)


class _Pause:
    """A time that passes while other things are done."""

    def __init__(self, seconds: float) -> None:
        from penstock.net.clock import SystemClock

        self._now = SystemClock().monotonic_ns
        self._until_ns = self._now() + round(seconds * NS_PER_S)

    def wait(self) -> None:
        threading.Event().wait(max(0.0, (self._until_ns - self._now()) / NS_PER_S))


def _brokers(archive: Archive, rest: Rest, target: Target) -> list[Target]:
    """Add what each broker says of itself; return how to reach each that answers."""
    from penstock.cli.rest import Rest

    listed = _add(archive, rest, f"{_V2}/brokers", "brokers.json", "brokers; brokers/0 is the first", member="brokers")
    places = [str(one) for one in listed] if isinstance(listed, list) else []
    scheme = target.admin_url.partition("://")[0]
    found = [replace(target, admin_url=f"{scheme}://{one}") for one in places] if len(places) > 1 else [target]
    if len(found) > _BROKERS_MAX:
        archive.miss(f"{len(found) - _BROKERS_MAX} more brokers", f"{_BROKERS_MAX} are asked at most")
    for number, one in enumerate(found[:_BROKERS_MAX]):
        with Rest(one, timeout_s=_TIMEOUT_S) as its:
            archive.add(f"brokers/{number}/health.json", health := _health(its), "its health")
            if health.get("notAnswered"):
                continue
            for path, name, text in _OF_BROKERS:
                _add(archive, its, path, f"brokers/{number}/{name}", text)
    return found[:_BROKERS_MAX]


def _health(rest: Rest) -> Json:
    """Return what a broker says of its health; Apache Pulsar has another route for it."""
    for path in ("/healthz", f"{_V2}/brokers/health"):
        try:
            found = rest.get(path)
        except CommandFailed as error:
            if error.status == Exit.NO_ANSWER:
                return {"notAnswered": str(error)}
            if error.status != Exit.NOT_FOUND or path != "/healthz":
                return {"notHealthy": str(error)}
        else:
            return found if isinstance(found, dict) else {"status": found}
    raise AssertionError("the last answer is returned")


def _metrics(archive: Archive, brokers: list[Target], target: Target, when: str) -> Topics:
    """Add the metrics of each broker, and return the messages of each topic so far."""
    from penstock.cli.rest import Rest

    topics: Topics = {}
    for number, one in enumerate(brokers):
        name = f"brokers/{number}/metrics-{when}.txt"
        with Rest(one if len(brokers) > 1 else target, timeout_s=_TIMEOUT_S) as rest:
            try:
                lines = _counted(lines_of(rest.pieces("/metrics/")), topics, archive)
                archive.add_lines(name, lines, f"its metrics at the {when}")
            except CommandFailed as error:
                archive.miss(name, error)
    return topics


def _counted(lines: Iterable[str], topics: Topics, archive: Archive) -> Iterator[str]:
    """Yield lines of metrics, and sum up the messages of each topic, in and out."""
    for line in lines:
        if (metric := _METRIC.match(line)) is not None:
            archive.keep(metric[1])
        found = _COUNTER.match(line)
        if found is not None and (named := _TOPIC.search(found[1])) is not None:
            topic = named[1].replace('\\"', '"').replace("\\\\", "\\")
            if topic in topics or len(topics) < _COUNTED_MAX:
                topics[topic] = topics.get(topic, 0.0) + float(found[2])
        yield line


def busiest(first: Topics, second: Topics, count: int) -> list[str]:
    """Return topics with most messages between two looks first, and of equal ones with most since the start."""
    return nsmallest(count, second, key=lambda one: (first.get(one, 0.0) - second[one], -second[one], one))


def _settings_there(archive: Archive, rest: Rest) -> None:
    """Add the settings of the broker. Their sources are told apart as far as its answers say them."""
    from penstock.settings.model import FIELDS, KEYS
    from penstock.settings.sources import ADMIN

    try:
        values = rest.get(f"{_V2}/brokers/configuration/runtime")
        changed = rest.get(f"{_V2}/brokers/configuration/values")
    except CommandFailed as error:
        archive.miss("settings.json", error)
        return
    if not isinstance(values, dict):
        archive.miss("settings.json", "the broker's answer is no object")
        return
    for name in values:
        archive.keep(str(name))
    defaults = {name: KEYS[field].default_text for name, field in FIELDS.items()}
    archive.add(
        "settings.json",
        {
            name: _setting(name, text, ADMIN if name in (changed or {}) else _source(text, defaults.get(name)))
            for name, text in values.items()
        },
        "settings of the broker, and where each is from",
    )


def _source(text: Json, default: str | None) -> str:
    from penstock.settings.sources import DEFAULT

    return DEFAULT if text == default else "start"


def _tenants(archive: Archive, rest: Rest) -> None:
    """Add tenants, their namespaces, and what slows each tenant."""
    tenants = _add(archive, rest, f"{_V2}/tenants", "tenants.json", "tenants", member="tenants")
    names = list(map(str, tenants)) if isinstance(tenants, list) else []
    if len(names) > _TENANTS_MAX:
        archive.miss(f"{len(names) - _TENANTS_MAX} more tenants", f"{_TENANTS_MAX} are asked at most")
    namespaces: list[Json] = []
    slowed: dict[str, Json] = {}
    for tenant in map(_quoted, names[:_TENANTS_MAX]):
        found = _ask(archive, rest, f"{_V2}/namespaces/{tenant}")
        namespaces += found if isinstance(found, list) else []
        if isinstance(why := _ask(archive, rest, f"/admin/v3/why/tenants/{tenant}"), dict) and why.get("findings"):
            slowed[tenant] = why
    archive.add("namespaces.json", namespaces, "namespaces", member="namespaces")
    archive.add("why.json", slowed, "`penstock why` of each tenant that is slowed", member="tenants")


def _topics(archive: Archive, rest: Rest, topics: list[str]) -> None:
    """Add statistics of topics, and the policies of their namespaces."""
    from penstock.cli.values import path_part
    from penstock.core.errors import InvalidTopicName

    namespaces: dict[str, None] = {}
    for number, topic in enumerate(topics, 1):
        try:
            path = path_part("TOPIC", topic)
        except InvalidTopicName:
            continue  # What others call so in their metrics.
        found = {
            "topic": topic,
            "stats": _ask(archive, rest, f"{_V2}/{path}/stats"),
            "internalStats": _ask(archive, rest, f"{_V2}/{path}/internalStats"),
            "why": _ask(archive, rest, f"/admin/v3/why/{path}"),
        }
        archive.add(f"topics/{number:04}.json", found, "a topic; 0001 is the busiest")
        namespaces["/".join(path.split("/")[1:3])] = None
    policies = {name: _ask(archive, rest, f"{_V2}/namespaces/{name}") for name in namespaces}
    archive.add("policies.json", policies, "policies of the namespaces of these topics", member="namespaces")


def _add(archive: Archive, rest: Rest, path: str, name: str, text: str, *, member: str = "") -> Json:
    """Add and return what a path answers; None if it does not."""
    value = _ask(archive, rest, path)
    if value is not None:
        archive.add(name, value, text, member=member or name.removesuffix(".json"))
    return value


def _ask(archive: Archive, rest: Rest, path: str) -> Json:
    """Return what a path answers; None, and a note, if it does not, or too much."""
    try:
        body = b""
        for piece in rest.pieces(path):
            body += piece
            if len(body) > _ANSWER_MAX:
                archive.miss(path, f"its answer is longer than {_ANSWER_MAX // MIB} MiB")
                return None
    except CommandFailed as error:
        archive.miss(path, error)
        return None
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "backslashreplace")


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def _write(archive: Archive, of: Machine, arguments: argparse.Namespace, names: Names | None) -> int:
    """Write the file, and say so. Raises CommandFailed."""
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(of.wall_ms() // 1_000, UTC)
    path = arguments.output or Path(f"penstock-support-{moment:%Y%m%dT%H%M%SZ}.tar.gz")
    taken = f"Made by penstock {__version__} at {moment.isoformat()}."
    size = archive.write(path, [*_HEAD, *(_ANONYMOUS if names is not None else ()), taken])
    print(f"{path}: {len(archive.members) + 1} files, {size:,} bytes")
    if names is not None:
        pairs = path.with_name(f"{path.name}.names.json")
        descriptor = os.open(pairs, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps({one: name for name, one in names.known().items()}, indent=1) + "\n")
        print(f"{pairs}: which pseudonym is which; keep it, and do not send it")
    if archive.missing:
        print(f"{len(archive.missing)} answers are missing; README in it says which and why")
    print("Next: look at what is in it, then send it to those who help you")
    return Exit.OK

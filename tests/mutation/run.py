# SPDX-License-Identifier: Apache-2.0
"""Changes the model files a little, one place at a time, and counts the changes that their tests notice.

    make mutants [MUTANTS=25] [SEED=1] [FILE=storage/journal.py]

Cosmic Ray makes the changes, in a copy of the last commit. Not tried: changes of annotations, which nothing evaluates,
and of examples, which are as good with other numbers.
What survives is printed as a patch: a test is missing, or the change means the same.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shlex
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
TOOL: Final = "cosmic-ray>=8.4,<9"
# The share of changes that has to be noticed.
KILLED_MIN: Final = 0.9
# Of the tests of one file. One that hangs has noticed the change.
TIMEOUT_S: Final = 120
# The model files, each with the tests that hold what it promises.
MODELS: Final[dict[str, str]] = {
    "core/errors.py": "tests/core/test_errors.py",
    "broker/publishing/publish.py": "tests/broker/test_producers.py tests/broker/test_by_producer.py "
    "tests/broker/test_deduplication.py tests/broker/test_rates.py tests/broker/test_resource_groups.py "
    "tests/broker/test_adaptive_throttling.py tests/net/test_request_memory.py tests/net/test_fairness.py",
    "broker/subscriptions/key_order.py": "tests/broker/test_key_shared.py",
    "broker/policies/policy_table.py": "tests/broker/test_policies.py tests/admin/test_policies.py "
    "tests/admin/test_json_types.py tests/test_docs.py",
    "governance/outbound.py": "tests/governance/test_outbound.py tests/net/test_outbound_room.py",
    "governance/permits.py": "tests/governance/test_permits.py tests/governance/test_permits_properties.py "
    "tests/governance/test_waiting_counts.py",
    "governance/allocation.py": "tests/governance/test_allocation.py tests/governance/test_quota_exchange.py",
    "storage/journal.py": "tests/storage/test_append_queue.py tests/storage/test_entry_log.py "
    "tests/storage/test_recovery.py tests/storage/test_no_room.py",
    "storage/entry_set.py": "tests/storage/test_entry_set.py tests/storage/test_cursor.py",
    "storage/cursor.py": "tests/storage/test_cursor.py tests/storage/test_catalog_cursors.py "
    "tests/broker/test_subscription_positions.py tests/broker/test_subscription_batches.py",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the changes; 0 if enough were noticed."""
    parser = argparse.ArgumentParser(description="Change model files, and count the changes that tests notice.")
    parser.add_argument("--mutants", type=int, default=25, help="of each file, chosen by the seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file", choices=tuple(MODELS), help="only this one")
    options = parser.parse_args(arguments)
    noticed = tried = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        tool = _tool(Path(scratch))
        for model in [options.file] if options.file else MODELS:
            killed, survived = _try(tool, Path(scratch), model, random.Random(options.seed), options.mutants)
            noticed, tried = noticed + killed, tried + killed + len(survived)
            print(f"{model}: {killed} of {killed + len(survived)} noticed", flush=True)
            for change in survived:
                print(f"survived:\n{change}", flush=True)
    print(f"{noticed} of {tried} changes were noticed, {noticed / tried:.0%}")
    return 0 if noticed >= KILLED_MIN * tried else 1


def _tool(scratch: Path) -> Path:
    """Install Cosmic Ray in an environment of its own; return its program."""
    subprocess.run([str(ROOT / "tools/make_venv"), str(scratch / "tool")], check=True)
    pip = [str(scratch / "tool/bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", TOOL]
    subprocess.run(pip, check=True)
    return scratch / "tool/bin/cosmic-ray"


def _try(tool: Path, scratch: Path, model: str, chance: random.Random, count: int) -> tuple[int, list[str]]:
    """Return how many changes of a file were noticed, and the others as patches."""
    copy = scratch / "copy"
    if not copy.exists():
        copy.mkdir()
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(copy)], input=archive, check=True)
    name = model.replace("/", "-").removesuffix(".py")
    config, session = scratch / f"{name}.toml", scratch / f"{name}.sqlite"
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *MODELS[model].split()]
    path = f"{copy}/src:{copy}"
    config.write_text(
        f'[cosmic-ray]\nmodule-path = "src/penstock/{model}"\ntimeout = {TIMEOUT_S}\n'
        f'test-command = "env PYTHONPATH={path} {shlex.join(pytest)}"\n'
        'distributor.name = "local"\n',
        encoding="utf-8",
    )
    unchanged = subprocess.run(pytest, cwd=copy, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert unchanged.returncode == 0, f"the tests of {model} fail as it is"
    run = [[str(tool), command, str(config), str(session)] for command in ("init", "exec")]
    subprocess.run(run[0], cwd=copy, check=True, capture_output=True)
    _choose(session, copy / "src/penstock" / model, chance, count)
    subprocess.run(run[1], cwd=copy, check=True, capture_output=True)
    with closing(sqlite3.connect(session)) as db:
        results = db.execute("select test_outcome, diff from work_results").fetchall()
    survived = [diff for outcome, diff in results if str(outcome).rpartition(".")[2].lower() == "survived"]
    return len(results) - len(survived), survived


def _choose(session: Path, source: Path, chance: random.Random, count: int) -> None:
    """Leave so many changes in the session, none of them where it means nothing."""
    meaningless = [
        (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        for node in _meaningless(ast.parse(source.read_text(encoding="utf-8")))
    ]
    with closing(sqlite3.connect(session)) as db:
        specs = "select job_id, start_pos_row, start_pos_col from mutation_specs order by operator_name, occurrence"
        jobs = db.execute(specs).fetchall()
        rest = [
            job
            for job, *place in jobs
            if not any((begin, first) <= tuple(place) < (end, last) for begin, first, end, last in meaningless)
        ]
        kept = set(chance.sample(rest, min(count, len(rest))))
        for table in ("mutation_specs", "work_items"):
            db.executemany(f"delete from {table} where job_id = ?", [(job,) for job, *_ in jobs if job not in kept])
        db.commit()


def _meaningless(tree: ast.AST) -> Iterator[Any]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "example":
            yield node.value
        for found in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(found, ast.expr):
                yield found


if __name__ == "__main__":
    sys.exit(main())

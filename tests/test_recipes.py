# SPDX-License-Identifier: Apache-2.0
"""The recipes of CONTRIBUTING.md, followed in a copy: what each asks for is enough, and touches few files.

A recipe is a list of edits. All are made in one copy, `make docs` runs there, and a process that imports the copy says
what has come of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real

ROOT: Final = Path(__file__).resolve().parent.parent


class Edit(NamedTuple):
    """Text that is put before a text that is there once."""

    file: str
    before: str
    text: str


RECIPES: Final = {
    "policy": [
        Edit(
            "src/penstock/broker/policies/policy_table.py",
            "    resource_group: str = Policy(\n",
            """    a_recipe: int = bound(
        "aRecipe",
        "Maximum number of recipes.",
        lambda of: of.max_topics_per_namespace,
        namespace=Level("a_recipe", unset=0),
        topic=Level("aRecipe"),
        example=70,
    ).row()
""",
        )
    ],
    "setting": [
        Edit(
            "src/penstock/settings/rows/memory.py",
            "    memory_limit_mb: int = row(\n",
            '    a_recipe_mb: int = row("aRecipeMB", whole(1), 7, "Memory of recipes.")\n',
        )
    ],
    "metric": [
        Edit(
            "src/penstock/telemetry/common_instruments.py",
            '    Instrument("penstock_loop_tasks",',
            """    Instrument("penstock_a_recipe", "gauge", "", PROCESS, lambda s: s.loop_turns.tasks, "A recipe"),
""",
        ),
        Edit(
            "docs/reference/metrics.md",
            "| `penstock_loop_tasks` |",
            "| `penstock_a_recipe` | gauge |  |  | A recipe |  |\n",
        ),
    ],
    "route": [
        Edit(
            "src/penstock/admin/routes/tenants.py",
            '    @router.get("/{tenant}", dependencies=[needs.tenant_admin])\n',
            """    @router.get("/{tenant}/aRecipe", dependencies=[needs.tenant_admin])
    async def get_a_recipe(tenant: str) -> int:
        \"\"\"Return the recipe of a tenant.\"\"\"
        return await ask(lambda broker: broker.tenants.a_recipe(tenant))

""",
        ),
        Edit(
            "src/penstock/broker/administration/namespaces.py",
            "    async def create(self, tenant: str, info: Mapping[str, Any]) -> None:\n",
            """    def a_recipe(self, tenant: str) -> int:
        return len(self.get(tenant))

""",
        ),
        Edit(
            "docs/reference/authorization.md",
            "| `/admin/v2/tenants/{tenant}/resourcegroup` |",
            "| `/admin/v2/tenants/{tenant}/aRecipe` | tenant admin | | | |\n",
        ),
    ],
    "command": [
        Edit(
            "src/penstock/cli/main.py",
            '    "context": Command("context", "name clusters, and choose one"),\n',
            '    "a-recipe": Command("a_recipe", "cook"),\n',
        ),
        Edit(
            "src/penstock/cli/a_recipe.py",
            "",
            '''"""A recipe."""


def add_command(commands, name):
    parser = commands.add_parser(name, help="cook", description="Cook.")
    parser.add_argument("--salt", default="some", help="how much")
    parser.set_defaults(run=lambda arguments: print(f"cooked with {arguments.salt} salt") or 0)
''',
        ),
    ],
}
# What CONTRIBUTING.md says, without the test that a change brings.
FILES: Final = {"policy": 1, "setting": 1, "metric": 2, "route": 3, "command": 2}
SEEN: Final = """
import json
from penstock.admin.api import build
from penstock.broker.policies.policy_table import POLICIES
from penstock.cli import main, values
from penstock.settings.model import KEYS
from penstock.telemetry.instruments import INSTRUMENTS
print(json.dumps({
    "policy": [one.name for one in POLICIES.values()],
    "setting": [key.name for key in KEYS.values()],
    "metric": [one.name for one in INSTRUMENTS],
    "command": list(main.COMMANDS),
}))
"""
NAMES: Final = {"policy": "aRecipe", "setting": "aRecipeMB", "metric": "penstock_a_recipe", "command": "a-recipe"}
DOCUMENTED: Final = {
    "policy": ("docs/reference/policies.md", "aRecipe"),
    "setting": ("docs/reference/configuration.md", "`aRecipeMB`"),
    "metric": ("docs/reference/proxy-metrics.md", "`penstock_a_recipe`"),
    "route": ("docs/reference/admin-rest.md", "/admin/v2/tenants/{tenant}/aRecipe"),
    "command": ("docs/reference/cli.md", "penstock a-recipe"),
}


class Kitchen:
    """A copy of the repository in which all recipes were followed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for folder in ("src", "docs", "tools", "ops"):
            shutil.copytree(ROOT / folder, directory / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for edit in (edit for recipe in RECIPES.values() for edit in recipe):
            file = directory / edit.file
            if not edit.before:
                file.write_text(edit.text)
                continue
            text = file.read_text()
            assert text.count(edit.before) == 1, f"{edit.file} has changed: {edit.before!r}"
            file.write_text(text.replace(edit.before, edit.text + edit.before))
        self.run("-m", "tools.write_reference")
        self.seen: dict[str, list[str]] = json.loads(self.run("-c", SEEN))

    def run(self, *arguments: str) -> str:
        environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(self.directory / "src")}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    directory = tmp_path_factory.mktemp("kitchen")
    yield Kitchen(directory)
    shutil.rmtree(directory)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_touches_the_files_that_it_names(recipe: str) -> None:
    assert len({edit.file for edit in RECIPES[recipe]}) == FILES[recipe]


@pytest.mark.parametrize("recipe", NAMES)
def test_what_a_recipe_adds_is_there(kitchen: Kitchen, recipe: str) -> None:
    assert NAMES[recipe] in kitchen.seen[recipe]


@pytest.mark.parametrize("recipe", DOCUMENTED)
def test_the_reference_has_it_after_make_docs(kitchen: Kitchen, recipe: str) -> None:
    file, text = DOCUMENTED[recipe]
    assert text in (kitchen.directory / file).read_text()
    assert text not in (ROOT / file).read_text()


def test_a_policy_has_routes_and_a_route_has_a_command(kitchen: Kitchen) -> None:
    assert "/aRecipe`" in (kitchen.directory / "docs/reference/authorization.md").read_text()
    operations = (kitchen.directory / "src/penstock/cli/operations.json").read_text()
    assert "/admin/v2/tenants/{tenant}/aRecipe" in operations


def test_a_command_runs(kitchen: Kitchen) -> None:
    assert kitchen.run("-m", "penstock", "a-recipe") == "cooked with some salt\n"

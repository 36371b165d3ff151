# SPDX-License-Identifier: Apache-2.0
"""On which platforms penstock and its extras install from wheels alone, without a compiler.

    python -m tools.platforms            compare with docs/reference/platforms.md; fail if something is no longer so
    python -m tools.platforms --write    write the table there

Why asked anew: a new version of a dependency may leave a platform out, and nobody notices who has another one. pip
resolves the requirements of `pyproject.toml` for a platform, and downloads nothing but metadata. Where: `make
platforms`, and `.ci/run`. Needs a network and some minutes.

What pip does not do for another platform: markers, such as `python_version < "3.13"`, are those of this interpreter.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs/reference/platforms.md"
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14", "3.15")
# glibc 2.28 is that of RHEL 8 and Debian 10; older wheels run there, too.
GLIBC: Final = (*(f"manylinux_2_{minor}" for minor in range(28, 4, -1)), "manylinux2014", "manylinux2010", "manylinux1")
MUSL: Final = ("musllinux_1_2", "musllinux_1_1")
PLATFORMS: Final = {
    f"{libc} {machine}": tuple(f"{tag}_{arch}" for tag in tags)
    for libc, tags in (("glibc", GLIBC), ("musl", MUSL))
    for machine, arch in (("x86-64", "x86_64"), ("arm64", "aarch64"))
}
# Published as source alone, and pure Python: pip can build them everywhere, and says of none that it has a wheel.
PURE_SOURCE: Final = {"pyspark": ("py4j>=0.10.9.9,<0.10.10",)}
CORE: Final = "penstock"
# For developers.
NOT_FOR_USERS: Final = {"dev", "demo"}
NONE: Final = "–"
_TIMEOUT_S: Final = 600.0
# pip waits for the network most of the time.
_AT_ONCE: Final = 3


def requirements(project: Mapping[str, object]) -> dict[str, list[str]]:
    """Return what penstock and each extra for users need, by their names."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    named = {CORE: project["dependencies"], **{name: extras[name] for name in sorted(extras.keys() - NOT_FOR_USERS)}}
    return {name: [wheel for one in found for wheel in _wheels(one)] for name, found in named.items()}


def _wheels(requirement: str) -> Iterable[str]:
    """Return a requirement, or what has wheels in its place."""
    for name, instead in PURE_SOURCE.items():
        if requirement.startswith(name):
            return instead
    return (requirement,)


def command(pip: Sequence[str], python: str, tags: Sequence[str], wanted: Sequence[str], target: str) -> list[str]:
    """Return the call of pip that resolves requirements for a platform."""
    options = ["--dry-run", "--ignore-installed", "--quiet", "--only-binary", ":all:", "--target", target]
    options += ["--implementation", "cp", "--python-version", python]
    return [*pip, "install", *options, *(word for tag in tags for word in ("--platform", tag)), *wanted]


def ranged(pythons: Sequence[str]) -> str:
    """Return versions as a cell says them: `3.11–3.13, 3.15`."""
    runs: list[list[str]] = []
    for one in pythons:
        if runs and PYTHONS.index(one) == PYTHONS.index(runs[-1][-1]) + 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs) or NONE


def versions(cell: str) -> list[str]:
    """Return the versions that a cell names."""
    found: list[str] = []
    for part in () if cell == NONE else cell.split(", "):
        first, _, last = part.partition("–")
        found += PYTHONS[PYTHONS.index(first) : PYTHONS.index(last or first) + 1]
    return found


def table(found: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """Return the rows of the page: of each name the versions of Python by platform."""
    rows = [["", *PLATFORMS], ["---"] * (len(PLATFORMS) + 1)]
    rows += [[f"`{name}`", *(ranged(found[name][platform]) for platform in PLATFORMS)] for name in found]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def documented(page: str) -> dict[str, dict[str, list[str]]]:
    """Return what a page says, as `table` takes it."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): dict(zip(PLATFORMS, map(versions, row[1:]), strict=True)) for row in rows}


def losses(
    said: Mapping[str, Mapping[str, Sequence[str]]], found: Mapping[str, Mapping[str, Sequence[str]]]
) -> list[str]:
    """Return what the page promises and is not so."""
    return [
        f"{name} on {platform} with Python {python}"
        for name, platforms in said.items()
        for platform, pythons in platforms.items()
        for python in pythons
        if python not in found.get(name, {}).get(platform, ())
    ]


def resolve(
    pip: Sequence[str], target: str, said: Mapping[str, Mapping[str, Sequence[str]]] | None = None
) -> dict[str, dict[str, list[str]]]:
    """Ask pip what resolves for each platform and version of Python.

    Args:
        pip: how to call it.
        target: a directory that it names, and does not make.
        said: ask only whether this is so; None: ask about everything.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = requirements(project)
    found: dict[str, dict[str, list[str]]] = {name: {platform: [] for platform in PLATFORMS} for name in wanted}

    def ask(platform: str, python: str) -> dict[str, bool]:
        def has(names: Sequence[str]) -> bool:
            needed = [one for name in names for one in wanted[name]]
            call = command(pip, python, PLATFORMS[platform], needed, target)
            done = subprocess.run(call, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
            return done.returncode == 0

        # Mostly all of them resolve together, which is one question instead of eight.
        asked = [name for name in wanted if said is None or python in said[name][platform]]
        together = has(asked)
        return {name: name in asked if together else has([name]) for name in wanted}

    places = [(platform, python) for platform in PLATFORMS for python in PYTHONS]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for (platform, python), answers in zip(places, pool.map(lambda place: ask(*place), places), strict=True):
            missing = [name for name, resolves in answers.items() if not resolves]
            print(f"{platform}, Python {python}: {'without ' + ', '.join(missing) if missing else 'all'}", flush=True)
            for name in answers.keys() - set(missing):
                found[name][platform].append(python)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Resolve, and compare or write; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write the table of {PAGE.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="platforms-") as scratch:
        # Of its own: older ones download what they are only asked about.
        environment = Path(scratch) / "venv"
        subprocess.run([str(ROOT / "tools/make_venv"), str(environment)], check=True)
        pip = [str(environment / "bin/python"), "-m", "pip"]
        subprocess.run([*pip, "install", "--quiet", "--upgrade", "pip>=25"], check=True)
        page = PAGE.read_text(encoding="utf-8")
        found = resolve(pip, f"{scratch}/target", None if options.write else documented(page))
    if options.write:
        before, _, rest = page.partition("<!-- platforms -->\n")
        after = rest.partition("<!-- end of platforms -->")[2]
        page = f"{before}<!-- platforms -->\n{table(found)}<!-- end of platforms -->{after}"
        PAGE.write_text(page, encoding="utf-8")
        return 0
    lost = losses(documented(page), found)
    print("\n".join(f"no longer from wheels: {one}" for one in lost) or f"{PAGE.relative_to(ROOT)} is true")
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())

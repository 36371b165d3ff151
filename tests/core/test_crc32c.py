# SPDX-License-Identifier: Apache-2.0
"""The checksum function, and what is not loaded for it."""

from __future__ import annotations

import subprocess
import sys

import crc32c as package
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.crc32c import checksum_of, crc32c


def test_it_is_crc32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(), st.binary())
def test_it_is_that_of_the_package_also_in_parts_and_of_views(first: bytes, second: bytes) -> None:
    assert crc32c(memoryview(second), crc32c(first)) == package.crc32c(first + second)


def test_the_package_is_used_if_its_extension_module_is_elsewhere() -> None:
    assert checksum_of(None) is checksum_of(["/nowhere"]) is package.crc32c


def test_a_broker_starts_without_the_rest_of_the_package() -> None:
    program = "import sys, penstock.app; print(*(set(sys.modules) & {'crc32c', 'importlib.metadata', 'email.message'}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []

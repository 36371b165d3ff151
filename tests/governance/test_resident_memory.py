# SPDX-License-Identifier: Apache-2.0
"""Memory in use, told apart from what the allocator keeps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.units import MIB
from penstock.governance.resident_memory import SETTLED_CALLS, ResidentMemory


def test_a1_the_first_measurement_counts_in_full() -> None:
    assert ResidentMemory().update(45 * MIB, 0) == 45 * MIB


def test_a_burst_that_the_allocator_keeps_is_not_in_use_afterwards() -> None:
    memory = ResidentMemory()
    memory.update(50 * MIB, 0)
    assert memory.update(250 * MIB, 200 * MIB) == 250 * MIB
    assert memory.update(250 * MIB, 0) == 50 * MIB
    assert memory.resident_bytes == 250 * MIB
    assert memory.kept_bytes == 200 * MIB


def test_kept_memory_that_is_used_again_counts_again() -> None:
    memory = ResidentMemory()
    for resident, owned in ((50, 0), (250, 200), (250, 0)):
        memory.update(resident * MIB, owned * MIB)
    assert memory.update(250 * MIB, 120 * MIB) == 170 * MIB
    assert memory.update(250 * MIB, 200 * MIB) == 250 * MIB


def test_a2_growth_that_no_row_accounts_for_counts_in_full() -> None:
    memory = ResidentMemory()
    for resident, owned in ((50, 0), (250, 200), (250, 0)):
        memory.update(resident * MIB, owned * MIB)
    assert memory.update(400 * MIB, 0) == 200 * MIB


def test_memory_that_the_system_got_back_is_not_kept() -> None:
    memory = ResidentMemory()
    for resident, owned in ((50, 0), (250, 200), (250, 0)):
        memory.update(resident * MIB, owned * MIB)
    assert memory.update(50 * MIB, 0) == 50 * MIB
    assert memory.kept_bytes == 0


def test_a_thousand_bursts_do_not_drift() -> None:
    memory = ResidentMemory()
    memory.update(50 * MIB, 0)
    for _ in range(1_000):
        memory.update(250 * MIB, 200 * MIB)
        memory.update(250 * MIB, 0)
    assert memory.used_bytes == 50 * MIB


def test_what_a_burst_leaves_and_nobody_owns_is_forgiven_once_the_process_has_long_not_grown() -> None:
    memory = ResidentMemory()
    memory.update(50 * MIB, 0)
    memory.update(350 * MIB, 200 * MIB)  # Objects take half as much again as they are charged.
    used = [memory.update(350 * MIB, 0) for _ in range(SETTLED_CALLS + 60)]
    assert used[0] == 150 * MIB
    assert used[SETTLED_CALLS - 2] == 150 * MIB
    assert used[-1] < 51 * MIB


def test_memory_that_rows_own_is_never_forgiven() -> None:
    memory = ResidentMemory()
    memory.update(50 * MIB, 0)
    for _ in range(1_000):
        memory.update(350 * MIB, 200 * MIB)
    assert memory.used_bytes >= 249 * MIB


def test_a_process_that_goes_on_growing_is_never_forgiven() -> None:
    memory = ResidentMemory()
    memory.update(50 * MIB, 0)
    for number in range(1_000):
        memory.update((50 + number) * MIB, 0)
    assert memory.used_bytes == (50 + 999) * MIB


def test_growth_after_a_long_rest_counts_in_full() -> None:
    memory = ResidentMemory()
    memory.update(50 * MIB, 0)
    for _ in range(SETTLED_CALLS + 100):
        memory.update(350 * MIB, 0)
    before = memory.used_bytes
    assert memory.update(400 * MIB, 0) == before + 50 * MIB


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 10**9)), max_size=50))
def test_memory_in_use_is_never_negative_nor_above_the_resident_size(sizes: list[tuple[int, int]]) -> None:
    memory = ResidentMemory()
    for resident, owned in sizes:
        assert 0 <= memory.update(resident, owned) <= resident

# SPDX-License-Identifier: Apache-2.0
"""The contract of a memory pool: cases P1 to P13 of the parity list in ADR 4, by their numbers."""

from __future__ import annotations

import gc
from typing import cast

import pytest

from penstock.governance.memory_pool import (
    NONE,
    UNBOUNDED,
    ForeignLease,
    Leak,
    LeakDetector,
    Lease,
    MemoryPool,
    SimpleMemoryPool,
)


@pytest.mark.parametrize(
    ("size_bytes", "single_max_bytes"),
    [
        pytest.param(0, 1, id="P1 zero size"),
        pytest.param(-1, 1, id="P2 negative size"),
        pytest.param(10, 0, id="P3 zero maximum"),
        pytest.param(10, -1, id="P4 negative maximum"),
        pytest.param(10, 11, id="P5 maximum above size"),
    ],
)
def test_a_pool_that_could_never_work_is_not_made(size_bytes: int, single_max_bytes: int) -> None:
    with pytest.raises(ValueError, match="want 0 < single_max_bytes <= size_bytes"):
        SimpleMemoryPool(size_bytes, single_max_bytes)


@pytest.mark.parametrize(
    "size_bytes",
    [pytest.param(6, id="P6 above the maximum"), pytest.param(0, id="P7 zero"), pytest.param(-1, id="P8 negative")],
)
def test_a_size_that_is_never_lent_is_an_error_and_not_a_refusal(size_bytes: int) -> None:
    pool = SimpleMemoryPool(10, 5)
    with pytest.raises(ValueError, match="want an allocation of 1 to 5 bytes"):
        pool.try_allocate(size_bytes)
    assert pool.available == 10


def test_p9_releasing_nothing_is_an_error() -> None:
    pool = SimpleMemoryPool(10, 5)
    with pytest.raises(ForeignLease):
        pool.release(cast("Lease", None))
    assert pool.available == 10


def test_p10_a_lease_of_another_pool_is_refused_and_stays_valid_there() -> None:
    here, there = SimpleMemoryPool(10, 5), SimpleMemoryPool(10, 5)
    lease = there.try_allocate(5)
    assert lease is not None
    with pytest.raises(ForeignLease):
        here.release(lease)
    assert (here.available, there.available) == (10, 5)
    there.release(lease)
    assert there.available == 10


def test_p11_a_lease_goes_back_only_once() -> None:
    pool = SimpleMemoryPool(10, 5)
    lease = pool.try_allocate(5)
    assert lease is not None
    pool.release(lease)
    with pytest.raises(ForeignLease):
        pool.release(lease)
    assert pool.available == 10


def test_p12_any_free_byte_is_enough_and_the_bound_is_size_plus_maximum_minus_one() -> None:
    pool = SimpleMemoryPool(21, 10)
    leases = [pool.try_allocate(10) for _ in range(3)]
    assert all(leases)
    assert (pool.used, pool.available, pool.is_out_of_memory) == (30, -9, True)
    assert pool.used == pool.size + pool.single_max_bytes - 1
    assert pool.try_allocate(1) is None
    assert leases[0] is not None
    pool.release(leases[0])
    assert pool.try_allocate(1) is not None
    assert pool.available == 0
    assert pool.try_allocate(1) is None


def test_a_strict_pool_never_lends_beyond_its_size() -> None:
    pool = SimpleMemoryPool(21, 10, strict=True)
    assert pool.try_allocate(10) is not None
    assert pool.try_allocate(10) is not None
    assert pool.try_allocate(2) is None
    assert pool.try_allocate(1) is not None
    assert pool.is_out_of_memory


def test_a_lease_is_of_exactly_the_size_asked_for() -> None:
    lease = SimpleMemoryPool(21, 10).try_allocate(7, owner=3)
    assert lease is not None
    assert (lease.size_bytes, lease.owner) == (7, 3)


def test_p13_a_dropped_lease_comes_back_and_its_owner_is_named() -> None:
    pool = SimpleMemoryPool(21, 10, hunter=LeakDetector())
    kept = pool.try_allocate(4, owner=1)
    dropped = pool.try_allocate(9, owner=2)
    assert kept is not None
    assert pool.recover_leaks() == []
    del dropped
    gc.collect()
    assert pool.recover_leaks() == [Leak(owner=2, size_bytes=9, requests=0)]
    assert pool.used == 4
    assert pool.recover_leaks() == []


def test_p13_a_lease_that_was_released_and_then_dropped_is_no_leak() -> None:
    pool = SimpleMemoryPool(21, 10, hunter=LeakDetector())
    lease = pool.try_allocate(9)
    assert lease is not None
    pool.release(lease)
    del lease
    gc.collect()
    assert pool.recover_leaks() == []
    assert pool.used == 0


def test_p13_ten_thousand_dropped_leases_never_run_the_pool_dry() -> None:
    pool = SimpleMemoryPool(100, 10, hunter=LeakDetector())
    for owner in range(10_000):
        assert pool.try_allocate(10, owner) is not None
        assert [leak.owner for leak in pool.recover_leaks()] == [owner]


def test_without_a_hunter_nothing_is_recovered() -> None:
    pool = SimpleMemoryPool(21, 10)
    pool.try_allocate(9)
    gc.collect()
    assert pool.recover_leaks() == []
    assert pool.used == 9


def test_the_pool_without_a_bound_lends_whatever_is_asked() -> None:
    pool: MemoryPool = NONE
    lease = pool.try_allocate(2**40)
    assert lease is not None
    assert lease.size_bytes == 2**40
    pool.release(lease)
    assert (pool.size, pool.available, pool.is_out_of_memory) == (UNBOUNDED, UNBOUNDED, False)

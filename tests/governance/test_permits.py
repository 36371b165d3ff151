# SPDX-License-Identifier: Apache-2.0
"""Permits (PIP-442): who is granted, who waits, and who is refused."""

from __future__ import annotations

import pytest

from penstock.core.errors import WireCode
from penstock.core.units import NS_PER_S
from penstock.governance.memory_pool import UNBOUNDED
from penstock.governance.permits import (
    Owner,
    Permit,
    PermitAcquireAlreadyClosed,
    PermitAcquireCancelled,
    PermitAcquireQueueFull,
    PermitAcquireTimeout,
    PermitError,
    PermitLimits,
    PermitNames,
    PermitQueue,
    PermitsBeyondLimit,
    Request,
)

TIMEOUT_NS = 25 * NS_PER_S


def queue_of(total: int, *, queue_max: int = 100) -> PermitQueue:
    return PermitQueue(limits(total, queue_max=queue_max))


def limits(total: int, *, queue_max: int = 100) -> PermitLimits:
    return PermitLimits(permits_max=total, queue_max=queue_max, timeout_ns=TIMEOUT_NS)


def granted(request: Request) -> Permit:
    assert isinstance(request.outcome, Permit), request.outcome
    return request.outcome


def held(queue: PermitQueue, permits: int, owner: Owner | None = None) -> Permit:
    return granted(queue.acquire(permits, 0, owner=owner or Owner("t", "c")))


def waiting(*requests: Request) -> bool:
    return all(request.outcome is None for request in requests)


# -- acquire and release ----------------------------------------------------------------------------------------------


def test_what_is_acquired_is_missing_from_what_is_available_until_it_is_released() -> None:
    queue = queue_of(10)
    first, second = held(queue, 3), held(queue, 5)
    assert (queue.available, queue.acquired) == (2, 8)
    queue.release(first, 0)
    queue.release(second, 0)
    assert (queue.available, queue.acquired, first.size) == (10, 0, 0)


def test_a_second_release_gives_nothing_back() -> None:
    queue = queue_of(10)
    permit = held(queue, 3)
    held(queue, 4)
    queue.release(permit, 0)
    queue.release(permit, 0)
    assert queue.available == 6


def test_who_finds_too_little_waits_until_enough_is_released() -> None:
    queue = queue_of(5)
    all_of_it = held(queue, 5)
    request = queue.acquire(3, 0)
    assert waiting(request)
    assert queue.queue_size == 1
    queue.release(all_of_it, 0)
    assert granted(request).size == 3
    assert queue.take_settled() == [request]
    assert queue.take_settled() == []


def test_those_who_wait_are_served_in_the_order_in_which_they_came() -> None:
    queue = queue_of(5)
    parts = [held(queue, 2), held(queue, 2), held(queue, 1)]
    requests = [queue.acquire(permits, 0) for permits in (3, 4, 2)]
    queue.release(parts[0], 0)
    assert waiting(*requests)
    queue.release(parts[1], 0)
    first = granted(requests[0])
    assert waiting(*requests[1:])
    queue.release(parts[2], 0)
    assert waiting(*requests[1:])
    queue.release(first, 0)
    queue.release(granted(requests[1]), 0)
    assert granted(requests[2]).size == 2


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    queue = queue_of(10)
    held(queue, 6)
    large, small = queue.acquire(8, 0), queue.acquire(1, 0)
    assert waiting(large, small)


def test_free_permits_are_granted_at_once_even_where_nobody_may_wait_twice() -> None:
    queue = queue_of(10, queue_max=1)
    for _ in range(10):
        held(queue, 1)
    assert queue.queue_size == 0


def test_no_permits_at_all_can_be_acquired_also_from_an_empty_pool() -> None:
    queue = queue_of(5)
    all_of_it = held(queue, 5)
    assert held(queue, 0).size == 0
    before = queue.acquire(1, 0)
    behind = queue.acquire(0, 0)
    assert waiting(before, behind)
    queue.release(all_of_it, 0)
    assert granted(behind).size == 0


def test_many_holders_in_any_order_leave_nothing_behind() -> None:
    queue = queue_of(20)
    requests = [queue.acquire(1 + number % 7, number) for number in range(100)]
    done = 0
    while done < len(requests):
        ready = [one.outcome for one in requests if isinstance(one.outcome, Permit) and one.outcome.size]
        for permit in ready:
            queue.release(permit, 1_000)
            done += 1
    assert (queue.available, queue.queue_size) == (20, 0)


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_negative_number_is_our_own_mistake() -> None:
    queue = queue_of(10)
    with pytest.raises(ValueError, match="Invalid negative permits value: -1"):
        queue.acquire(-1, 0)
    permit = held(queue, 1)
    with pytest.raises(ValueError, match="Invalid negative permits value: -2"):
        queue.update(permit, -2, 0)
    assert queue.acquired == 1


def test_a_permit_of_another_queue_is_our_own_mistake() -> None:
    queue, other = queue_of(10), queue_of(10)
    permit = held(other, 1)
    with pytest.raises(ValueError, match="Invalid permit type"):
        queue.release(permit, 0)
    with pytest.raises(ValueError, match="Invalid permit type"):
        queue.update(permit, 2, 0)
    assert (queue.available, other.available) == (10, 9)


def test_what_can_never_fit_is_refused_at_once_by_an_error_of_its_own_and_spoils_nothing_for_the_next() -> None:
    queue = queue_of(10)
    for _ in range(3):
        refused = queue.acquire(11, 0).outcome
        assert isinstance(refused, PermitsBeyondLimit)
        assert "11 permits can never be had, as permits_max allows 10 in all" in str(refused)
        queue.release(held(queue, 10), 0)
    assert (queue.available, queue.queue_size) == (10, 0)


def test_an_update_that_can_never_fit_leaves_the_old_permit_as_it_was() -> None:
    queue = queue_of(10)
    permit = held(queue, 4)
    assert isinstance(queue.update(permit, 11, 0).outcome, PermitsBeyondLimit)
    assert (permit.size, queue.acquired) == (4, 4)
    assert granted(queue.update(permit, 10, 0)).size == 10


def test_when_all_places_are_taken_the_next_is_refused_at_once() -> None:
    queue = queue_of(1, queue_max=2)
    held(queue, 1)
    queue.acquire(1, 0)
    queue.acquire(1, 0)
    refused = queue.acquire(1, 0).outcome
    assert isinstance(refused, PermitAcquireQueueFull)
    assert "all 2 waiting places are taken; retry with back-off, or raise queue_max" in str(refused)
    assert queue.snapshot(0).queue_full_total == 1


def test_every_refusal_is_too_many_requests_to_a_client_and_429_to_an_administrator() -> None:
    names = PermitNames(refusal="Cannot")
    errors: list[PermitError] = [
        PermitAcquireTimeout(names, 1, 25_000),
        PermitAcquireQueueFull(names, 5),
        PermitAcquireCancelled(names),
        PermitAcquireAlreadyClosed(names),
        PermitsBeyondLimit(names, 2, 1),
    ]
    for error in errors:
        assert (error.wire_code, error.http_status) == (WireCode.TOO_MANY_REQUESTS, 429)
        assert str(error).startswith("Cannot: ")


# -- time -------------------------------------------------------------------------------------------------------------


def test_who_waits_too_long_is_refused_and_has_no_place_any_more() -> None:
    queue = queue_of(1)
    held(queue, 1)
    request = queue.acquire(1, 0)
    assert queue.next_deadline_ns() == TIMEOUT_NS
    queue.expire(TIMEOUT_NS - 1)
    assert waiting(request)
    queue.expire(TIMEOUT_NS)
    assert isinstance(request.outcome, PermitAcquireTimeout)
    assert "1 permits did not come free within 25000 ms" in str(request.outcome)
    assert (queue.queue_size, queue.next_deadline_ns()) == (0, None)


def test_the_next_has_its_turn_when_a_large_one_before_it_times_out() -> None:
    queue = queue_of(10)
    held(queue, 5)
    large, small = queue.acquire(8, 0), queue.acquire(3, 1)
    queue.expire(TIMEOUT_NS)
    assert isinstance(large.outcome, PermitAcquireTimeout)
    assert granted(small).size == 3


def test_whom_an_earlier_timeout_lets_through_is_granted_also_when_we_look_late() -> None:
    queue = queue_of(10)
    held(queue, 5)
    large, small = queue.acquire(8, 0), queue.acquire(3, 1)
    queue.expire(2 * TIMEOUT_NS)
    assert isinstance(large.outcome, PermitAcquireTimeout)
    assert granted(small).size == 3


def test_a_callers_own_deadline_counts_if_it_is_earlier_and_only_then() -> None:
    queue = queue_of(1)
    held(queue, 1)
    sooner = queue.acquire(1, 0, deadline_ns=NS_PER_S)
    later = queue.acquire(1, 0, deadline_ns=2 * TIMEOUT_NS)
    queue.expire(NS_PER_S)
    assert isinstance(sooner.outcome, PermitAcquireTimeout)
    queue.expire(TIMEOUT_NS)
    assert isinstance(later.outcome, PermitAcquireTimeout)


def test_a_deadline_that_has_passed_is_met_by_free_permits_and_by_nothing_else() -> None:
    queue = queue_of(1)
    now_ns = TIMEOUT_NS
    permit = granted(queue.acquire(1, now_ns, deadline_ns=1))
    assert isinstance(queue.acquire(1, now_ns, deadline_ns=1).outcome, PermitAcquireTimeout)
    queue.release(permit, now_ns)
    assert queue.available == 1


def test_waits_are_observed_also_of_those_who_waited_in_vain_and_each_timeout_counts_once() -> None:
    queue = queue_of(1)
    permit = held(queue, 1)
    queue.acquire(1, 0)
    queue.acquire(1, 0)
    queue.release(permit, 2 * NS_PER_S)
    queue.expire(TIMEOUT_NS)
    seen = queue.snapshot(TIMEOUT_NS)
    assert (seen.timeouts_total, seen.waits.count) == (1, 3)
    assert seen.waits.sum_ns == 2 * NS_PER_S + TIMEOUT_NS
    assert dict(seen.waits.quantiles_ns)[1.0] == TIMEOUT_NS


def test_of_those_who_wait_it_is_known_what_they_want_and_have_and_for_how_long() -> None:
    queue = queue_of(10, queue_max=0)
    assert queue.snapshot(0).queue_max == 0
    queue = queue_of(10)
    owner = Owner("t", "c")
    permit = held(queue, 3, owner)
    held(queue, 7)
    queue.update(permit, 8, 2 * NS_PER_S)
    queue.acquire(4, 3 * NS_PER_S, owner=owner)
    update, newcomer = queue.waiting(5 * NS_PER_S, 10)
    assert (update.wants, update.has, update.waited_ns) == (8, 3, 3 * NS_PER_S)
    assert (newcomer.wants, newcomer.has, newcomer.waited_ns) == (4, 0, 2 * NS_PER_S)
    assert len(queue.waiting(5 * NS_PER_S, 1)) == 1


# -- updates ----------------------------------------------------------------------------------------------------------


def test_an_update_to_more_takes_the_difference_and_leaves_the_old_permit_worth_nothing() -> None:
    queue = queue_of(10)
    old = held(queue, 5)
    new = granted(queue.update(old, 8, 0))
    assert (old.size, new.size, queue.available) == (0, 8, 2)
    held(queue, 2)
    blocked = queue.acquire(1, 0)
    queue.release(old, 0)
    assert waiting(blocked)
    queue.release(new, 0)
    assert granted(blocked).size == 1


def test_an_update_to_less_is_granted_at_once_and_serves_those_who_wait() -> None:
    queue = queue_of(10)
    permit = held(queue, 10)
    request = queue.acquire(4, 0)
    assert granted(queue.update(permit, 6, 0)).size == 6
    assert granted(request).size == 4


def test_an_update_to_nothing_is_a_release() -> None:
    queue = queue_of(10)
    permit = held(queue, 10)
    granted(queue.update(permit, 0, 0))
    assert queue.available == 10
    assert held(queue, 10).size == 10


def test_an_update_that_times_out_leaves_the_old_permit_to_be_released() -> None:
    queue = queue_of(10)
    old = held(queue, 5)
    held(queue, 5)
    update = queue.update(old, 8, 0)
    queue.expire(TIMEOUT_NS)
    assert isinstance(update.outcome, PermitAcquireTimeout)
    assert (old.size, queue.acquired) == (5, 10)
    queue.release(old, 0)
    assert queue.acquired == 5


def test_a_cancelled_update_takes_nothing_and_a_later_one_works() -> None:
    queue = queue_of(10)
    old, other = held(queue, 5), held(queue, 5)
    update = queue.update(old, 8, 0)
    queue.cancel(update, 0)
    queue.release(other, 0)
    assert isinstance(update.outcome, PermitAcquireCancelled)
    assert queue.acquired == 5
    new = granted(queue.update(old, 8, 0))
    queue.release(old, 0)
    assert (new.size, queue.acquired) == (8, 8)


def test_a_permit_that_is_released_while_its_update_waits_counts_for_nothing() -> None:
    queue = queue_of(10)
    old, other = held(queue, 4), held(queue, 6)
    update = queue.update(old, 8, 0)
    queue.release(old, 0)
    assert waiting(update)
    queue.release(other, 0)
    assert (granted(update).size, queue.acquired) == (8, 8)


def test_one_permit_is_not_updated_twice_at_once() -> None:
    queue = queue_of(10)
    permit = held(queue, 5)
    held(queue, 5)
    queue.update(permit, 6, 0)
    with pytest.raises(ValueError, match="waits to be updated already"):
        queue.update(permit, 7, 0)


def test_an_update_whose_task_ends_after_the_grant_leaves_the_books_as_before_it() -> None:
    queue = queue_of(10)
    old, other = held(queue, 4), held(queue, 6)
    update = queue.update(old, 8, 0)
    queue.release(other, 0)
    assert granted(update).size == 8
    queue.cancel(update, 0)  # The task was cancelled before it ran again.
    assert (old.size, queue.acquired) == (4, 4)
    queue.release(old, 0)
    assert queue.available == 10


def test_a_grant_that_nobody_took_goes_to_the_next() -> None:
    queue = queue_of(10)
    permit = held(queue, 10)
    first, second = queue.acquire(10, 0), queue.acquire(10, 0)
    queue.release(permit, 0)
    queue.cancel(first, 0)
    assert granted(second).size == 10


def test_a_permit_that_was_released_in_the_meantime_does_not_come_back() -> None:
    queue = queue_of(10)
    old, other = held(queue, 4), held(queue, 6)
    update = queue.update(old, 8, 0)
    queue.release(other, 0)
    queue.release(old, 0)
    queue.cancel(update, 0)
    assert (old.size, queue.available) == (0, 10)


# -- holders who wait -------------------------------------------------------------------------------------------------


def test_an_update_goes_before_requests_that_came_earlier() -> None:
    queue = queue_of(10)
    holder, other = held(queue, 2), held(queue, 5)
    newcomer = queue.acquire(10, 0)
    update = queue.update(holder, 7, 1)
    assert waiting(newcomer, update)
    queue.release(other, 1)
    new = granted(update)
    assert waiting(newcomer)
    queue.release(new, 1)
    assert granted(newcomer).size == 10


def test_an_update_that_fits_is_granted_at_once_whoever_waits() -> None:
    queue = queue_of(10)
    holder = held(queue, 2)
    newcomer = queue.acquire(9, 0)
    assert granted(queue.update(holder, 5, 0)).size == 5
    assert waiting(newcomer)


def test_no_new_request_is_granted_while_a_holder_waits() -> None:
    queue = queue_of(10)
    holder = held(queue, 4)
    held(queue, 3)
    update = queue.update(holder, 9, 0)
    newcomer = queue.acquire(1, 0)
    assert waiting(update, newcomer)


@pytest.mark.parametrize("listings", [2, 10, 1_000])
def test_first_listings_that_all_hold_a_part_and_want_everything_go_one_after_the_other_and_nobody_times_out(
    listings: int,
) -> None:
    queue = queue_of(listings, queue_max=0)
    parts = [held(queue, 1) for _ in range(listings)]
    updates = [queue.update(part, listings, 0) for part in parts]
    for update in updates:
        whole = granted(update)
        assert queue.acquired <= listings
        queue.release(whole, 0)
    assert (queue.available, queue.queue_size) == (listings, 0)


def test_the_first_borrows_from_the_last_and_who_lent_needs_its_full_amount() -> None:
    queue = queue_of(10)
    running, first, last = held(queue, 4), held(queue, 3), held(queue, 3)
    for_first = queue.update(first, 5, 0)
    assert waiting(for_first)
    for_last = queue.update(last, 6, 0)
    assert (granted(for_first).size, last.size) == (5, 1)
    queue.release(running, 0)
    assert waiting(for_last)
    queue.release(granted(for_first), 0)
    assert (granted(for_last).size, queue.acquired) == (6, 6)


def test_what_is_in_use_is_not_lent() -> None:
    queue = queue_of(10)
    first, second = held(queue, 5), held(queue, 5)
    update = queue.update(first, 8, 0)
    in_use = queue.update(second, 6, 0, lends=False)
    assert waiting(update, in_use)
    assert second.size == 5
    queue.expire(TIMEOUT_NS)
    assert isinstance(update.outcome, PermitAcquireTimeout)


def test_nothing_is_lent_in_vain() -> None:
    queue = queue_of(10)
    first, second = held(queue, 2), held(queue, 2)
    held(queue, 6)
    update = queue.update(first, 9, 0)
    queue.update(second, 5, 0)
    assert waiting(update)
    assert second.size == 2


# -- who waits --------------------------------------------------------------------------------------------------------


def test_a_request_whose_connection_is_gone_holds_up_nobody_not_even_until_the_next_release() -> None:
    queue = queue_of(10)
    held(queue, 5)
    dead = queue.acquire(9, 0, owner=Owner("t", "dead"))
    alive = queue.acquire(5, 0, owner=Owner("t", "alive"))
    queue.cancel_connection("dead", 0)
    assert isinstance(dead.outcome, PermitAcquireCancelled)
    assert granted(alive).size == 5
    assert queue.snapshot(0).cancelled_total == 1


def test_a_connection_that_is_gone_leaves_both_lines_whatever_tenants_it_asked_for() -> None:
    queue = queue_of(10)
    permit = held(queue, 10, Owner("a", "c"))
    update = queue.update(permit, 10, 0)
    permit = granted(update)
    requests = [queue.acquire(1, 0, owner=Owner(tenant, "c")) for tenant in ("a", "b")]
    queue.cancel_connection("c", 0)
    assert all(isinstance(one.outcome, PermitAcquireCancelled) for one in requests)
    assert queue.queue_size == 0
    queue.cancel_connection("never seen", 0)


def test_first_requests_do_not_wait_for_one_anothers_estimate() -> None:
    queue = queue_of(100 * 1024)
    permits = [held(queue, 1024) for _ in range(100)]
    assert queue.queue_size == 0
    assert [granted(queue.update(permit, 1000, 0)).size for permit in permits] == [1000] * 100


def test_one_connection_alone_may_fill_the_queue_and_gives_way_when_others_come() -> None:
    queue = queue_of(1, queue_max=4)
    held(queue, 1)
    greedy, modest = Owner("t", "greedy"), Owner("t", "modest")
    many = [queue.acquire(1, 0, owner=greedy) for _ in range(4)]
    assert waiting(*many)
    assert isinstance(queue.acquire(1, 0, owner=greedy).outcome, PermitAcquireQueueFull)
    few = [queue.acquire(1, 0, owner=modest) for _ in range(3)]
    assert [isinstance(one.outcome, PermitAcquireQueueFull) for one in many] == [False, False, True, True]
    assert [one.outcome is None for one in few] == [True, True, False]


def test_tenants_share_the_places_however_many_connections_one_has() -> None:
    queue = queue_of(1, queue_max=100)
    held(queue, 1)
    for number in range(100):
        queue.acquire(1, 0, owner=Owner("greedy", number))
    modest = [queue.acquire(1, 0, owner=Owner("modest", "only")) for _ in range(60)]
    assert [one.outcome is None for one in modest] == [True] * 50 + [False] * 10


def test_among_equals_it_is_the_newcomer_who_finds_no_place() -> None:
    queue = queue_of(1, queue_max=2)
    held(queue, 1)
    first, second = (queue.acquire(1, 0, owner=Owner(tenant, "c")) for tenant in "ab")
    assert isinstance(queue.acquire(1, 0, owner=Owner("c", "c")).outcome, PermitAcquireQueueFull)
    assert waiting(first, second)


def test_when_the_first_in_line_gives_way_the_next_has_its_turn_at_once() -> None:
    queue = queue_of(10, queue_max=3)
    held(queue, 5)
    large = queue.acquire(8, 0, owner=Owner("t", "x"))
    another = queue.acquire(8, 0, owner=Owner("t", "x"))
    small = queue.acquire(1, 0, owner=Owner("t", "y"))
    queue.cancel(another, 0)
    queue.acquire(6, 0, owner=Owner("u", "z"))
    queue.acquire(6, 0, owner=Owner("v", "z"))
    assert isinstance(large.outcome, PermitAcquireQueueFull)
    assert granted(small).size == 1


def test_an_update_takes_a_place_from_new_requests_and_is_refused_only_among_updates() -> None:
    queue = queue_of(3, queue_max=2)
    holders = [held(queue, 1) for _ in range(3)]
    newcomers = [queue.acquire(1, 0, owner=Owner("t", "c")) for _ in range(2)]
    updates = [queue.update(holder, 2, 0, lends=False) for holder in holders]
    assert all(isinstance(one.outcome, PermitAcquireQueueFull) for one in newcomers)
    assert waiting(*updates[:2])
    assert isinstance(updates[2].outcome, PermitAcquireQueueFull)


def test_ten_thousand_who_wait_and_leave_in_any_order_cost_microseconds_each() -> None:
    queue = queue_of(1, queue_max=10_000)
    held(queue, 1)
    requests = [queue.acquire(1, 0, owner=Owner("t", number % 50)) for number in range(10_000)]
    for request in requests[::2]:
        queue.cancel(request, 0)
    for number in range(5_000):
        queue.acquire(1, 1, owner=Owner("u", number))
    while queue.next_deadline_ns() is not None:
        queue.expire(2 * TIMEOUT_NS)
    assert queue.queue_size == 0


def test_deadlines_of_those_who_left_do_not_pile_up() -> None:
    queue = queue_of(1, queue_max=0)
    held(queue, 1)
    for _ in range(10_000):
        queue.cancel(queue.acquire(1, 0), 0)
    assert len(queue._lines._deadlines) < 100  # noqa: SLF001 - memory that nothing else shows


def test_those_who_time_out_together_are_told_a_hundred_at_a_time_so_that_nobody_holds_the_loop() -> None:
    queue = queue_of(1, queue_max=0)
    held(queue, 1)
    for _ in range(250):
        queue.acquire(1, 0)
    left = []
    while queue.queue_size:
        assert queue.next_deadline_ns() == TIMEOUT_NS
        queue.expire(TIMEOUT_NS)
        left.append(queue.queue_size)
    assert left == [150, 50, 0]


# -- no limit, other limits, the end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [0, -1])
def test_without_a_limit_everything_is_granted_and_nothing_is_counted(total: int) -> None:
    queue = queue_of(total, queue_max=1)
    permits = [held(queue, size) for size in (1, 10**12, 0)]
    assert (queue.available, queue.acquired, queue.queue_size) == (UNBOUNDED, 0, 0)
    bigger = granted(queue.update(permits[0], 10**15, 0))
    assert granted(queue.update(bigger, 0, 0)).size == 0
    queue.expire(10 * TIMEOUT_NS)
    for permit in permits:
        queue.release(permit, 0)
    assert (queue.available, queue.acquired) == (UNBOUNDED, 0)


def test_without_a_limit_a_negative_number_is_still_a_mistake() -> None:
    with pytest.raises(ValueError, match="Invalid negative"):
        queue_of(0).acquire(-1, 0)


def test_without_a_bound_on_the_queue_anybody_may_wait() -> None:
    queue = queue_of(1, queue_max=0)
    held(queue, 1)
    assert waiting(*[queue.acquire(1, 0) for _ in range(1_000)])


def test_a_higher_limit_serves_those_who_wait_and_a_lower_one_takes_nothing_away() -> None:
    queue = queue_of(10)
    permit = held(queue, 10)
    request = queue.acquire(6, 0)
    queue.set_limits(limits(16), 0)
    assert granted(request).size == 6
    queue.set_limits(limits(4), 0)
    assert (queue.acquired, queue.available) == (16, -12)
    late = queue.acquire(4, 0)
    queue.release(permit, 0)
    assert waiting(late)
    queue.release(granted(request), 0)
    assert granted(late).size == 4


def test_what_can_never_be_had_after_a_change_is_refused_then_and_those_behind_it_go_on() -> None:
    queue = queue_of(10)
    held(queue, 3)
    large, small = queue.acquire(8, 0), queue.acquire(2, 0)
    queue.set_limits(limits(7), 0)
    assert isinstance(large.outcome, PermitsBeyondLimit)
    assert granted(small).size == 2


def test_an_update_to_less_is_granted_also_above_a_limit_that_was_lowered() -> None:
    queue = queue_of(10)
    permit = held(queue, 9)
    queue.set_limits(limits(4), 0)
    assert granted(queue.update(permit, 7, 0)).size == 7
    assert queue.available == -3


def test_a_limit_that_goes_and_comes_back_finds_what_was_granted_in_between() -> None:
    queue = queue_of(10)
    held(queue, 4)
    queue.set_limits(limits(0), 0)
    without_limit = held(queue, 5)
    queue.set_limits(limits(10), 0)
    assert queue.acquired == 9
    queue.release(without_limit, 0)
    assert queue.acquired == 4


def test_other_limits_for_the_queue_and_the_timeout_count_for_those_who_come_after() -> None:
    queue = queue_of(1, queue_max=2)
    held(queue, 1)
    before = [queue.acquire(1, 0) for _ in range(2)]
    queue.set_limits(PermitLimits(permits_max=1, queue_max=1, timeout_ns=5), 0)
    assert isinstance(queue.acquire(1, 0).outcome, PermitAcquireQueueFull)
    assert waiting(*before)
    queue.cancel(before[0], 0)
    queue.cancel(before[1], 0)
    after = queue.acquire(1, 0)
    queue.expire(5)
    assert isinstance(after.outcome, PermitAcquireTimeout)


def test_a_timeout_below_zero_cannot_be() -> None:
    with pytest.raises(ValueError, match="want a timeout of 0 or more, got -1 ns"):
        PermitLimits(permits_max=1, queue_max=1, timeout_ns=-1)


def test_after_the_end_everybody_is_refused_and_what_is_held_can_be_released() -> None:
    queue = queue_of(10)
    permit = held(queue, 10)
    request = queue.acquire(1, 0)
    queue.close()
    update = queue.update(permit, 10, 0)
    for refused in (request, queue.acquire(0, 0), update):
        assert isinstance(refused.outcome, PermitAcquireAlreadyClosed)
    queue.release(permit, 0)
    assert queue.available == 10


def test_a_snapshot_says_who_waits_and_since_when() -> None:
    queue = queue_of(10, queue_max=7)
    permit = held(queue, 10)
    queue.acquire(1, 2 * NS_PER_S)
    queue.acquire(11, 3 * NS_PER_S)
    seen = queue.snapshot(5 * NS_PER_S)
    assert (seen.permits_max, seen.acquired, seen.queue_max, seen.timeout_ns) == (10, 10, 7, TIMEOUT_NS)
    assert (seen.waiting_updates, seen.waiting_acquires, seen.queue_size) == (0, 1, 1)
    assert seen.oldest_wait_ns == 3 * NS_PER_S
    assert seen.beyond_limit_total == 1
    queue.release(permit, 6 * NS_PER_S)
    assert queue.snapshot(6 * NS_PER_S).oldest_wait_ns == 0


# -- holders that divide what they have -------------------------------------------------------------------------------


def test_what_is_moved_to_another_permit_stays_held_until_that_one_is_released() -> None:
    queue = queue_of(10)
    first = held(queue, 7)
    kept = queue.move(first, 5, None)
    assert (first.size, kept.size, queue.available) == (2, 5, 3)
    queue.release(first, 0)
    assert queue.available == 5
    assert queue.move(held(queue, 3), 3, kept) is kept
    assert (kept.size, queue.available) == (8, 2)
    queue.release(kept, 0)
    assert queue.available == 10


def test_what_a_lowered_permit_gives_back_serves_those_who_wait() -> None:
    queue = queue_of(10)
    permit = held(queue, 10)
    request = queue.acquire(4, 0)
    queue.lower(permit, 7, 0)
    assert waiting(request)
    queue.lower(permit, 6, 0)
    assert granted(request).size == 4
    queue.lower(permit, 8, 0)  # It does not rise.
    assert permit.size == 6


def test_a_permit_that_waits_to_be_updated_is_neither_lowered_nor_divided() -> None:
    queue = queue_of(10)
    permit, _ = held(queue, 5), held(queue, 5)
    queue.update(permit, 8, 0)
    with pytest.raises(ValueError, match="waits to be updated already"):
        queue.lower(permit, 1, 0)
    with pytest.raises(ValueError, match="waits to be updated already"):
        queue.move(permit, 1, None)

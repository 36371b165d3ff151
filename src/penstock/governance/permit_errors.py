# SPDX-License-Identifier: Apache-2.0
"""What can keep a request from its permits, and how whoever asked is told.

Why five errors: a client may come back after each but one, and an operator turns a different key for each.
Where: `PermitQueue` makes them; sessions answer them as TooManyRequests, the admin port with 429 (PIP-442).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.errors import TooManyRequests


@dataclass(frozen=True, slots=True)
class PermitNames:
    """What messages call a queue of permits: what was refused, what is counted, and the keys that set its limits."""

    refusal: str = "Cannot acquire permits"
    unit: str = "permits"
    permits_key: str = "permits_max"
    queue_key: str = "queue_max"
    timeout_key: str = "timeout_ns"


class PermitError(TooManyRequests):
    """The permits that were asked for were not given. An earlier permit that was to be updated stays as it is."""


class PermitAcquireTimeout(PermitError):
    """They did not come free in time."""

    def __init__(self, names: PermitNames, wanted: int, waited_ms: int) -> None:
        super().__init__(
            f"{names.refusal}: {wanted} {names.unit} did not come free within {waited_ms} ms; "
            f"retry with back-off, or raise {names.permits_key} or {names.timeout_key}"
        )


class GatheringTimeout(PermitAcquireTimeout):
    """There was memory, but no turn to gather the list before the deadline."""

    def __init__(self, waited_ms: int) -> None:
        TooManyRequests.__init__(
            self,
            f"Failed due to topic listings in progress: the list was not gathered within {waited_ms} ms, as others "
            f"were before it; retry with back-off, or ask for fewer patterns at once",
        )


class PermitAcquireQueueFull(PermitError):
    """As many requests as may wait are waiting, and none of them has more than its share."""

    def __init__(self, names: PermitNames, queue_max: int) -> None:
        super().__init__(
            f"{names.refusal}: all {queue_max} waiting places are taken; "
            f"retry with back-off, or raise {names.queue_key} or {names.permits_key}"
        )


class PermitAcquireCancelled(PermitError):
    """Whoever waited is gone."""

    def __init__(self, names: PermitNames) -> None:
        super().__init__(f"{names.refusal}: the request was cancelled while it waited")


class PermitAcquireAlreadyClosed(PermitError):
    """No permits are given any more: the process is stopping."""

    def __init__(self, names: PermitNames) -> None:
        super().__init__(f"{names.refusal}: stopping; ask another broker")


class PermitsBeyondLimit(PermitError):
    """More than all permits there are: waiting and trying again cannot help, unless the limit is raised."""

    def __init__(self, names: PermitNames, wanted: int, permits_max: int) -> None:
        super().__init__(
            f"{names.refusal}: {wanted} {names.unit} can never be had, as {names.permits_key} allows "
            f"{permits_max} in all; ask for less, or raise it"
        )

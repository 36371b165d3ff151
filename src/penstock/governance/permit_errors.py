# SPDX-License-Identifier: Apache-2.0
"""The errors of a request for permits that gets none.

Why five errors: a client may retry after all but one of them, and an operator changes a different setting for each.
Where: `PermitQueue` creates them. Sessions answer with TooManyRequests, the admin port with 429 (PIP-442).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.errors import TooManyRequests


@dataclass(frozen=True, slots=True)
class PermitNames:
    """The words for a queue of permits in error messages: the refusal, the unit, and the settings of its limits."""

    refusal: str = "Cannot acquire permits"
    unit: str = "permits"
    permits_key: str = "permits_max"
    queue_key: str = "queue_max"
    timeout_key: str = "timeout_ns"


class PermitError(TooManyRequests):
    """The permits were not granted. A permit that was to be updated stays as it is."""


class PermitAcquireTimeout(PermitError):
    """The permits were not available in time."""

    def __init__(self, names: PermitNames, wanted: int, waited_ms: int) -> None:
        super().__init__(
            f"{names.refusal}: {wanted} {names.unit} did not come free within {waited_ms} ms; "
            f"retry with back-off, or raise {names.permits_key} or {names.timeout_key}"
        )


class GatheringTimeout(PermitAcquireTimeout):
    """There was memory, but the listing was not gathered before the deadline."""

    def __init__(self, waited_ms: int) -> None:
        TooManyRequests.__init__(
            self,
            f"Failed due to topic listings in progress: the list was not gathered within {waited_ms} ms, as others "
            f"were before it; retry with back-off, or ask for fewer patterns at once",
        )


class PermitAcquireQueueFull(PermitError):
    """The queue is full, and no other request should be dropped for this one."""

    def __init__(self, names: PermitNames, queue_max: int) -> None:
        super().__init__(
            f"{names.refusal}: all {queue_max} waiting places are taken; "
            f"retry with back-off, or raise {names.queue_key} or {names.permits_key}"
        )


class PermitAcquireCancelled(PermitError):
    """The caller is gone."""

    def __init__(self, names: PermitNames) -> None:
        super().__init__(f"{names.refusal}: the request was cancelled while it waited")


class PermitAcquireAlreadyClosed(PermitError):
    """No more permits are granted: the process is stopping."""

    def __init__(self, names: PermitNames) -> None:
        super().__init__(f"{names.refusal}: stopping; ask another broker")


class PermitsBeyondLimit(PermitError):
    """The request is larger than the limit: a retry cannot help unless the limit is raised."""

    def __init__(self, names: PermitNames, wanted: int, permits_max: int) -> None:
        super().__init__(
            f"{names.refusal}: {wanted} {names.unit} can never be had, as {names.permits_key} allows "
            f"{permits_max} in all; ask for less, or raise it"
        )

# SPDX-License-Identifier: Apache-2.0
"""Counters of a topic, a group, a broker or a proxy. Where: all that count usage."""

from __future__ import annotations

from typing import NamedTuple


class Totals(NamedTuple):
    """Messages and bytes of a topic.

    Attributes:
        messages_in: messages of entries, so that each chunk counts as one.
        chunks_in: of these, chunks that others of their message follow.
        committed_messages: of these, messages of transactions that were committed, counted when they were.
        aborted_messages: messages that nobody gets, because their transactions were aborted.
    """

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    limited_times: int = 0
    chunks_in: int = 0
    committed_messages: int = 0
    committed_bytes: int = 0
    aborted_messages: int = 0
    aborted_bytes: int = 0

    @property
    def whole_messages_in(self) -> int:
        """Messages, of which a chunked one counts once, with its last chunk."""
        return self.messages_in - self.chunks_in

    def plus(self, more: Totals) -> Totals:
        return Totals(*(one + other for one, other in zip(self, more, strict=True)))

    def minus(self, less: Totals) -> Totals:
        return Totals(*(one - other for one, other in zip(self, less, strict=True)))


NOTHING = Totals()


class Ended(NamedTuple):
    """Totals of transactions that have ended, in one topic."""

    committed_messages: int = 0
    committed_bytes: int = 0
    aborted_messages: int = 0
    aborted_bytes: int = 0

    def plus(self, messages: int, nbytes: int, *, commit: bool) -> Ended:
        """Return the totals after another transaction has ended."""
        if commit:
            return self._replace(
                committed_messages=self.committed_messages + messages, committed_bytes=self.committed_bytes + nbytes
            )
        return self._replace(
            aborted_messages=self.aborted_messages + messages, aborted_bytes=self.aborted_bytes + nbytes
        )


NONE_ENDED = Ended()


class Seen(NamedTuple):
    """The part of a producer's or consumer's counts that is in the usage of its principal.

    Attributes:
        until_ms: until when it was connected, ms since 1970; 0: nothing was added yet.
    """

    messages: int = 0
    bytes: int = 0
    until_ms: int = 0


NOT_SEEN = Seen()

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.checksum import seal
from penstock.core.units import KIB
from penstock.storage.blocks import Stamp, encode_block, encode_mark
from penstock.storage.recovery import Verdict, differs_by_one_bit, judge, scan
from penstock.testing.files import FaultyFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

SEGMENT_BYTES = 64 * KIB


def entry(entry_id: int) -> bytes:
    return seal(b"entry %d " % entry_id + b"." * 30)


class Segment:
    """The bytes of a segment under construction."""

    def __init__(self, segment_id: int = 1, nonce: int = 77) -> None:
        self.segment_id, self.nonce = segment_id, nonce
        self.content = bytearray(SEGMENT_BYTES)
        self.end = self.synced = 0

    def block(self, first: int, sent: Sequence[bytes], *, ledger_id: int = 1) -> int:
        """Write a block that belongs to the same group commit as the one before; return where it begins."""
        offsets = [sum(map(len, sent[:row])) for row in range(len(sent))]
        lengths = [len(one) for one in sent]
        stamp = Stamp(self.segment_id, self.nonce, self.synced)
        data = b"".join(sent)
        front, back = encode_block(stamp, self.end, [(ledger_id, first, len(sent))], offsets, lengths, None, [data])
        begin = self.end
        self.put(begin, front + data + back)
        self.end = begin + 2 * len(front) + len(data)
        return begin

    def commit(self) -> None:
        """Everything so far is durable: the next block says so."""
        self.synced = self.end

    def mark(self) -> None:
        """Everything so far is durable, and a mark says so."""
        self.commit()
        self.put(self.end, encode_mark(Stamp(self.segment_id, self.nonce, self.synced), self.end))

    def put(self, at: int, content: bytes) -> None:
        self.content[at : at + len(content)] = content

    def judged(self) -> Verdict:
        file = FaultyFiles().open(Path("/segment"), create=True)
        file.write([self.content], 0)
        return judge(scan(file, self.segment_id))


def kept(verdict: Verdict, ledger_id: int = 1) -> list[int]:
    return [
        entry_id
        for span in verdict.index.ledgers.get(ledger_id, [])
        for entry_id in range(span.first_entry, span.end_entry)
    ]


def test_blocks_are_found_one_behind_the_other() -> None:
    segment = Segment()
    segment.block(0, [entry(0), entry(1)])
    segment.commit()
    segment.block(2, [entry(2)])
    verdict = segment.judged()
    assert kept(verdict) == [0, 1, 2]
    assert (verdict.end, verdict.doubtful_from) == (segment.end, segment.synced)
    assert verdict.damage == []


@pytest.mark.parametrize("cut", range(0, 300, 3))
def test_a_last_block_torn_at_any_byte_is_there_whole_or_cut_off_without_a_word(cut: int) -> None:
    segment = Segment()
    segment.block(0, [entry(0), entry(1)])
    segment.commit()
    begin = segment.block(2, [entry(2), entry(3)])
    data_end = segment.content.rindex(b"entry 3 ") + 5
    segment.put(begin + cut, bytes(segment.end - begin - cut))
    verdict = segment.judged()
    whole = begin + cut >= data_end + 33  # Only its back is missing.
    assert kept(verdict) == ([0, 1, 2, 3] if whole else [0, 1])
    assert verdict.damage == []
    assert verdict.end == (segment.end if whole else begin)


def test_whole_blocks_behind_a_torn_one_of_the_same_commit_are_cut_with_it() -> None:
    segment = Segment()
    segment.block(0, [entry(0)])
    segment.commit()
    torn = segment.block(1, [entry(1)])
    segment.block(2, [entry(2)])
    segment.put(torn, bytes(150))
    verdict = segment.judged()
    assert kept(verdict) == [0]
    assert (verdict.end, verdict.cut_blocks) == (torn, 1)


def test_a_bad_block_that_a_later_one_vouches_for_is_damage() -> None:
    segment = Segment()
    segment.block(0, [entry(0)])
    bad = segment.block(1, [entry(1)])
    end = segment.end
    segment.commit()
    segment.block(2, [entry(2)])
    segment.put(bad, bytes(end - bad))
    verdict = segment.judged()
    assert kept(verdict) == [0, 2]
    assert [(damage.offset, damage.bytes, damage.entry_id) for damage in verdict.damage] == [(bad, end - bad, None)]


def test_a_bad_last_block_that_a_mark_vouches_for_is_damage() -> None:
    segment = Segment()
    segment.block(0, [entry(0)])
    bad = segment.block(1, [entry(1)])
    segment.mark()
    segment.put(bad, bytes(segment.end - bad))
    verdict = segment.judged()
    assert kept(verdict) == [0]
    assert [(damage.offset, damage.offset + damage.bytes) for damage in verdict.damage] == [(bad, segment.end)]


def test_a_torn_commit_behind_damage_is_cut_though_it_is_readable() -> None:
    segment = Segment()
    bad = segment.block(0, [entry(0)])
    segment.mark()
    torn = segment.block(1, [entry(1)])  # over the mark; then its front is lost, and nobody vouches for it
    segment.commit()
    segment.synced = torn
    segment.block(2, [entry(2)])
    segment.put(bad, bytes(200))
    segment.put(torn, bytes(300))
    verdict = segment.judged()
    assert kept(verdict) == []
    assert verdict.end == torn


@pytest.mark.parametrize("place", ["front", "entry", "back"])
def test_one_flipped_bit_in_the_last_block_costs_at_most_the_entry_it_is_in(place: str) -> None:
    segment = Segment()
    begin = segment.block(0, [entry(0), entry(1), entry(2)])
    at = {"front": begin + 10, "entry": segment.content.index(entry(1)) + 20, "back": segment.end - 10}[place]
    segment.content[at] ^= 4
    verdict = segment.judged()
    assert kept(verdict) == [0, 1, 2]
    assert [damage.entry_id for damage in verdict.damage] == ([1] if place == "entry" else [])


def test_blocks_of_an_earlier_generation_do_not_count() -> None:
    old = Segment(segment_id=1)
    old.block(0, [entry(0)])
    old.commit()
    stale = old.block(1, [entry(1)])
    new = Segment(segment_id=2)
    new.content = old.content
    new.block(5, [entry(5)])
    verdict = new.judged()
    assert kept(verdict) == [5]
    assert verdict.end == stale
    assert verdict.damage == []


def test_a_block_that_somebody_put_into_a_message_does_not_count() -> None:
    forged = Segment(segment_id=1, nonce=1234)  # Everything but the nonce can be guessed.
    segment = Segment(segment_id=1, nonce=77)
    segment.block(0, [entry(0)])
    segment.commit()
    begin = segment.end
    forged.end = begin + 400
    forged.block(666, [entry(666)], ledger_id=9)
    payload = seal(bytes(forged.content[begin + 200 : forged.end + 10]))
    segment.block(1, [payload])
    end_of_data = segment.end
    segment.put(begin, bytes(100))
    segment.put(end_of_data - 100, bytes(100))
    verdict = segment.judged()
    assert kept(verdict) == [0]
    assert kept(verdict, ledger_id=9) == []
    assert verdict.damage == []


def test_a_segment_of_stale_bytes_alone_is_empty() -> None:
    old = Segment(segment_id=1)
    old.block(0, [entry(0)])
    file = FaultyFiles().open(Path("/segment"), create=True)
    file.write([old.content], 0)
    assert scan(file, 2).nonce is None


@settings(max_examples=200)
@given(body=st.binary(max_size=300), bit=st.integers(0, 10_000))
def test_one_flipped_bit_is_recognised_wherever_it_is(body: bytes, bit: int) -> None:
    sealed = bytearray(seal(body))
    bit %= len(sealed) * 8
    sealed[bit // 8] ^= 1 << bit % 8
    assert differs_by_one_bit(memoryview(sealed))


@settings(max_examples=200)
@given(
    body=st.binary(min_size=20, max_size=300), start=st.integers(0, 10_000), noise=st.binary(min_size=2, max_size=20)
)
def test_more_than_one_flipped_bit_is_not_taken_for_one(body: bytes, start: int, noise: bytes) -> None:
    sealed = bytearray(seal(body))
    start %= len(sealed) - len(noise)
    spoiled = bytearray(sealed)
    spoiled[start : start + len(noise)] = noise
    flips = sum((a ^ b).bit_count() for a, b in zip(sealed, spoiled, strict=True))
    if flips > 1:
        assert not differs_by_one_bit(memoryview(spoiled))

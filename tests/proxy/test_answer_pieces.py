# SPDX-License-Identifier: Apache-2.0
"""Answers are cut into pieces that make the answer, whatever the one before had."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.proxy.answer_pieces import END_BYTES, PIECE_BYTES, CutAnswer, Piece, cut

NAMES = [b"topic-%06d" % number for number in range(20_000)]


def encoded(names: list[bytes], hash_: bytes = b"h") -> memoryview:
    return memoryview(hash_.rjust(END_BYTES) + b"".join(names) + bytes(END_BYTES))


def joined(answer: CutAnswer) -> bytes:
    return b"".join(answer.buffers)


def fresh_bytes(answer: CutAnswer, known: list[Piece]) -> int:
    return sum(piece.written_bytes for piece in answer.pieces if piece not in known)


@given(st.lists(st.binary(max_size=5 * END_BYTES), max_size=5), st.integers(1, 3))
def test_the_pieces_are_the_answer_whatever_is_known(answers: list[bytes], skip: int) -> None:
    known: list[Piece] = []
    for answer in answers:
        made = cut(memoryview(answer), known[::skip])
        assert joined(made) == answer
        known = made.pieces


def test_an_answer_with_another_hash_shares_all_pieces() -> None:
    one = cut(encoded(NAMES), [])
    other = cut(encoded(NAMES, b"other"), one.pieces)
    assert [*map(id, other.pieces)] == [*map(id, one.pieces)]


def test_pieces_stay_of_useful_sizes_while_topics_come_and_go() -> None:
    chance, names, made = Random(7), NAMES[::2], cut(encoded(NAMES[::2]), [])
    most = len(made.pieces)
    for _ in range(500):
        before = made.pieces
        at = chance.randrange(len(names))
        if chance.random() < 0.5:
            names.insert(at, NAMES[at])
        else:
            del names[at]
        made = cut(encoded(names), before)
        assert joined(made) == bytes(encoded(names))
        assert fresh_bytes(made, before) <= 3 * PIECE_BYTES
    assert len(made.pieces) <= 2 * most


def test_topics_whose_names_grow_do_not_make_a_piece_each() -> None:
    made = cut(encoded([]), [])
    for number in range(1, 5_000, 10):
        made = cut(encoded(NAMES[:number]), made.pieces)
    assert len(made.pieces) <= 1 + 4 * number * len(NAMES[0]) // PIECE_BYTES

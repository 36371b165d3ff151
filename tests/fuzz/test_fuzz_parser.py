# SPDX-License-Identifier: Apache-2.0
"""A fixed share of the fuzzer's work, the same every time; `make fuzz` goes on from here."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzz_parser import check, fuzz, load_corpus


def test_the_corpus_is_small_and_holds() -> None:
    corpus = load_corpus()
    assert 50 < len(corpus) < 200
    assert max(map(len, corpus)) < 4_096
    for data in corpus:
        check(data)


@pytest.mark.parametrize("seed", range(8))
def test_mutated_streams_end_in_events_or_a_protocol_error_and_leak_nothing(seed: int) -> None:
    assert fuzz(seed, inputs=1_000) == 1_000

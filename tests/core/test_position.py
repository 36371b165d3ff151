# SPDX-License-Identifier: Apache-2.0
"""Where an entry is."""

from __future__ import annotations

from penstock.core.position import EARLIEST, LATEST, Position


def test_positions_order_by_ledger_then_entry() -> None:
    assert sorted([Position(2, 0), Position(1, 9), Position(1, 10)]) == [
        Position(1, 9),
        Position(1, 10),
        Position(2, 0),
    ]


def test_a_position_prints_as_pulsars_tools_print_it() -> None:
    assert str(Position(12, 345)) == "12:345"


def test_the_words_for_first_and_last_are_what_signed_clients_send() -> None:
    assert tuple(number - 2**64 for number in EARLIEST) == (-1, -1)
    assert tuple(LATEST) == (2**63 - 1, 2**63 - 1)

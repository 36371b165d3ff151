# SPDX-License-Identifier: Apache-2.0
"""Who asks, from a broker to another: whatever the roles are, what arrives is what was sent, or is refused."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.caller import BrokerItself, Caller, decode_asker, decode_role, encode_asker, encode_role

# Any string that Python can hold: spaces, control characters, half of a surrogate pair.
ROLES = st.text(st.characters(codec=None))
CALLERS = st.builds(Caller, ROLES, ROLES, st.none() | ROLES)


@given(ROLES)
@example("")
@example("admin ")
@example("\x00\r\nx-penstock-caller: broker;0")
@example("\ud800")
@example("аdmin")  # noqa: RUF001 -- Cyrillic, as somebody would who wants to be taken for another
@example("r" * 65_536)
def test_a_role_survives_as_text_of_a_header(role: str) -> None:
    text = encode_role(role)
    assert decode_role(text) == role
    assert not text or text.replace("-", "a").replace("_", "a").isalnum()
    assert text.isascii()


@given(ROLES, ROLES)
def test_two_roles_never_have_one_text(one: str, other: str) -> None:
    assert (encode_role(one) == encode_role(other)) == (one == other)


@given(st.text(max_size=20))
@example("YWRtaW4=")
@example("YWRtaW5")  # The last bits are not those that the encoder sets.
@example("YWR taW4")
@example("YWRtaW4\n")
@example("_w")  # no UTF-8
@example("ä")
def test_a_text_that_is_decoded_is_the_one_text_of_its_role(text: str) -> None:
    try:
        role = decode_role(text)
    except ValueError:
        return
    assert encode_role(role) == text


@given(CALLERS | st.builds(BrokerItself, st.integers(0, 1_000)))
@example(Caller("", "token", ""))
def test_who_asks_survives(asker: Caller | BrokerItself) -> None:
    text = encode_asker(asker)
    assert decode_asker(text) == asker
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text


@pytest.mark.parametrize(
    "text",
    ["", "caller", "caller;YQ", "caller;YQ;YQ;YQ;YQ", "caller;YQ;Y Q", "broker", "broker;", "broker;-1", "broker;1;1",
     "broker;\u0661", "BROKER;1", "admin", "broker;0, caller;YQ;YQ"],
)  # fmt: skip
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_asker(text)

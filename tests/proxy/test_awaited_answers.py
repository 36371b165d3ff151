# SPDX-License-Identifier: Apache-2.0
"""Answers to requests of the proxy's own are taken out of what a broker sends, wherever its bytes are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.proxy.relay import ANSWER_BYTES_MAX, NO_PRODUCER, AwaitedAnswers
from penstock.proxy.response_stream import ResponseStream
from penstock.testing.client import Type, frame
from penstock.wire.client.frames import FRAME_BYTES_MAX, decode_frame, frame_bytes

OTHERS = [
    frame(Type.SUCCESS, request_id=3),
    frame(Type.PONG),
    frame(Type.SEND_RECEIPT, producer_id=1, sequence_id=2, message_id={"ledgerId": 1, "entryId": 2}),
    frame(Type.ERROR, request_id=9, error=0, message="x" * 100),
    frame(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, request_id=4, topics=["t" * 100] * (ANSWER_BYTES_MAX // 50)),
]


def request_id_of(closing: bytes) -> int:
    found: int = decode_frame(closing, 0, frame_bytes(closing, 0)).body.request_id
    return found


@given(
    before=st.lists(st.sampled_from(OTHERS), min_size=1, max_size=3),
    after=st.lists(st.one_of(st.sampled_from(OTHERS), st.integers(0, 2)), max_size=8),
    data=st.data(),
)
def test_everything_but_the_answers_passes_unchanged(
    before: list[bytes], after: list[bytes | int], data: st.DataObject
) -> None:
    stream = ResponseStream(frame_bytes_max=FRAME_BYTES_MAX)
    began = b"".join(before)
    cut = data.draw(st.integers(1, len(began)))
    passed = b"".join(stream.passed(began[:cut]))
    answers = AwaitedAnswers(*stream.unfinished)
    closings = [answers.close_producer(producer) for producer in (0, 1, NO_PRODUCER)]
    replies = [
        frame(Type.SUCCESS, request_id=request_id_of(closings[0])),
        frame(Type.ERROR, request_id=request_id_of(closings[1]), error=0, message="no such producer"),
        frame(Type.SUCCESS, request_id=request_id_of(closings[2])),
    ]
    came, want, left = began[cut:], began, {0, 1, 2}
    for one in after:
        came += replies[one] if isinstance(one, int) else one
        if isinstance(one, int) and one in left:
            left.discard(one)
        else:
            want += replies[one] if isinstance(one, int) else one
    cuts = sorted(data.draw(st.lists(st.integers(0, len(came)), max_size=8)))
    for start, stop in zip([0, *cuts], [*cuts, len(came)], strict=True):
        if start < stop and (part := answers.without(came[start:stop])):
            passed += b"".join(stream.passed(part))
    assert passed == want
    assert answers.all_came == (not left)
    assert stream.between_frames

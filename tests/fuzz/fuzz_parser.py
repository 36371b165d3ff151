# SPDX-License-Identifier: Apache-2.0
"""A fuzzer for the frame reader: mutated client streams in, and nothing but events or a ProtocolError out.

Why our own: it needs nothing installed, a seed repeats a run exactly, and a fixed number of its inputs belongs to the
ordinary tests. Where atheris is installed it drives the same `check` with coverage feedback instead.

    python tests/fuzz/fuzz_parser.py --seconds 600 [--seed 1]

Where: starts from `tests/fuzz/corpus`, which `seeds.py` writes and to which every input that ever failed is added.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from penstock.wire.frame_reader import ProtocolError  # noqa: E402 - the path above comes first when this file is run
from penstock.wire.sends import LAYOUTS  # noqa: E402
from tests.wire.frames import Feeder  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS: Final = Path(__file__).parent / "corpus"

# Larger than LARGE_FRAME_BYTES, so that both ways of holding an unfinished frame are used.
FRAME_BYTES_MAX: Final = 128 * 1024
INPUT_BYTES_MAX: Final = 8 * 1024
# How many more blocks the interpreter may hold after any number of inputs; its own caches move by a few hundred.
LEAKED_BLOCKS_MAX: Final = 2_000

# Where sizes and varints change their meaning.
INTERESTING: Final = (b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff" * 4, b"\x00" * 4, b"\x00\x01\x00\x00", b"\x80" * 10)


def check(data: bytes) -> None:
    """Feed one input whole and in pieces; what escapes is a finding."""
    if not data:
        return
    # The first byte says how the rest is cut, so that the mutator can change it.
    step, stream = data[0] % 97 + 1, data[1:]
    whole = _outcome([stream])
    pieces = _outcome([stream[start : start + step] for start in range(0, len(stream), step)])
    assert whole == pieces, "the outcome depends on how the stream was cut"


def _outcome(chunks: list[bytes]) -> list[tuple[Any, ...]] | None:
    """All that was said, or None when the stream was refused."""
    feeder = Feeder(frame_bytes_max=FRAME_BYTES_MAX, connected=False)
    try:
        for chunk in chunks:
            feeder.feed(chunk)
            assert 0 <= feeder.reader.held_bytes <= FRAME_BYTES_MAX + 4
            assert (feeder.reader.missing_bytes > 0) == (feeder.reader.held_bytes > 0)
    except ProtocolError:
        return None
    return feeder.heard.rows


def load_corpus() -> list[bytes]:
    """All seeds, in an order that does not depend on the file system."""
    return [path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))]


def mutate(chance: random.Random, corpus: list[bytes]) -> bytes:
    """A seed, or two joined, after a few small accidents."""
    data = bytearray(chance.choice(corpus))
    for _ in range(chance.choice((0, 0, 1, 3))):
        data += chance.choice(corpus)[1:]
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        chance.choice(MUTATIONS)(chance, data)
    return bytes(data[:INPUT_BYTES_MAX])


def _flip(chance: random.Random, data: bytearray) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _overwrite(chance: random.Random, data: bytearray) -> None:
    at, value = chance.randrange(len(data) + 1), chance.choice(INTERESTING)
    data[at : at + len(value)] = value


def _insert(chance: random.Random, data: bytearray) -> None:
    at = chance.randrange(len(data) + 1)
    data[at:at] = chance.randbytes(chance.randrange(1, 5))


def _remove(chance: random.Random, data: bytearray) -> None:
    at = chance.randrange(len(data) + 1)
    del data[at : at + chance.randrange(1, 9)]


def _repeat(chance: random.Random, data: bytearray) -> None:
    at = chance.randrange(len(data) + 1)
    data[at:at] = data[at : at + chance.randrange(1, 200)]


def _truncate(chance: random.Random, data: bytearray) -> None:
    del data[chance.randrange(len(data) + 1) :]


MUTATIONS: Final[tuple[Callable[[random.Random, bytearray], None], ...]] = (
    _flip,
    _overwrite,
    _insert,
    _remove,
    _repeat,
    _truncate,
)


def allocated_blocks() -> int:
    """Memory blocks in use, without what the parser keeps on purpose."""
    for layout in LAYOUTS.values():
        layout.prefixes.clear()
        layout.highs.clear()
        if layout.counts is not None:
            layout.counts.clear()
    gc.collect()
    return sys.getallocatedblocks()


def fuzz(seed: int, inputs: int | None, deadline_s: float | None = None) -> int:
    """Check mutated seeds until the number of inputs or the time is spent; returns how many were checked.

    Raises:
        AssertionError: a finding; the input is in the message.
    """
    chance, corpus, done = random.Random(seed), load_corpus(), 0
    for data in corpus:
        check(data)
    before = allocated_blocks()
    while (inputs is None or done < inputs) and (deadline_s is None or time.monotonic() < deadline_s):
        data = mutate(chance, corpus)
        try:
            check(data)
        except Exception as cause:
            raise AssertionError(f"seed {seed}, input {done}: {data.hex()}") from cause
        done += 1
    leaked = allocated_blocks() - before
    assert leaked <= LEAKED_BLOCKS_MAX, f"seed {seed}: {leaked} blocks leaked by {done} inputs"
    return done


def _fuzz_with_atheris(seconds: int, seed: int) -> None:
    atheris = import_module("atheris")
    atheris.instrument_all()
    arguments = [sys.argv[0], f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={INPUT_BYTES_MAX}", str(CORPUS)]
    atheris.Setup(arguments, check)
    atheris.Fuzz()


def main() -> None:
    """Fuzz for the given time."""
    parser = argparse.ArgumentParser(description="Fuzz the frame reader.")
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if find_spec("atheris") is not None:
        _fuzz_with_atheris(options.seconds, options.seed)
        return
    done = fuzz(options.seed, inputs=None, deadline_s=time.monotonic() + options.seconds)
    print(f"{done} inputs, nothing found")


if __name__ == "__main__":
    main()

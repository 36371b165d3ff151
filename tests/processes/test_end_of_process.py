# SPDX-License-Identifier: Apache-2.0
"""A process that does not end by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The loop waits for its threads when it is closed, and the interpreter for all others.
HANGING = {
    "a thread of the loop": "asyncio.run(main())",
    "a thread of the process": "end_within(0.05, 'its time'); threading.Thread(target=never.wait).start()",
    "the loop": "end_within(0.05, 'its time'); never.wait()",
}
PROGRAM = """
import asyncio, threading
from penstock.processes.end_of_process import end_within
never = threading.Event()
async def main():
    asyncio.get_running_loop().run_in_executor(None, never.wait)
    end_within(0.05, 'its time')
"""


@pytest.mark.parametrize("what", HANGING)
def test_it_is_ended_whatever_it_waits_for(what: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM + HANGING[what]], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "not stopped within its time: ending as it is" in ended.stderr


def test_what_was_written_before_the_end_is_seen() -> None:
    program = "import sys; from penstock.processes.end_of_process import end_now; print('out'); end_now(3)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (3, "out\n")

# SPDX-License-Identifier: Apache-2.0
"""`python -m penstock.cli.broker_process FD`: one broker of `penstock serve --brokers N`.

Where: only the supervisor starts it. FD is its end of the pair from which it reads what to do; the other arguments are
for whoever reads the list of processes.
"""

from __future__ import annotations

import gc
import socket
import sys

from penstock.core.errors import ConfigurationError, PenstockError
from penstock.processes.supervisor import EXIT_ORPHANED, end_with_parent, received


def main() -> int:
    """Serve until the supervisor says so; returns the exit status, as `penstock serve` does."""
    gc.disable()  # As `serve` does: what is created until the broker is ready stays.
    try:
        control = socket.socket(fileno=int(sys.argv[1]))
        end_with_parent(control)
        handover = received(control)
    except (IndexError, ValueError):
        print(f"{__doc__}\nStart `penstock serve --brokers N` instead.", file=sys.stderr)
        return 2
    except EOFError:
        return EXIT_ORPHANED

    from penstock import app

    try:
        return app.run_one_of_many(handover, control)
    except PenstockError as error:
        print(f"penstock: broker {handover.number}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Storage: what must outlive the process. The entry log (messages), the catalog and cursors (what exists).

The entry log, from the outside in:

    entry_log   the log as others see it
    opening     from a directory to a log; recovery after a crash
    runs        what is appended, and what is written, together
    journal     the thread that writes and syncs
    reader, results     entries back out
    tidier      space back
    log_index, index, sealed_index     entry id → segment and block
    recovery    what a segment holds, from its bytes alone
    segment     files: prepared, written, sealed, recycled
    records     bytes of a block
    files       the only door to the disk
"""

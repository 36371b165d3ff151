# SPDX-License-Identifier: Apache-2.0
"""Storage: everything that must survive the process. The entry log (messages), the catalog and cursors (metadata).

The modules of the entry log:

    entry_log   the log as the broker sees it
    opening     opens a directory as a log; recovery after a crash
    runs        entries that are appended together, and blocks that are written together
    append_queue, journal     the queue of runs, and the thread that writes and syncs them
    reader, results, sparse_reads     reading entries
    counting                          counting their messages
    log_maintenance, keeping     reclaims space, and waits with it during a backup
    log_index, index, sealed_index     entry id → segment and block
    recovery    finds out what a segment holds, from its bytes alone
    segment     segment files: prepared, written, sealed, recycled
    records     the bytes of a block
    files       the only access to the disk
"""

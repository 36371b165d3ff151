# SPDX-License-Identifier: Apache-2.0
"""The asyncio edge: sockets, timers and the real clock live here and nowhere else."""

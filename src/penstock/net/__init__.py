# SPDX-License-Identifier: Apache-2.0
"""The asyncio edge: the only package with sockets, timers and the real clock."""

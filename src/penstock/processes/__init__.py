# SPDX-License-Identifier: Apache-2.0
"""The processes of `penstock serve`: their sockets, and the supervisor of several brokers."""

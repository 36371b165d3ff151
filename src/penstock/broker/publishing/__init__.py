# SPDX-License-Identifier: Apache-2.0
"""Publishing: producers, deduplication, publish rates, and the way of SENDs to the log."""

# SPDX-License-Identifier: Apache-2.0
"""From a run of SENDs to its receipts: who may publish, what is a duplicate, how fast."""

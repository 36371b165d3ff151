# SPDX-License-Identifier: Apache-2.0
"""Usage and decision records: what brokers and proxies share in making them."""

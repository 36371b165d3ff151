# SPDX-License-Identifier: Apache-2.0
"""Records for accounting: the contract between brokers, which write them, and their readers."""

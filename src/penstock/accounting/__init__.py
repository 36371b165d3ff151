# SPDX-License-Identifier: Apache-2.0
"""What brokers record for accounting: the contract between the broker and everybody who reads the records."""

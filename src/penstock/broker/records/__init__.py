# SPDX-License-Identifier: Apache-2.0
"""Usage records and decision records, as this broker writes them."""

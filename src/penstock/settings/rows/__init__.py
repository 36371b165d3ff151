# SPDX-License-Identifier: Apache-2.0
"""The rows of the table of settings, one module per group. A group's docstring is its heading in the reference."""

# SPDX-License-Identifier: Apache-2.0
"""The rows of the table of settings, a module for each of their groups. A group's docstring is its heading."""

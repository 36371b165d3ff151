# SPDX-License-Identifier: Apache-2.0
"""Schemas of topics: their versions and compatibility."""

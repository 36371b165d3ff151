# SPDX-License-Identifier: Apache-2.0
"""Builds the parts above the broker: client commands and administration."""

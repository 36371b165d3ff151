# SPDX-License-Identifier: Apache-2.0
"""The broker: connects wire, storage and governance, and carries out their decisions."""

# SPDX-License-Identifier: Apache-2.0
"""The page at the end of the demo: one HTML file with its plots in it, drawn from `findings` alone."""

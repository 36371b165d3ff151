# SPDX-License-Identifier: Apache-2.0
"""The schemas of topics: their versions and what may follow what."""

# SPDX-License-Identifier: Apache-2.0
"""The broker: joins wire, storage and governance, and turns their decisions into effects."""

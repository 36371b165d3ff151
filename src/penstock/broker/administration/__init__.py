# SPDX-License-Identifier: Apache-2.0
"""What the admin port does, on the broker's loop, without a word of HTTP."""

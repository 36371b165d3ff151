# SPDX-License-Identifier: Apache-2.0
"""Topics: which there are, where they are found, who is attached to them, how they are born and end."""

# SPDX-License-Identifier: Apache-2.0
"""Client sessions, and the handlers of each command of the binary protocol."""

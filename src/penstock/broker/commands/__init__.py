# SPDX-License-Identifier: Apache-2.0
"""What a client asks for, command by command: the session and its handlers."""

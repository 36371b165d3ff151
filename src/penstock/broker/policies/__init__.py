# SPDX-License-Identifier: Apache-2.0
"""What namespaces and topics may set, what is in force, and what time does by it."""

# SPDX-License-Identifier: Apache-2.0
"""What is seen from outside: frozen views and meters."""

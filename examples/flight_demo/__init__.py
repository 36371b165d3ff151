# SPDX-License-Identifier: Apache-2.0
"""The parts of the demo: flights and their messages, who publishes and consumes them, the flood, and what is shown."""

# SPDX-License-Identifier: Apache-2.0
"""What stands above a broker and knows it: put together here, of parts that do not."""

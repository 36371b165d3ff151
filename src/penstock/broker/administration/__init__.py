# SPDX-License-Identifier: Apache-2.0
"""Operations of the admin API, independent of HTTP, on the broker's event loop."""

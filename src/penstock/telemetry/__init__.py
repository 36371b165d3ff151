# SPDX-License-Identifier: Apache-2.0
"""What a broker tells people and their monitoring: metrics and log lines."""

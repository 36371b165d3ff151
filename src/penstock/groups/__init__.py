# SPDX-License-Identifier: Apache-2.0
"""Resource groups as a broker and a proxy enforce them: their lines of waiting producers, and the exchange of usage."""

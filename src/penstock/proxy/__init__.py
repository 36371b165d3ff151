# SPDX-License-Identifier: Apache-2.0
"""The proxy: stands before a Pulsar cluster, passes on what its clients send, and governs it as a broker would."""

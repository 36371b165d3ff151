# SPDX-License-Identifier: Apache-2.0
"""Testing: public fakes for tests of penstock and of programs built on it.

Nothing in penstock imports this package.
"""

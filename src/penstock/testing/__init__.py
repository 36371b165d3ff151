# SPDX-License-Identifier: Apache-2.0
"""Testing: public fakes that are real objects, for tests of penstock and of what is built on it.

Nothing in penstock imports this package.
"""

# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of all other packages: names, positions, units, time, errors. Imports nothing else of penstock."""

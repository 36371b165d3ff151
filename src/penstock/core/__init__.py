# SPDX-License-Identifier: Apache-2.0
"""What everything else is said in: names, positions, units, time, errors. Imports nothing else of penstock."""

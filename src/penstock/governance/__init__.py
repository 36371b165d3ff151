# SPDX-License-Identifier: Apache-2.0
"""The mechanisms that keep one client's load from becoming everybody's problem.

Why: each of them is a decision, and decisions are easiest to get right where nothing else happens.
Where: the broker asks and acts; nothing here knows a socket, a disk, a task or a clock. Time comes in as `now_ns`,
monotonic nanoseconds.
"""

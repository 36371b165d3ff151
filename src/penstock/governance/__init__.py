# SPDX-License-Identifier: Apache-2.0
"""Resource governance: pure mechanisms that limit the load that one client can put on the broker.

Why: each mechanism is a decision. A decision is easiest to test where nothing else happens. Where: the broker asks and
carries out the answer. Nothing here knows a socket, a disk, a task or a clock. Time is an argument, `now_ns`, in
monotonic nanoseconds.
"""

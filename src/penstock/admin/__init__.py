# SPDX-License-Identifier: Apache-2.0
"""The admin port: metrics and health over HTTP, on a thread of its own.

server    the port; sleeps until somebody calls                                   (the broker's loop)
gateway   asks the broker's loop, from another one
web       uvicorn, and what it is told                   imported on the first connection
api       routes and answers                             imported on the first connection
"""

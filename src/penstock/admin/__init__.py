# SPDX-License-Identifier: Apache-2.0
"""The admin port: metrics, health and Pulsar's REST API over HTTP, on a thread of its own.

server        the port; without a thread until the first connection        (the broker's loop)
gateway       runs calls on the broker's loop, from another one
http_server   uvicorn and its limits                 imported on the first connection
api           routes and responses                   imported on the first connection
"""

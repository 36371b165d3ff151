# SPDX-License-Identifier: Apache-2.0
"""Tenants and namespaces, made as an administrator makes them: over the admin port.

Where: the replay makes a tenant for each airline before anybody connects.
"""

from __future__ import annotations

import json
import urllib.request

# The first request loads what answers it.
ANSWER_TIMEOUT_S = 30.0


def make_namespace(admin_url: str, tenant: str, namespace: str) -> None:
    """Make a tenant with one namespace. Raises OSError when the broker refuses, or does not answer."""
    with urllib.request.urlopen(f"{admin_url}/admin/v2/clusters", timeout=ANSWER_TIMEOUT_S) as answer:
        clusters = json.load(answer)
    _put(f"{admin_url}/admin/v2/tenants/{tenant}", {"adminRoles": [], "allowedClusters": clusters})
    _put(f"{admin_url}/admin/v2/namespaces/{tenant}/{namespace}", {})


def _put(url: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="PUT")
    with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S):
        pass

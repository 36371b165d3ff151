# SPDX-License-Identifier: Apache-2.0
"""Tenants and namespaces, made as an administrator makes them: over the admin port.

Where: the replay makes a tenant for each airline before anybody connects, the analysis one for what it puts back.
"""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Without it, what every subscription has acknowledged may be given back, and Spark reads the year afterwards.
KEEP_ALL = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
# The first request loads what answers it.
ANSWER_TIMEOUT_S = 30.0


def make_namespace(admin_url: str, tenant: str, namespace: str) -> None:
    """Make a tenant with one namespace that keeps everything. Raises OSError when the broker refuses or is silent."""
    with urllib.request.urlopen(f"{admin_url}/admin/v2/clusters", timeout=ANSWER_TIMEOUT_S) as answer:
        clusters = json.load(answer)
    _send("PUT", f"{admin_url}/admin/v2/tenants/{tenant}", {"adminRoles": [], "allowedClusters": clusters})
    _send("PUT", f"{admin_url}/admin/v2/namespaces/{tenant}/{namespace}", {})
    _send("POST", f"{admin_url}/admin/v2/namespaces/{tenant}/{namespace}/retention", KEEP_ALL)


def _send(method: str, url: str, body: Mapping[str, object]) -> None:
    content = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), content, method=method)
    with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S):
        pass

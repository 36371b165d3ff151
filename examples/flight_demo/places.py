# SPDX-License-Identifier: Apache-2.0
"""Tenants and namespaces, made as an administrator makes them: over the admin port.

Where: the replay makes a tenant for each airline before anybody connects, the analysis one for what it puts back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.process import ask

if TYPE_CHECKING:
    from collections.abc import Iterable

# Without it, what every subscription has acknowledged may be given back, and Spark reads the year afterwards.
KEEP_ALL = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


def make_group(admin_port: int, group: str, messages_per_s: int, tenants: Iterable[str]) -> None:
    """Let tenants share a quota of published messages. Raises OSError when the broker refuses or is silent."""
    ask(admin_port, "PUT", f"resourcegroups/{group}", {"publishRateInMsgs": messages_per_s})
    for tenant in tenants:
        ask(admin_port, "POST", f"tenants/{tenant}/resourcegroup/{group}")


def make_namespace(admin_port: int, tenant: str, namespace: str) -> None:
    """Make a tenant with one namespace that keeps everything. Raises OSError when the broker refuses or is silent."""
    clusters = ask(admin_port, "GET", "clusters")
    ask(admin_port, "PUT", f"tenants/{tenant}", {"adminRoles": [], "allowedClusters": clusters})
    ask(admin_port, "PUT", f"namespaces/{tenant}/{namespace}", {})
    ask(admin_port, "POST", f"namespaces/{tenant}/{namespace}/retention", KEEP_ALL)

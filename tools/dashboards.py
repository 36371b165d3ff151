# SPDX-License-Identifier: Apache-2.0
"""Writes the dashboards in `ops/dashboards` for Grafana, from the table in `dashboard_panels`.

    python -m tools.dashboards

Why generated: Grafana's JSON is long, and panels have to look alike. Where: `make docs`. `tests/telemetry/
test_dashboards.py` checks that the files are up to date, and runs every query.

Each selector in braces is limited to the chosen brokers. The data source is a variable, so that files can be imported
anywhere. Windows of rates are `$__rate_interval`, which Grafana derives from the scrape interval.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.dashboard_panels import DASHBOARDS

if TYPE_CHECKING:
    from tools.dashboard_panels import Dashboard, Panel

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "ops" / "dashboards"
# Grafana's screen is 24 wide. Two panels are beside each other.
WIDTH: Final = 12
HEIGHT: Final = 8
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def limited(query: str) -> str:
    """Limit each selector of a query to the chosen brokers."""
    return re.sub(
        r"\{([^}]*)\}", lambda found: "{" + ",".join(filter(None, [found[1], 'instance=~"$instance"'])) + "}", query
    )


def rendered(name: str, dashboard: Dashboard) -> str:
    """The JSON of a dashboard."""
    return json.dumps(_dashboard(name, dashboard), indent=1) + "\n"


def _dashboard(name: str, dashboard: Dashboard) -> dict[str, Any]:
    return {
        "title": dashboard.title,
        "uid": f"penstock-{name}",
        "tags": ["penstock"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source_variable(), _instance_variable()]},
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _instance_variable() -> dict[str, Any]:
    return {
        "name": "instance",
        "label": "Broker",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": "label_values(penstock_build_info, instance)", "refId": "instance"},
        "refresh": 2,  # when the time range changes
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, 2)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": {"fillOpacity": 5}}, "overrides": []},
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": limited(query), "legendFormat": legend}
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def main() -> int:
    """Write every file that is not up to date."""
    FOLDER.mkdir(exist_ok=True)
    for name, dashboard in DASHBOARDS.items():
        file, text = FOLDER / f"{name}.json", rendered(name, dashboard)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            print(f"wrote {file.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

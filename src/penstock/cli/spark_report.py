# SPDX-License-Identifier: Apache-2.0
"""The report of accounting: one HTML file without scripts, for large and small screens, light and dark.

Why by hand: docs/adr/0014-plots-by-hand.md. Lines are drawn in boxes that take any width, and their words are text
beside them, so they stay readable on a telephone.
Where: `penstock spark report`.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from penstock.spark.accounting.findings import Findings

_WIDTH: Final = 1_000
_HEIGHT: Final = 220
_POINTS_MAX: Final = 1_000
_LANES: Final = 14
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1d2530;--soft:#5b6775;--rule:#d8dee6;--paper:#fff;
--c0:#0b62a4;--c1:#c2410c;--c2:#15803d;--c3:#7e22ce}
@media(prefers-color-scheme:dark){:root{--ink:#e5e9ef;--soft:#9aa6b5;--rule:#333c48;--paper:#11161c;
--c0:#60a5fa;--c1:#fb923c;--c2:#4ade80;--c3:#c084fc}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:60rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin:2rem 0 .3rem}p{margin:.3rem 0}.soft{color:var(--soft);font-size:.85rem}
figure{margin:.5rem 0}svg{display:block;width:100%;height:13rem;border-bottom:1px solid var(--rule);
border-left:1px solid var(--rule)}
path{fill:none;stroke-width:2;vector-effect:non-scaling-stroke}
.ends{display:flex;justify-content:space-between;color:var(--soft);font-size:.8rem}
.key span{margin-right:1rem;white-space:nowrap;overflow-wrap:anywhere}
.key i{display:inline-block;width:.8rem;height:.8rem;margin-right:.3rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;width:100%}
th,td{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid var(--rule);vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}td{overflow-wrap:anywhere;min-width:5rem}
.bar{background:var(--c0);height:.45rem;border-radius:.2rem}.lane{display:grid;grid-template-columns:1fr;margin:.4rem 0}
.track{position:relative;height:.9rem;background:var(--rule);border-radius:.2rem}
.track b{position:absolute;top:0;bottom:0;min-width:2px;background:var(--c1);border-radius:.2rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.6rem}
.tiles div{border:1px solid var(--rule);border-radius:.4rem;padding:.5rem .7rem}
.tiles strong{display:block;font-size:1.2rem}
"""


def render(found: Findings, *, target: float) -> str:
    """Return the page."""
    days = f"{found.days[0]} to {found.days[-1]}" if found.days else "no days"
    parts = [
        f"<h1>Who used what: {days}</h1>",
        _summary(found),
        *_usage(found),
        *_episodes(found),
        *_fairness(found),
        *_talkers(found),
        *_noisy(found),
        *_quotas(found, target),
        *_costs(found),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Usage report</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style></head><body>'
        + "\n".join(parts)
        + "</body></html>\n"
    )


def _summary(found: Findings) -> str:
    totals = found.totals
    tiles = [
        ("published", _bytes(totals.get("published_bytes", 0)), f"{totals.get('published_messages', 0):,} messages"),
        ("dispatched", _bytes(totals.get("dispatched_bytes", 0)), f"{totals.get('dispatched_messages', 0):,} messages"),
        ("slowed or refused", f"{found.episodes_all:,}", "episodes"),
        ("closed until", _time(found.closed_until) if found.closed_until else "–", f"{found.late_rows:,} late rows"),
        ("records refused", f"{found.refused:,}", "not counted; later ones contain them"),
    ]
    inner = "".join(
        f'<div><span class="soft">{escape(name)}</span><strong>{escape(value)}</strong>'
        f'<span class="soft">{escape(more)}</span></div>'
        for name, value, more in tiles
    )
    return f'<div class="tiles">{inner}</div>'


def _usage(found: Findings) -> Iterable[str]:
    yield "<h2>Usage</h2>"
    if not found.minutes:
        yield "<p>Nothing was used.</p>"
        return
    lines = {name: [used / 60 for used in of_tenant] for name, of_tenant in found.tenants.items()}
    yield _lines("Published bytes per second by tenant", found.minutes, lines, lambda top: f"{_bytes(top)}/s")


def _fairness(found: Findings) -> Iterable[str]:
    yield "<h2>Fairness</h2>"
    if not found.fairness:
        yield "<p>Nothing was used.</p>"
        return
    yield (
        '<p class="soft">Jain\'s index of what tenants published in a minute: 1 if all published the same, '
        "1/n if one of n published everything.</p>"
    )
    minutes = [minute for minute, _ in found.fairness]
    values = [value for _, value in found.fairness]
    yield _lines("Fairness between tenants", minutes, {"index": values}, lambda top: f"{top:.2f}")


def _lines(title: str, minutes: Sequence[datetime], lines: dict[str, list[float]], said: Any) -> str:  # noqa: ANN401
    top = max((max(values) for values in lines.values()), default=0.0) or 1.0
    first, last = minutes[0].timestamp(), minutes[-1].timestamp()
    span = (last - first) or 60.0
    paths = []
    for number, values in enumerate(lines.values()):
        points = [
            (round((at.timestamp() - first) / span * _WIDTH, 1), round(_HEIGHT - value / top * (_HEIGHT - 6), 1))
            for at, value in zip(minutes, values, strict=True)
        ]
        if len(points) == 1:
            points.append((_WIDTH, points[0][1]))
        drawn = " ".join(f"{x:g},{y:g}" for x, y in _thinned(points))
        paths.append(f'<path stroke="var(--c{number % 4})" d="M{drawn}"/>')
    key = "".join(
        f'<span><i style="background:var(--c{number % 4})"></i>{escape(name)}</span>'
        for number, name in enumerate(lines)
    )
    label = escape(f"{title}, from 0 to {said(top)}", quote=True)
    return (
        f'<figure><figcaption class="key">{key}<span class="soft">up to {escape(said(top))}</span></figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f"{''.join(paths)}</svg>"
        f'<div class="ends"><span>{_time(minutes[0])}</span><span>{_time(minutes[-1])}</span></div>'
        "</figure>"
    )


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of many points, the highest and the lowest of each piece."""
    if len(points) <= _POINTS_MAX:
        return points
    size = -(-2 * len(points) // _POINTS_MAX)
    kept = []
    for start in range(0, len(points), size):
        piece = points[start : start + size]
        kept += sorted({min(piece, key=lambda one: one[1]), max(piece, key=lambda one: one[1])})
    return kept


def _episodes(found: Findings) -> Iterable[str]:
    yield "<h2>Who was slowed</h2>"
    if not found.episodes:
        yield "<p>Nobody was slowed or refused.</p>"
        return
    first = min(one["since"] for one in found.episodes)
    last = max(one["until"] for one in found.episodes)
    span = max(1.0, (last - first).total_seconds())
    lanes: dict[str, list[dict[str, Any]]] = {}
    for one in found.episodes:
        who = one["resource_group"] or one["topic"] or one["namespace"] or one["client"] or "the broker"
        lanes.setdefault(f"{one['limiter']}: {who}", []).append(one)
    longest = sorted(lanes.items(), key=lambda item: -sum(one["held_ms"] for one in item[1]))
    for name, of_lane in longest[:_LANES]:
        marks = "".join(
            f'<b style="left:{(one["since"] - first).total_seconds() / span * 100:.2f}%;'
            f'width:{min(100.0, max(0.2, (one["until"] - one["since"]).total_seconds() / span * 100)):.2f}%"></b>'
            for one in of_lane
        )
        held = sum(one["held_ms"] for one in of_lane) / 1_000
        yield (
            f'<div class="lane"><span>{escape(name)} <span class="soft">{len(of_lane):,} episodes, '
            f"{held:,.1f} s held back</span></span>"
            f'<div class="track" role="img" aria-label="{escape(name, quote=True)}">{marks}</div></div>'
        )
    yield f'<div class="ends"><span>{_time(first)}</span><span>{_time(last)}</span></div>'
    if found.episodes_all > len(found.episodes) or len(lanes) > _LANES:
        yield f'<p class="soft">The longest of {found.episodes_all:,} episodes.</p>'


def _talkers(found: Findings) -> Iterable[str]:
    yield "<h2>Top talkers</h2>"
    most = max((one["published_bytes"] for one in found.topics), default=0) or 1
    rows = [
        (
            f'{escape(one["topic"])}<div class="bar" style="width:{one["published_bytes"] / most * 100:.1f}%"></div>',
            escape(_bytes(one["published_bytes"])),
            escape(_bytes(one["dispatched_bytes"])),
        )
        for one in found.topics
    ]
    yield _table(("topic", "published", "dispatched"), rows)


def _noisy(found: Findings) -> Iterable[str]:
    if found.noisy:
        yield "<h2>Noisy neighbours</h2>"
        yield (
            '<p class="soft">Topics that used a quarter or more of what their group published while it was limited.</p>'
        )
        yield _table(
            ("topic", "group", "minutes", "part"),
            [
                (escape(one["topic"]), escape(one["resource_group"]), f"{one['minutes']:,}", f"{one['part']:.0%}")
                for one in found.noisy
            ],
        )


def _quotas(found: Findings, target: float) -> Iterable[str]:
    yield "<h2>Quotas, and recommendations</h2>"
    if not found.fit and not found.advice:
        yield "<p>No resource group has a quota.</p>"
        return
    if found.fit:
        yield _table(
            ("group", "of", "quota/s", "99 % used up to", "limited minutes", "fit"),
            [
                (
                    escape(one["resource_group"]),
                    escape(one["kind"].replace("_", " ")),
                    f"{one['quota']:,.0f}",
                    f"{one['p99']:,.0f}",
                    f"{one['limited_minutes']:,} of {one['minutes']:,}",
                    escape(one["fit"]),
                )
                for one in found.fit
            ],
        )
    if found.advice:
        yield (
            f'<p class="soft">Recommended: the smallest quota with which {target:.4g} of the minutes would not have '
            "been limited, by replaying what was recorded. ≥: more may have been wanted than could be seen.</p>"
        )
        yield _table(
            ("group", "of", "quota/s", "recommended/s", "fairness of brokers"),
            [
                (
                    escape(one["resource_group"]),
                    escape(one["kind"].replace("_", " ")),
                    f"{one['quota']:,.0f}" if one["quota"] is not None else "–",
                    at_least(one["recommended"], ",.0f", known=not one["recommended_at_least"]),
                    f"{one['fairness']:.3f}",
                )
                for one in found.advice
            ],
        )


def at_least(number: float | None, form: str, *, known: bool) -> str:
    """A number, or a lower bound."""
    return "–" if number is None else f"{'' if known else '≥ '}{number:{form}}"


def _costs(found: Findings) -> Iterable[str]:
    if found.costs:
        yield "<h2>Costs</h2>"
        yield _table(
            ("namespace", "of", "amount", "cost"),
            [
                (
                    escape(one["namespace"]),
                    escape(one["counter"].replace("_", " ")),
                    f"{one['amount']:,}",
                    "no price" if one["unpriced"] else escape(f"{one['cost'].normalize():,f} {one['currency']}"),
                )
                for one in found.costs
            ],
        )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th{_side(number)}>{escape(name)}</th>" for number, name in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(f"<td{_side(number)}>{cell}</td>" for number, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _side(number: int) -> str:
    return ' class="n"' if number > 1 else ""


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M")


def _bytes(amount: float) -> str:
    size = float(amount)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    raise AssertionError

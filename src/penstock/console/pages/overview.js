// SPDX-License-Identifier: Apache-2.0
// How the cluster is: health with its reasons, traffic, memory, and what waits now and why.

import { html } from "../vendor/htm-preact.js";
import { SERVER, ask, askIfAllowed, path } from "../api.js";
import { Chain, Summary } from "../findings.js";
import * as format from "../format.js";
import { Chart, Link, Meter, Name, Panel, State, Table, Tiles, Waiting, usePolled, where } from "../parts.js";
import { ForeignCluster } from "./foreign.js";

export function Overview({ who, seen, history }) {
  if (!who.superuser) return html`<${OfTenants} who=${who} />`;
  const { data } = seen;
  if (data === undefined) return html`<h1>Overview</h1><${Waiting} ...${seen} />`;
  return html`<h1>Overview</h1>
    ${seen.error && html`<${Waiting} ...${seen} />`}
    <${Health} seen=${data} />
    ${data.brokers.length > 0 && html`<${Traffic} brokers=${data.brokers} history=${history} />`}
    ${data.proxy && html`<${Proxy} proxy=${data.proxy} history=${history} alone=${data.brokers.length === 0} />`}
    ${who.foreign && html`<${ForeignCluster} />`}
    ${SERVER === "proxy" && !who.foreign && data.brokers.length === 0 && html`<p class="notice">You may not see the brokers behind this proxy, or
      they do not answer: <${Link} to="/topics">topics<//> show what their REST API tells.</p>`}
    <${Now} seen=${data} />
    ${data.proxy && html`<${Memory} of="this proxy" rows=${data.proxy.memory} resident=${data.proxy.residentBytes} />`}
    ${data.brokers.map((one) => html`<${Memory} key=${one.broker} rows=${one.memory} resident=${one.residentBytes}
      of=${data.brokers.length > 1 ? `broker ${one.broker}` : "the broker"} />`)}
    ${data.brokers.length > 0 && html`<${Brokers} brokers=${data.brokers} />`}`;
}

function Health({ seen }) {
  const all = [...(seen.proxy ? [{ ...seen.proxy, title: "This proxy" }] : []), ...seen.brokers];
  const title = (one) => one.title ?? (seen.brokers.length > 1 ? `Broker ${one.broker}` : "The broker");
  const ill = all.filter((one) => one.status !== "ok");
  const notes = html`<${Notes} all=${all} title=${title} />`;
  if (ill.length === 0 && seen.unanswered.length === 0) {
    return all.length > 0 ? html`<p class="notice good">${all.length === 1 ? `${title(all[0])} is well.` : "All are well."}</p>${notes}` : null;
  }
  return html`${notes}<div class="notice bad" role="alert">
    ${ill.map((one) => html`<p key=${title(one)}>${title(one)} is <${State} state=${one.status} />${one.reasons.length > 0 ? ":" : "."}</p>
      <ul>${one.reasons.map((reason) => html`<li key=${reason}><${Name} text=${reason} /></li>`)}</ul>`)}
    ${seen.unanswered.length > 0 && html`<p>${`Broker ${seen.unanswered.join(", ")} does not answer.`}</p>`}
  </div>`;
}

/** What will need somebody soon: certificates and tokens that expire. */
function Notes({ all, title }) {
  const noted = all.flatMap((one) => (one.notes ?? []).map((note) => [title(one), note]));
  return noted.length > 0 && html`<ul class="notice warn">${noted.map(([of, note]) => html`<li key=${of + note}>${of}: <${Name} text=${note} /></li>`)}</ul>`;
}

const total = (all, name) => all.reduce((sum, one) => sum + (one[name] ?? 0), 0);

/** How long publishes took until their receipts, in the last minute, or else since the start. */
function latency(brokers, history) {
  const recent = history.publishTimes;
  const some = recent !== null && recent.counts.some((one) => one > 0);
  const times = some
    ? recent
    : { boundsMs: brokers[0].publishTimes.boundsMs, counts: brokers[0].publishTimes.boundsMs.map((_bound, index) =>
        brokers.reduce((sum, one) => sum + (one.publishTimes.counts[index] ?? 0), 0)) };
  const shown = (part) => {
    const ms = format.quantile(times.boundsMs, times.counts, part);
    return ms === null ? "–" : ms === Infinity ? `> ${format.duration(times.boundsMs.at(-1))}` : `≤ ${format.duration(ms)}`;
  };
  return [shown(0.99), `half: ${shown(0.5)}, ${some ? "last minute" : "since the start"}`];
}

function Traffic({ brokers, history }) {
  const now = (counter, rate) => history.last(counter) ?? total(brokers, rate);
  const [late, hint] = latency(brokers, history);
  const items = [
    ["Published / s", format.compact(now("messagesIn", "msgRateIn")), `${format.bytes(now("bytesIn", "msgThroughputIn"))} / s`],
    ["Delivered / s", format.compact(now("messagesOut", "msgRateOut")), `${format.bytes(now("bytesOut", "msgThroughputOut"))} / s`],
    ["Backlog", format.compact(total(brokers, "msgBacklog")), `${format.count(total(brokers, "unacked"))} unacknowledged`],
    ["Publish takes", late, hint],
    ["Topics", format.count(total(brokers, "topics")), `${format.count(total(brokers, "loaded"))} loaded`],
    ["Clients", format.count(total(brokers, "connections")), `${format.many(total(brokers, "publishers"), "producer")}, ${format.many(total(brokers, "consumers"), "consumer")}`],
  ];
  return html`<${Panel} id="traffic" title="Traffic">
    <${Tiles} items=${items} />
    <div class="charts">
      <${Chart} label="Messages per second" times=${history.times} lines=${[
        { label: "published", values: history.lines.messagesIn, token: "--first" },
        { label: "delivered", values: history.lines.messagesOut, token: "--second" },
      ]} />
      <${Chart} label="Backlog, in entries" times=${history.times} lines=${[
        { label: "backlog", values: history.lines.backlog, token: "--third" },
      ]} />
    </div>
  <//>`;
}

function Proxy({ proxy, history, alone }) {
  const items = [
    ["Clients", format.count(proxy.connections), `${format.count(proxy.connectionsRefused)} refused since the start`],
    ["Connections to brokers", format.count(proxy.brokerConnections)],
    ["Lookups that wait", format.count(proxy.lookupsPending)],
    ["Muted", format.count(proxy.muted)],
  ];
  return html`<${Panel} id="proxy" title="This proxy">
    <${Tiles} items=${items} />
    ${alone && html`<div class="charts"><${Chart} label="Bytes per second" show=${format.bytes} times=${history.times} lines=${[
      { label: "to brokers", values: history.lines.bytesIn, token: "--first" },
      { label: "to clients", values: history.lines.bytesOut, token: "--second" },
    ]} /></div>`}
  <//>`;
}

/** What is muted, held or refused now, counted by reason, with the words of `penstock why`. */
function Now({ seen }) {
  const all = [...(seen.proxy ? [seen.proxy] : []), ...seen.brokers];
  const counts = {};
  for (const one of all) {
    for (const [reason, count] of Object.entries(one.holds)) counts[reason] = (counts[reason] ?? 0) + count;
  }
  const muted = all.flatMap((one) => one.mutedConnections.map((connection) => ({ ...connection, of: one.name })));
  const refusing = all.flatMap((one) => one.memory.filter((row) => row.refused > 0).map((row) => ({ ...row, of: one.name })));
  const waits = Object.keys(counts).length > 0;
  const why = usePolled((signal) => (waits ? askIfAllowed("/admin/v3/why", { signal }) : null), [waits], 5_000);
  return html`<${Panel} id="now" title="Waiting now">
    ${waits
      ? html`<ul class="chips">${Object.entries(counts).map(([reason, count]) => html`<li key=${reason}><b>${format.count(count)}</b> ${reason}</li>`)}</ul>`
      : html`<p class="quiet">Nothing waits for anything.</p>`}
    ${why.data && html`<${Summary} explanation=${why.data} /><${Chain} explanation=${why.data} />`}
    ${muted.length > 0 && html`<h3>Connections that are not read</h3><${Table} label="Connections that are not read" rows=${muted}
      rowKey=${(row) => `${row.of} ${row.address}`} columns=${[
        { head: "Client", cell: (row) => html`<${Name} text=${row.address} />` },
        { head: "For", number: true, cell: (row) => format.duration(row.mutedMillis) },
        { head: "Reasons", cell: (row) => row.reasons.join(", ") },
        { head: "Holds", number: true, cell: (row) => format.bytes(row.heldBytes) },
        { head: "Wants", number: true, cell: (row) => format.bytes(row.wantedBytes) },
      ]} />`}
    ${refusing.length > 0 && html`<h3>Refused for lack of memory, since the start</h3><${Table} label="Refused for lack of memory" rows=${refusing}
      rowKey=${(row) => `${row.of} ${row.row}`} columns=${[
        { head: "Memory of", cell: (row) => row.owner },
        { head: "Times", number: true, cell: (row) => format.count(row.refused) },
        { head: "Setting", cell: (row) => row.key ?? "memoryLimitMB" },
      ]} />`}
  <//>`;
}

/** The memory budget as one bar, with every row. */
function Memory({ of, rows, resident }) {
  const limit = rows.reduce((sum, row) => sum + Math.max(0, row.limitBytes), 0);
  const used = rows.reduce((sum, row) => sum + row.usedBytes, 0);
  return html`<${Panel} id=${`memory-${of.replace(/\W/g, "-")}`} title=${`Memory of ${of}`}
      note=${`${format.bytes(used)} of ${format.bytes(limit)} in use; the process has ${format.bytes(resident)} resident.`}>
    <div class="budget" role="img" aria-label="The memory budget; the table below has the same figures">
      ${rows.map((row) => {
        const share = limit > 0 ? (100 * Math.max(0, row.limitBytes)) / limit : 0;
        const part = row.limitBytes > 0 ? Math.min(1, row.usedBytes / row.limitBytes) : 0;
        return html`<span key=${row.row} style=${{ width: `${share}%` }} title=${`${row.row}: ${format.percent(part)}`}>
          <i class=${part > 0.9 ? "bad" : part > 0.7 ? "warn" : "good"} style=${{ height: `${100 * part}%` }}></i></span>`;
      })}
    </div>
    <${Table} label=${`Memory budget of ${of}`} rows=${rows} rowKey=${(row) => row.row} columns=${[
      { head: "Row", cell: (row) => row.row },
      { head: "For", cell: (row) => row.owner },
      { head: "Used", number: true, cell: (row) => format.bytes(row.usedBytes) },
      { head: "Limit", number: true, cell: (row) => (row.limitBytes > 0 ? format.bytes(row.limitBytes) : "none") },
      { head: "Part", cell: (row) => html`<${Meter} used=${row.usedBytes} limit=${row.limitBytes} label=${row.row} />` },
      { head: "Refused", number: true, cell: (row) => format.count(row.refused) },
      { head: "Setting", cell: (row) => row.key ?? "memoryLimitMB" },
    ]} />
  <//>`;
}

function Brokers({ brokers }) {
  const states = Object.fromEntries((brokers[0].brokers ?? []).map((one) => [one.broker, one.state]));
  return html`<${Panel} id="brokers" title="Brokers">
    <${Table} label="Brokers" rows=${brokers} rowKey=${(one) => one.broker} columns=${[
      { head: "Broker", cell: (one) => one.broker },
      { head: "Admin port", cell: (one) => one.name },
      { head: "State", cell: (one) => html`<${State} state=${one.status === "ok" ? (states[one.broker] ?? "ok") : one.status} />` },
      { head: "Version", cell: (one) => one.version },
      { head: "Up since", cell: (one) => format.moment(one.startedAtMs) },
      { head: "Topics", number: true, cell: (one) => format.count(one.topics) },
      { head: "In / s", number: true, cell: (one) => format.rate(one.msgRateIn) },
      { head: "Out / s", number: true, cell: (one) => format.rate(one.msgRateOut) },
      { head: "Longest turn", number: true, cell: (one) => format.duration(one.longestTurnMs) },
      { head: "Disk free", number: true, cell: (one) => (one.disk ? format.bytes(one.disk.freeBytes) : "–") },
    ]} />
  <//>`;
}

/** What an administrator of tenants sees: the sums of each tenant, and why it waits. */
function OfTenants({ who }) {
  const seen = usePolled(
    (signal) => Promise.all(who.tenants.slice(0, 50).map(async (tenant) => ({
      tenant,
      page: await ask(path`/admin/v3/topics/${tenant}?limit=0`, { signal }),
      why: await askIfAllowed(path`/admin/v3/why/tenants/${tenant}`, { signal }),
    }))), [who], 5_000);
  if (who.tenants.length === 0) {
    return html`<h1>Overview</h1><p class="notice">Your role administers no tenant. <${Link} to="/topics">Topics<//> of a namespace
      are shown to whoever may produce or consume in it.</p>`;
  }
  return html`<h1>Overview</h1><${Waiting} ...${seen} />
    ${(seen.data ?? []).map(({ tenant, page, why }) => html`<${Panel} key=${tenant} id=${`tenant-${tenant}`} title=${`Tenant ${tenant}`}>
      <${Tiles} items=${[
        ["Published / s", format.compact(page.sums.msgRateIn), `${format.bytes(page.sums.msgThroughputIn)} / s`],
        ["Delivered / s", format.compact(page.sums.msgRateOut), `${format.bytes(page.sums.msgThroughputOut)} / s`],
        ["Backlog", format.compact(page.sums.msgBacklog)],
        ["Topics", format.count(page.total)],
        ["Clients", format.count(page.sums.publishers + page.sums.consumers)],
      ]} />
      <p><${Link} to=${where("/topics", { within: tenant })}>${`Topics of ${tenant}`}<//></p>
      ${why && html`<${Summary} explanation=${why} />${why.findings.length > 0 && html`<${Chain} explanation=${why} />`}`}
    <//>`)}`;
}

// SPDX-License-Identifier: Apache-2.0
// One topic: traffic, subscriptions with what may be done to them, producers, partitions.

import { html, useMemo, useState } from "../vendor/htm-preact.js";
import { SERVER, ask, askIfAllowed, topicOf } from "../api.js";
import { Chain, Summary } from "../findings.js";
import * as format from "../format.js";
import { Chart, Link, Name, Panel, Table, Tiles, Waiting, usePolled, where } from "../parts.js";
import { merged, told } from "../told.js";
import { ClearDialog, PeekDialog, ResetDialog, SkipDialog } from "./topic_actions.js";

const EVERY_MS = 3_000;
const LOOKS_MAX = 300;
// The producers and consumers that are listed; all are counted.
const LISTED_MAX = 100;

export function TopicPage({ values, who }) {
  const topic = topicOf(values.name ?? "");
  if (topic === null) return html`<h1>Topic</h1><p class="notice bad" role="alert">${values.name ?? ""} is not the name of a topic.</p>`;
  return html`<${OfTopic} topic=${topic} foreign=${who.foreign} key=${topic.name} />`;
}

/** The statistics of a topic, of all partitions in sum if it has some, and of each. */
export async function statsOf(topic, signal) {
  const partitions = (await ask(`${topic.at}/partitions`, { signal })).partitions;
  const stats = partitions > 0
    ? await ask(`${topic.at}/partitioned-stats?perPartition=true&subscriptionBacklogSize=true`, { signal })
    : await ask(`${topic.at}/stats?subscriptionBacklogSize=true`, { signal });
  return { stats, partitions };
}

/** The same, noted in `lines`; behind a proxy with what they tell of waits, which the broker is not asked itself. */
async function look(topic, lines, signal) {
  const { stats, partitions } = await statsOf(topic, signal);
  const theirs = SERVER === "proxy" ? told(topic.name, stats, lines.stats) : null;
  lines.add(stats);
  return { stats, partitions, theirs };
}

/** Rates and backlog since the page was opened. */
class Lines {
  constructor() {
    this.times = [];
    this.in = [];
    this.out = [];
    this.backlog = [];
    this.before = null;
    this.stats = undefined; // of the look before
  }

  add(stats) {
    this.stats = stats;
    const now = { atMs: Date.now(), in: stats.msgInCounter, out: stats.msgOutCounter };
    const before = this.before;
    this.before = now;
    if (before === null || now.atMs <= before.atMs) return;
    const seconds = (now.atMs - before.atMs) / 1_000;
    this.times.push(now.atMs);
    this.in.push(Math.max(0, now.in - before.in) / seconds);
    this.out.push(Math.max(0, now.out - before.out) / seconds);
    this.backlog.push(Math.max(0, ...Object.values(stats.subscriptions).map((one) => one.msgBacklog)));
    if (this.times.length > LOOKS_MAX) [this.times, this.in, this.out, this.backlog].forEach((line) => line.shift());
  }
}

function OfTopic({ topic, foreign }) {
  const lines = useMemo(() => new Lines(), [topic.name]);
  const seen = usePolled((signal) => look(topic, lines, signal), [topic.name], EVERY_MS);
  const why = usePolled((signal) => askIfAllowed(topic.why, { signal }), [topic.name], SERVER === "proxy" ? 3 * EVERY_MS : EVERY_MS);
  const [dialog, setDialog] = useState(null);
  const [done, setDone] = useState(null);
  const close = () => setDialog(null);
  const finish = (sentence) => {
    setDialog(null);
    setDone(sentence);
    seen.again();
  };
  const open = (Opened, subscription) => {
    setDone(null);
    setDialog({ Opened, subscription });
  };
  const { stats, partitions, theirs } = seen.data ?? {};
  const waits = merged(why.data ?? null, theirs ?? null);
  const parent = /^(.+)-partition-(\d+)$/.exec(topic.name);
  return html`<h1><${Name} text=${topic.local} /></h1>
    <p class="quiet"><${Name} text=${topic.name} />${parent && html` · <${Link} to=${where("/topic", { name: parent[1] })}>all partitions<//>`}
      · <${Link} to=${where("/why", { of: topic.name })}>Why<//>
      · <${Link} to=${where("/topics", { within: `${topic.tenant}/${topic.namespace}` })}>Topics of ${topic.tenant}/${topic.namespace}<//></p>
    <${Waiting} ...${seen} />
    <p class="done" role="status">${done}</p>
    ${stats && html`
      <${Panel} id="traffic" title="Traffic">
        <${Tiles} items=${tiles(stats, partitions, lines)} />
        <div class="charts">
          <${Chart} label="Messages per second" times=${lines.times} lines=${[
            { label: "published", values: lines.in, token: "--first" },
            { label: "delivered", values: lines.out, token: "--second" },
          ]} />
          <${Chart} label="Largest backlog, in entries" times=${lines.times} lines=${[{ label: "backlog", values: lines.backlog, token: "--third" }]} />
        </div>
        <p>${foreign
          ? html`<button type="button" onClick=${() => open(PeekDialog, null)}>Look at messages</button>`
          : html`<${Link} to=${where("/messages", { name: topic.name })}>Messages: look, live tail, send, export, redrive<//>`}</p>
      <//>
      <${Subscriptions} stats=${stats} onOpen=${open} />
      ${waits?.findings.length > 0 && html`<${Panel} id="why" title="Why it waits"><${Summary} explanation=${waits} />
        <${Chain} explanation=${waits} /><//>`}
      ${partitions > 0 && html`<${Partitions} stats=${stats} />`}
      <${Producers} stats=${stats} />
      <${Consumers} stats=${stats} />`}
    ${dialog && html`<${dialog.Opened} ...${{ topic, partitions, stats, subscription: dialog.subscription, onClose: close, onDone: finish }} />`}`;
}

function tiles(stats, partitions, lines) {
  const now = (line, otherwise) => line.at(-1) ?? otherwise;
  return [
    ["Published / s", format.compact(now(lines.in, stats.msgRateIn)), `${format.bytes(stats.msgThroughputIn)} / s`],
    ["Delivered / s", format.compact(now(lines.out, stats.msgRateOut)), `${format.bytes(stats.msgThroughputOut)} / s`],
    ["Messages in", format.compact(stats.msgInCounter), `${format.bytes(stats.averageMsgSize)} on average`],
    ["Stored", format.bytes(stats.storageSize), `${format.bytes(stats.backlogSize)} of backlog`],
    ["Producers", format.count(stats.publishers?.length ?? 0)],
    ...(partitions > 0 ? [["Partitions", format.count(partitions)]] : []),
    ...(stats.lastPublishTimeStamp > 0 ? [["Last publish", format.clock(stats.lastPublishTimeStamp), format.moment(stats.lastPublishTimeStamp).slice(0, 10)]] : []),
  ];
}

function Subscriptions({ stats, onOpen }) {
  const rows = Object.entries(stats.subscriptions).map(([name, one]) => ({ name, ...one }));
  const actions = (row) => html`<span class="actions">
    ${[["Look", PeekDialog], ["Skip", SkipDialog], ["Clear", ClearDialog], ["Reset", ResetDialog]].map(([label, Opened]) => html`<button
      type="button" key=${label} class="plain" aria-label=${`${label}: subscription ${row.name}`} onClick=${() => onOpen(Opened, row.name)}>${label}</button>`)}
  </span>`;
  return html`<${Panel} id="subscriptions" title="Subscriptions">
    <${Table} label="Subscriptions" rows=${rows} rowKey=${(row) => row.name} empty="Nobody has subscribed." columns=${[
      { head: "Subscription", cell: (row) => html`<${Name} text=${row.name} />` },
      { head: "Type", cell: (row) => row.type ?? "–" },
      { head: "Backlog", number: true, cell: (row) => format.count(row.msgBacklog) },
      { head: "Bytes", number: true, cell: (row) => (row.backlogSize >= 0 ? format.bytes(row.backlogSize) : "–") },
      { head: "Delayed", number: true, cell: (row) => format.count(row.msgDelayed) },
      { head: "Unacked", number: true, cell: (row) => format.count(row.unackedMessages) },
      { head: "Out / s", number: true, cell: (row) => format.rate(row.msgRateOut) },
      { head: "Consumers", number: true, cell: (row) => format.count(row.consumers?.length ?? 0) },
      { head: "Last acknowledged", cell: (row) => format.moment(row.lastAckedTimestamp) },
      { head: "Do", cell: actions },
    ]} />
  <//>`;
}

function Partitions({ stats }) {
  const rows = Object.entries(stats.partitions ?? {}).map(([name, one]) => ({ name, ...one }));
  rows.sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
  return html`<${Panel} id="partitions" title="Partitions">
    <${Table} label="Partitions" rows=${rows} rowKey=${(row) => row.name} empty="No partition was used yet." columns=${[
      { head: "Partition", cell: (row) => html`<${Link} to=${where("/topic", { name: row.name })}>${row.name.replace(/^.*-partition-/, "")}<//>` },
      { head: "In / s", number: true, cell: (row) => format.rate(row.msgRateIn) },
      { head: "Out / s", number: true, cell: (row) => format.rate(row.msgRateOut) },
      { head: "Largest backlog", number: true, cell: (row) => format.count(Math.max(0, ...Object.values(row.subscriptions).map((one) => one.msgBacklog))) },
      { head: "Stored", number: true, cell: (row) => format.bytes(row.storageSize) },
      { head: "Producers", number: true, cell: (row) => format.count(row.publishers?.length ?? 0) },
      { head: "Broker", cell: (row) => row.ownerBroker ?? "–" },
    ]} />
  <//>`;
}

function Producers({ stats }) {
  const rows = (stats.publishers ?? []).slice(0, LISTED_MAX);
  return html`<${Panel} id="producers" title="Producers">
    <${Table} label="Producers" rows=${rows} empty="Nobody is connected to publish." columns=${[
      { head: "Producer", cell: (row) => html`<${Name} text=${row.producerName ?? "–"} />` },
      { head: "Client", cell: (row) => html`<${Name} text=${row.address ?? "–"} />` },
      { head: "In / s", number: true, cell: (row) => format.rate(row.msgRateIn) },
      { head: "Bytes in / s", number: true, cell: (row) => format.bytes(row.msgThroughputIn) },
      { head: "Since", cell: (row) => row.connectedSince ?? "–" },
      { head: "Library", cell: (row) => html`<${Name} text=${row.clientVersion ?? "–"} />` },
    ]} />
  <//>`;
}

function Consumers({ stats }) {
  const rows = Object.entries(stats.subscriptions)
    .flatMap(([subscription, one]) => (one.consumers ?? []).map((consumer) => ({ subscription, ...consumer })))
    .slice(0, LISTED_MAX);
  return html`<${Panel} id="consumers" title="Consumers">
    <${Table} label="Consumers" rows=${rows} empty="Nobody is connected to receive." columns=${[
      { head: "Consumer", cell: (row) => html`<${Name} text=${row.consumerName ?? "–"} />` },
      { head: "Subscription", cell: (row) => html`<${Name} text=${row.subscription} />` },
      { head: "Client", cell: (row) => html`<${Name} text=${row.address ?? "–"} />` },
      { head: "Out / s", number: true, cell: (row) => format.rate(row.msgRateOut) },
      { head: "Permits", number: true, cell: (row) => format.count(row.availablePermits) },
      { head: "Unacked", number: true, cell: (row) => format.count(row.unackedMessages) },
      { head: "Since", cell: (row) => row.connectedSince ?? "–" },
    ]} />
  <//>`;
}

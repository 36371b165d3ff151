// SPDX-License-Identifier: Apache-2.0
// A cluster of other brokers behind a proxy: what the REST API of Apache Pulsar tells of it, and what it does not.

import { html } from "../vendor/htm-preact.js";
import { askIfAllowed } from "../api.js";
import * as format from "../format.js";
import { Link, Name, Panel, Table, Tiles, Waiting, usePolled } from "../parts.js";

// Resource groups that are asked for, one by one.
const GROUPS_MAX = 100;

/** What a route answers; null for whatever else it does: each panel shows what is there. */
async function answered(path, signal) {
  try {
    return await askIfAllowed(path, { signal });
  } catch (error) {
    if (signal.aborted || error.status === 401) throw error;
    return null;
  }
}

/** Brokers, the load of the one that answers, and whether it stores and delivers. */
export function ForeignCluster() {
  const seen = usePolled(async (signal) => {
    const [brokers, leader, version, load, clusters] = await Promise.all(
      ["brokers", "brokers/leaderBroker", "brokers/version", "broker-stats/load-report", "clusters"]
        .map((path) => answered(`/admin/v2/${path}`, signal)));
    return { brokers, leader: leader?.brokerId ?? leader?.serviceUrl ?? null, version, load, clusters };
  }, [], 10_000);
  // The broker stores a message and receives it again for this answer.
  const health = usePolled((signal) => askIfAllowed("/admin/v2/brokers/health?topicVersion=V2", { signal }), [], 30_000);
  const { data } = seen;
  return html`
    ${health.error && html`<p class="notice bad" role="alert">The broker that answers is not well: <${Name} text=${health.error.message} /></p>`}
    ${!health.error && health.data && html`<p class="notice good">The broker that answers is well: it has stored a message and received it again.</p>`}
    <${Panel} id="foreign" title="The cluster behind this proxy"
      note=${data?.load ? `Of the broker that answers, as of ${format.clock(data.load.lastUpdate)}; rates are of its last minute.` : ""}>
      <${Waiting} ...${seen} />
      ${data && html`<${Tiles} items=${tiles(data)} />
        ${!data.load && html`<p class="quiet">This broker gives you no load report, so its rates are not shown. A standalone one has none.</p>`}
        <${Table} label="Brokers of the cluster" rows=${data.brokers ?? []} rowKey=${(one) => one} empty="The brokers of the cluster are not told." columns=${[
          { head: "Broker", cell: (one) => html`<${Name} text=${one} />` },
          { head: "Leader", cell: (one) => (leads(one, data.leader) ? "yes" : "") },
        ]} />`}
      <p class="quiet">Its REST API does not tell how long publishes take, the backlog of all topics, whose memory is used, and what waits in brokers.
        The page of a <${Link} to="/topics">topic<//> shows backlogs, and why they wait as far as its statistics say it.</p>
    <//>`;
}

const leads = (broker, leader) => leader !== null && (broker === leader || leader.endsWith(`//${broker}`));

function tiles({ load, version, clusters }) {
  const of = ({ limit }, show) => (limit > 0 ? `of ${show(limit)}` : "");
  const mib = (value) => format.bytes(value * 1024 * 1024);
  return [
    ...(load ? [
      ["Published / s", format.compact(load.msgRateIn), `${format.bytes(load.msgThroughputIn)} / s`],
      ["Delivered / s", format.compact(load.msgRateOut), `${format.bytes(load.msgThroughputOut)} / s`],
      ["Topics", format.count(load.numTopics), format.many(load.numBundles, "bundle")],
      ["Clients", format.count(load.numProducers + load.numConsumers),
        `${format.many(load.numProducers, "producer")}, ${format.many(load.numConsumers, "consumer")}`],
      ["Processor", `${format.rate(load.cpu.usage)} %`, of(load.cpu, (limit) => `${format.rate(limit)} %`)],
      ["Memory", mib(load.memory.usage), of(load.memory, mib)],
      ["Direct memory", mib(load.directMemory.usage), of(load.directMemory, mib)],
    ] : []),
    ["Version", version ?? load?.brokerVersionString ?? "not told"],
    ...(clusters ? [["Clusters", clusters.join(", ")]] : []),
  ];
}

/** The resource groups of the cluster, as they are configured there. */
export function ForeignGroups() {
  const seen = usePolled(async (signal) => {
    const names = (await answered("/admin/v2/resourcegroups", signal)) ?? [];
    const listed = names.slice(0, GROUPS_MAX);
    const rows = await Promise.all(listed.map(async (name) => ({
      name, ...(await answered(`/admin/v2/resourcegroups/${encodeURIComponent(name)}`, signal)),
    })));
    return { rows, more: names.length - rows.length };
  }, [], 30_000);
  const limit = (value, show) => (value > 0 ? `${show(value)} / s` : "none");
  return html`<${Panel} id="groups" title="Resource groups of the cluster" note="As configured. What is used of them, brokers of Apache Pulsar tell in metrics only.">
    <${Waiting} ...${seen} />
    ${seen.data && html`<${Table} label="Resource groups of the cluster" rows=${seen.data.rows} rowKey=${(row) => row.name} empty="There is none, or you may not see them." columns=${[
      { head: "Group", cell: (row) => html`<${Name} text=${row.name} />` },
      { head: "Publish", number: true, cell: (row) => limit(row.publishRateInMsgs, format.rate) },
      { head: "Publish bytes", number: true, cell: (row) => limit(row.publishRateInBytes, format.bytes) },
      { head: "Dispatch", number: true, cell: (row) => limit(row.dispatchRateInMsgs, format.rate) },
      { head: "Dispatch bytes", number: true, cell: (row) => limit(row.dispatchRateInBytes, format.bytes) },
    ]} />${seen.data.more > 0 && html`<p class="quiet">${`${format.count(seen.data.more)} more are not shown.`}</p>`}`}
  <//>`;
}

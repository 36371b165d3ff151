// SPDX-License-Identifier: Apache-2.0
// All topics, searched, sorted and paged by the broker; or, of other brokers, a namespace's.

import { html, useState } from "../vendor/htm-preact.js";
import { ask, askIfAllowed, forEach, path, topicOf } from "../api.js";
import * as format from "../format.js";
import { Link, Name, Panel, Table, Waiting, usePolled, where } from "../parts.js";

const ROWS = 50;
const SORTS = [
  ["in", "most published"],
  ["out", "most delivered"],
  ["backlog", "largest backlog"],
  ["producers", "most producers"],
  ["consumers", "most consumers"],
  ["name", "name"],
];
// As in `topic_table.PAGED_MAX`.
const PAGED_MAX = 2_000;

export function Topics({ values, who }) {
  return who.foreign ? html`<${OfNamespace} values=${values} />` : html`<${Paged} values=${values} who=${who} />`;
}

function go(values) {
  location.hash = where("/topics", values);
}

function Paged({ values, who }) {
  const sort = SORTS.some(([name]) => name === values.sort) ? values.sort : "in";
  const page = Math.max(0, Number.parseInt(values.page ?? "0", 10) || 0);
  const within = values.within ?? (who.superuser ? "" : (who.tenants[0] ?? ""));
  const search = values.search ?? "";
  const [tenant, namespace] = within.split("/");
  const at = within === "" ? "/admin/v3/topics" : namespace ? path`/admin/v3/topics/${tenant}/${namespace}` : path`/admin/v3/topics/${tenant}`;
  const query = new URLSearchParams({ sort, search, offset: page * ROWS, limit: ROWS });
  const seen = usePolled((signal) => ask(`${at}?${query}`, { signal }), [at, `${query}`], 3_000);
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    go({ search: form.get("search").trim(), within: form.get("within").trim(), sort: form.get("sort") });
  };
  const pages = Math.ceil(Math.min(seen.data?.total ?? 0, PAGED_MAX) / ROWS);
  return html`<h1>Topics</h1>
    <form class="line" role="search" onSubmit=${submit} key=${`${search} ${within} ${sort}`}>
      <label>Search<input name="search" type="search" maxlength="256" defaultValue=${search} placeholder="words of the name" /></label>
      <label>Tenant or tenant/namespace<input name="within" defaultValue=${within} list="tenants" placeholder=${who.superuser ? "all" : ""} /></label>
      <datalist id="tenants">${who.tenants.map((one) => html`<option key=${one} value=${one}></option>`)}</datalist>
      <label>First<select name="sort" onChange=${(event) => event.target.form.requestSubmit()}>
        ${SORTS.map(([name, label]) => html`<option key=${name} value=${name} selected=${name === sort}>${label}</option>`)}</select></label>
      <button type="submit">Show</button>
    </form>
    <${Waiting} ...${seen} />
    ${seen.data && html`
      <p>${`${format.many(seen.data.total, "topic")}, `}${format.rate(seen.data.sums.msgRateIn)} messages / s in,${" "}
        ${format.rate(seen.data.sums.msgRateOut)} out, ${format.count(seen.data.sums.msgBacklog)} entries of backlog.
        <span class="quiet"> As of ${format.clock(seen.data.takenAtMs)}.</span>
        ${seen.data.unanswered.length > 0 && html` <span class="state warn">${`without broker ${seen.data.unanswered.join(", ")}`}</span>`}</p>
      <${Rows} rows=${seen.data.topics} />
      ${pages > 1 && html`<nav class="pager" aria-label="Pages of topics">
        ${page > 0 && html`<${Link} to=${where("/topics", { search, within, sort, page: page - 1 || "" })}>Previous<//>`}
        <span>${`Page ${page + 1} of ${pages}`}</span>
        ${page + 1 < pages && html`<${Link} to=${where("/topics", { search, within, sort, page: page + 1 })}>Next<//>`}
        ${seen.data.total > PAGED_MAX && html`<span class="quiet">${`The first ${format.count(PAGED_MAX)} are paged; search for others.`}</span>`}
      </nav>`}`}`;
}

export function TopicLink({ name }) {
  const topic = topicOf(name);
  if (topic === null) return html`<${Name} text=${name} />`;
  return html`<${Link} to=${where("/topic", { name })}><${Name} text=${topic.local} /><//>
    <span class="quiet block">${topic.domain === "persistent" ? "" : `${topic.domain} · `}${topic.tenant}/${topic.namespace}</span>`;
}

function Rows({ rows }) {
  return html`<${Table} label="Topics" rows=${rows} rowKey=${(row) => row.name} empty="No topic is found." columns=${[
    { head: "Topic", cell: (row) => html`<${TopicLink} name=${row.name} />` },
    { head: "In / s", number: true, cell: (row) => (row.loaded ? format.rate(row.msgRateIn) : "not loaded") },
    { head: "Bytes in / s", number: true, cell: (row) => (row.loaded ? format.bytes(row.msgThroughputIn) : "") },
    { head: "Out / s", number: true, cell: (row) => (row.loaded ? format.rate(row.msgRateOut) : "") },
    { head: "Backlog", number: true, cell: (row) => (row.loaded ? format.count(row.msgBacklog) : "") },
    { head: "Producers", number: true, cell: (row) => format.count(row.publishers) },
    { head: "Consumers", number: true, cell: (row) => format.count(row.consumers) },
    { head: "Subscriptions", number: true, cell: (row) => (row.loaded ? format.count(row.subscriptions) : "") },
  ]} />`;
}

/** Of brokers that have no pages of topics: the names of a namespace, and statistics of those that are shown. */
function OfNamespace({ values }) {
  const within = values.within ?? "public/default";
  const search = values.search ?? "";
  const page = Math.max(0, Number.parseInt(values.page ?? "0", 10) || 0);
  const [tenant, namespace = ""] = within.split("/");
  const [names, setNames] = useState([]);
  const seen = usePolled(
    async (signal) => {
      if (namespace === "") return { namespaces: (await ask(path`/admin/v2/namespaces/${tenant}`, { signal })) ?? [] };
      const found = await ask(path`/admin/v2/persistent/${tenant}/${namespace}`, { signal });
      const words = search.toLowerCase().split(/\s+/).filter(Boolean);
      const listed = found.filter((name) => words.every((word) => name.toLowerCase().includes(word))).sort();
      setNames(listed);
      const rows = await forEach(listed.slice(page * ROWS, (page + 1) * ROWS), async (name) => {
        const stats = await askIfAllowed(`${topicOf(name).at}/stats`, { signal });
        return { name, loaded: stats !== null, ...counted(stats) };
      });
      return { rows };
    }, [within, search, page], 10_000);
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    go({ search: form.get("search").trim(), within: form.get("within").trim() });
  };
  const pages = Math.ceil(names.length / ROWS);
  return html`<h1>Topics</h1>
    <form class="line" role="search" onSubmit=${submit} key=${`${search} ${within}`}>
      <label>Tenant/namespace<input name="within" required defaultValue=${within} /></label>
      <label>Search<input name="search" type="search" maxlength="256" defaultValue=${search} placeholder="words of the name" /></label>
      <button type="submit">Show</button>
    </form>
    <${Waiting} ...${seen} />
    ${seen.data?.namespaces && html`<${Panel} title="Namespaces"><ul>${seen.data.namespaces.map((one) => html`<li key=${one}>
      <${Link} to=${where("/topics", { within: one })}>${one}<//></li>`)}</ul><//>`}
    ${seen.data?.rows && html`<p>${`${format.many(names.length, "topic")}.`}</p><${Rows} rows=${seen.data.rows} />
      ${pages > 1 && html`<nav class="pager" aria-label="Pages of topics">
        ${page > 0 && html`<${Link} to=${where("/topics", { search, within, page: page - 1 || "" })}>Previous<//>`}
        <span>${`Page ${page + 1} of ${pages}`}</span>
        ${page + 1 < pages && html`<${Link} to=${where("/topics", { search, within, page: page + 1 })}>Next<//>`}</nav>`}`}`;
}

/** The columns of a topic, from its statistics. */
function counted(stats) {
  const subscriptions = Object.values(stats?.subscriptions ?? {});
  return {
    msgRateIn: stats?.msgRateIn ?? 0,
    msgThroughputIn: stats?.msgThroughputIn ?? 0,
    msgRateOut: stats?.msgRateOut ?? 0,
    msgBacklog: subscriptions.reduce((sum, one) => sum + one.msgBacklog, 0),
    publishers: stats?.publishers?.length ?? 0,
    consumers: subscriptions.reduce((sum, one) => sum + (one.consumers?.length ?? 0), 0),
    subscriptions: subscriptions.length,
  };
}

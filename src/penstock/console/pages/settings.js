// SPDX-License-Identifier: Apache-2.0
// Every setting with its value, where the value comes from, and whether it can be changed while the broker runs.

import { html, useState } from "../vendor/htm-preact.js";
import { ask, askIfAllowed } from "../api.js";
import * as format from "../format.js";
import { Name, Panel, Table, Waiting, usePolled } from "../parts.js";

/** Of brokers that do not tell sources: values, and which of them were changed at run time. */
async function plain(signal) {
  const values = await ask("/admin/v2/brokers/configuration/runtime", { signal });
  const changed = (await askIfAllowed("/admin/v2/brokers/configuration/values", { signal })) ?? {};
  const dynamic = (await askIfAllowed("/admin/v2/brokers/configuration", { signal })) ?? [];
  return Object.entries(values).sort().map(([key, value]) => ({
    group: "Settings",
    key,
    value: String(value ?? ""),
    source: key in changed ? "admin API" : "the start",
    dynamic: dynamic.includes(key),
  }));
}

export function Settings({ who }) {
  const [search, setSearch] = useState("");
  const [all, setAll] = useState(false);
  const seen = usePolled(
    async (signal) => (who.foreign ? null : await askIfAllowed("/admin/v3/settings", { signal })) ?? plain(signal), [who], 30_000);
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = (seen.data ?? []).filter(
    (row) => (all || words.length > 0 || row.source !== "default") && words.every((word) => `${row.key} ${row.value}`.toLowerCase().includes(word)),
  );
  const groups = [...new Set(rows.map((row) => row.group))];
  return html`<h1>Settings</h1>
    <p class="quiet">Of the broker that answers. Keys and passwords are shown as ***. Change a dynamic one with
      ${" "}<code>penstock brokers set-config KEY VALUE</code>.</p>
    <div class="line"><label>Search<input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} placeholder="name or value" /></label>
      <label class="choice"><input type="checkbox" checked=${all} onChange=${(event) => setAll(event.target.checked)} /> also defaults</label></div>
    <${Waiting} ...${seen} />
    ${seen.data && rows.length === 0 && html`<p class="notice">${all || words.length > 0 ? "No setting is found." : "All settings have their defaults."}</p>`}
    ${groups.map((group, index) => html`<${Panel} key=${group} id=${`group-${index}`} title=${group}>
      <${Table} label=${`Settings: ${group}`} rows=${rows.filter((row) => row.group === group)} rowKey=${(row) => row.key} columns=${[
        { head: "Setting", cell: (row) => html`<${Name} text=${row.key} />` },
        { head: "Value", cell: (row) => html`<${Name} text=${row.value === "" ? "–" : row.value} />` },
        { head: "From", cell: (row) => html`<${Name} text=${row.source} />` },
        { head: "Dynamic", cell: (row) => (row.dynamic ? "yes" : "no") },
      ]} />
    <//>`)}
    ${seen.data && html`<p class="quiet">${format.many(rows.length, "setting")} of ${format.count(seen.data.length)} shown.</p>`}`;
}

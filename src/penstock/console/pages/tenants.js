// SPDX-License-Identifier: Apache-2.0
// Tenants with what they use, and quotas with what is used of them; or one tenant.

import { html } from "../vendor/htm-preact.js";
import { ask, askIfAllowed, forEach, path } from "../api.js";
import * as format from "../format.js";
import { groupKey } from "../history.js";
import { Link, Meter, Name, Panel, Table, Tiles, Waiting, usePolled, where } from "../parts.js";
import { ForeignGroups } from "./foreign.js";

const ROWS = 50;
// Namespaces whose groups are asked for, one by one.
const NAMESPACES_MAX = 100;

export function Tenants({ values, who, seen, history }) {
  if (values.name) return html`<${Tenant} name=${values.name} key=${values.name} />`;
  return html`<h1>Tenants and quotas</h1>
    ${who.superuser && !who.foreign
      ? html`<${Listed} values=${values} />`
      : html`<${Named} who=${who} />`}
    ${who.foreign && html`<${ForeignGroups} />`}
    ${seen.data && html`<${Quotas} seen=${seen.data} history=${history} foreign=${who.foreign} />`}`;
}

function Listed({ values }) {
  const search = values.search ?? "";
  const page = Math.max(0, Number.parseInt(values.page ?? "0", 10) || 0);
  const query = new URLSearchParams({ search, offset: page * ROWS, limit: ROWS });
  const seen = usePolled((signal) => ask(`/admin/v3/tenants?${query}`, { signal }), [`${query}`], 5_000);
  const submit = (event) => {
    event.preventDefault();
    location.hash = where("/tenants", { search: new FormData(event.target).get("search").trim() });
  };
  const pages = Math.ceil((seen.data?.total ?? 0) / ROWS);
  return html`<${Panel} id="tenants" title="Tenants">
    <form class="line" role="search" onSubmit=${submit} key=${search}>
      <label>Search<input name="search" type="search" maxlength="256" defaultValue=${search} placeholder="words of the name" /></label>
      <button type="submit">Show</button>
    </form>
    <${Waiting} ...${seen} />
    ${seen.data && html`<${Table} label="Tenants" rows=${seen.data.tenants} rowKey=${(row) => row.tenant} empty="No tenant is found." columns=${[
      { head: "Tenant", cell: (row) => html`<${Link} to=${where("/tenants", { name: row.tenant })}><${Name} text=${row.tenant} /><//>` },
      { head: "Group", cell: (row) => (row.resourceGroup ? html`<${Name} text=${row.resourceGroup} />` : "–") },
      { head: "Topics", number: true, cell: (row) => format.count(row.topics) },
      { head: "In / s", number: true, cell: (row) => format.rate(row.msgRateIn) },
      { head: "Bytes in / s", number: true, cell: (row) => format.bytes(row.msgThroughputIn) },
      { head: "Out / s", number: true, cell: (row) => format.rate(row.msgRateOut) },
      { head: "Backlog", number: true, cell: (row) => format.count(row.msgBacklog) },
      { head: "Producers", number: true, cell: (row) => format.count(row.publishers) },
      { head: "Consumers", number: true, cell: (row) => format.count(row.consumers) },
      { head: "Administrators", cell: (row) => (row.adminRoles.length > 0 ? html`<${Name} text=${row.adminRoles.join(", ")} />` : "–") },
    ]} />`}
    ${pages > 1 && html`<nav class="pager" aria-label="Pages of tenants">
      ${page > 0 && html`<${Link} to=${where("/tenants", { search, page: page - 1 || "" })}>Previous<//>`}
      <span>${`Page ${page + 1} of ${pages}`}</span>
      ${page + 1 < pages && html`<${Link} to=${where("/tenants", { search, page: page + 1 })}>Next<//>`}</nav>`}
  <//>`;
}

/** Names alone: of an administrator's tenants, or of brokers that tell no more. */
function Named({ who }) {
  const seen = usePolled(
    async (signal) => (who.foreign ? ((await askIfAllowed("/admin/v2/tenants", { signal })) ?? []) : who.tenants), [who], 30_000);
  return html`<${Panel} id="tenants" title="Tenants"><${Waiting} ...${seen} />
    ${seen.data && (seen.data.length > 0
      ? html`<ul>${seen.data.map((name) => html`<li key=${name}><${Link} to=${where("/tenants", { name })}><${Name} text=${name} /><//></li>`)}</ul>`
      : html`<p class="quiet">Your role administers no tenant.</p>`)}
    ${who.more && html`<p class="quiet">There are more.</p>`}
  <//>`;
}

function Tenant({ name }) {
  const seen = usePolled(async (signal) => {
    const [info, group, namespaces, page] = await Promise.all([
      ask(path`/admin/v2/tenants/${name}`, { signal }),
      askIfAllowed(path`/admin/v2/tenants/${name}/resourcegroup`, { signal }),
      ask(path`/admin/v2/namespaces/${name}`, { signal }),
      askIfAllowed(path`/admin/v3/topics/${name}?limit=0`, { signal }),
    ]);
    const rows = await forEach(namespaces.slice(0, NAMESPACES_MAX), async (namespace) => {
      const [tenant, local] = namespace.split("/");
      const of = await askIfAllowed(path`/admin/v3/topics/${tenant}/${local}?limit=0`, { signal });
      const limits = await askIfAllowed(path`/admin/v2/namespaces/${tenant}/${local}/resourcegroup`, { signal });
      return { namespace, group: limits, ...of };
    });
    return { info, group, page, rows, more: namespaces.length - rows.length };
  }, [name], 10_000);
  const { data } = seen;
  return html`<h1><${Name} text=${name} /></h1>
    <p><${Link} to="/tenants">Tenants and quotas<//> · <${Link} to=${where("/topics", { within: name })}>Topics<//>
      · <${Link} to=${where("/why", { of: name })}>Why<//></p>
    <${Waiting} ...${seen} />
    ${data && html`
      <${Panel} id="use" title="Use"><${Tiles} items=${[
        ...(data.page ? [
          ["Published / s", format.compact(data.page.sums.msgRateIn), `${format.bytes(data.page.sums.msgThroughputIn)} / s`],
          ["Delivered / s", format.compact(data.page.sums.msgRateOut), `${format.bytes(data.page.sums.msgThroughputOut)} / s`],
          ["Backlog", format.compact(data.page.sums.msgBacklog)],
          ["Topics", format.count(data.page.total)],
        ] : []),
        ["Resource group", data.group ?? "none"],
      ]} />
        <p class="quiet">Administrators: <${Name} text=${(data.info.adminRoles ?? []).join(", ") || "superusers only"} />.
          Clusters: <${Name} text=${(data.info.allowedClusters ?? []).join(", ") || "none"} />.</p><//>
      <${Panel} id="namespaces" title="Namespaces">
        <${Table} label="Namespaces" rows=${data.rows} rowKey=${(row) => row.namespace} empty="It has no namespace." columns=${[
          { head: "Namespace", cell: (row) => html`<${Link} to=${where("/topics", { within: row.namespace })}><${Name} text=${row.namespace} /><//>` },
          { head: "Group", cell: (row) => (row.group ? html`<${Name} text=${row.group} />` : "–") },
          { head: "Topics", number: true, cell: (row) => (row.sums ? format.count(row.total) : "–") },
          { head: "In / s", number: true, cell: (row) => (row.sums ? format.rate(row.sums.msgRateIn) : "–") },
          { head: "Out / s", number: true, cell: (row) => (row.sums ? format.rate(row.sums.msgRateOut) : "–") },
          { head: "Backlog", number: true, cell: (row) => (row.sums ? format.count(row.sums.msgBacklog) : "–") },
          { head: "Look", cell: (row) => html`<${Link} to=${where("/why", { of: row.namespace })} aria-label=${`Why: ${row.namespace}`}>Why<//>` },
        ]} />
        ${data.more > 0 && html`<p class="quiet">${`${format.count(data.more)} more are not shown.`}</p>`}
      <//>`}`;
}

/** The quotas of resource groups: what is allowed, what is used of it, and how it is shared. */
function Quotas({ seen, history, foreign }) {
  const members = seen.brokers.length > 0 ? seen.brokers : seen.proxy ? [seen.proxy] : [];
  const rows = new Map();
  for (const member of members) {
    for (const one of member.groups) {
      const row = rows.get(groupKey(one)) ?? { ...one, waiting: 0, heldBytes: 0, limitedMs: 0, shares: [] };
      rows.set(groupKey(one), {
        ...row,
        waiting: row.waiting + one.waiting,
        heldBytes: row.heldBytes + one.heldBytes,
        limitedMs: row.limitedMs + one.limitedMs,
        shares: [...row.shares, { of: member.name, messages: one.shareInMsgs, bytes: one.shareInBytes }],
      });
    }
  }
  const list = [...rows.values()].sort((one, other) => one.group.localeCompare(other.group, "en") || (one.traffic < other.traffic ? 1 : -1));
  const limit = (value, show) => (value < 0 ? "none" : `${show(value)} / s`);
  const used = (row, index, quota, show) => {
    const rate = history.groupRates.get(groupKey(row))?.[index];
    return html`${rate === undefined ? "–" : `${show(rate)} / s`} ${quota > 0 && rate !== undefined
      && html`<${Meter} used=${rate} limit=${quota} label=${`${row.traffic} of ${row.group}`} />`}`;
  };
  const more = members.reduce((sum, one) => sum + Math.max(0, one.groupsCount - one.groups.length / 2), 0);
  return html`<${Panel} id="quotas" title=${foreign ? "Quotas that this proxy keeps" : "Quotas of resource groups"}
      note=${`In force for all ${foreign ? "proxies" : "brokers"} together. A share is the part that one of them may use now.`}>
    <${Table} label="Quotas of resource groups" rows=${list} rowKey=${groupKey} empty="No tenant or namespace with topics in use is attached to a group." columns=${[
      { head: "Group", cell: (row) => html`<${Name} text=${row.group} />` },
      { head: "Traffic", cell: (row) => row.traffic },
      { head: "Messages", number: true, cell: (row) => limit(row.quotaInMsgs, format.rate) },
      { head: "Used", cell: (row) => used(row, 0, row.quotaInMsgs, format.rate) },
      { head: "Bytes", number: true, cell: (row) => limit(row.quotaInBytes, format.bytes) },
      { head: "Used bytes", cell: (row) => used(row, 1, row.quotaInBytes, format.bytes) },
      { head: "Shares of messages", cell: (row) => row.shares.map((one) => (one.messages < 0 ? "none" : format.rate(one.messages))).join(" + ") },
      { head: "Wait for it", number: true, cell: (row) => format.count(row.waiting) },
      { head: "Held", number: true, cell: (row) => format.bytes(row.heldBytes) },
      { head: "Limited for", number: true, cell: (row) => format.duration(row.limitedMs) },
    ]} />
    ${more > 0 && html`<p class="quiet">${`${format.count(more)} more groups are not shown.`}</p>`}
  <//>`;
}

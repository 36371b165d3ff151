// SPDX-License-Identifier: Apache-2.0
// Why something is slow: of a tenant, a namespace or a topic, along the way of a message.

import { html, useRef } from "../vendor/htm-preact.js";
import { SERVER, ask, askIfAllowed, path, topicOf } from "../api.js";
import { Chain, Summary } from "../findings.js";
import { Name, Waiting, usePolled, where } from "../parts.js";
import { merged, told } from "../told.js";
import { statsOf } from "./topic.js";

/** The topic that was typed, with or without its domain; null if it is none. */
function topicIn(of) {
  return topicOf(of) ?? (of.split("/").length > 2 ? topicOf(`persistent://${of}`) : null);
}

/** The route that explains what was typed: nothing, a tenant, a namespace, or the name of a topic. */
export function explained(of) {
  if (of === "") return "/admin/v3/why";
  const topic = topicIn(of);
  if (topic !== null) return topic.why;
  const parts = of.split("/");
  return parts.length === 1 ? path`/admin/v3/why/tenants/${parts[0]}` : path`/admin/v3/why/namespaces/${parts[0]}/${parts[1]}`;
}

/** What a proxy holds of a topic, and what the statistics of its broker tell; `before` keeps these for the next look. */
async function bothOf(topic, before, signal) {
  const [own, { stats }] = await Promise.all([askIfAllowed(topic.why, { signal }), statsOf(topic, signal)]);
  const theirs = told(topic.name, stats, before.current?.name === topic.name ? before.current.stats : undefined);
  before.current = { name: topic.name, stats };
  return merged(own, theirs);
}

export function Why({ values, who }) {
  const of = values.of ?? (who.superuser ? "" : (who.tenants[0] ?? ""));
  const at = explained(of);
  const topic = SERVER === "proxy" ? topicIn(of) : null;
  const before = useRef(null);
  const seen = usePolled((signal) => (topic ? bothOf(topic, before, signal) : ask(at, { signal })), [at], 3_000);
  const submit = (event) => {
    event.preventDefault();
    location.hash = where("/why", { of: new FormData(event.target).get("of").trim() });
  };
  return html`<h1>Why</h1>
    <p class="quiet">What makes messages wait, on their way from a producer to a client.${
      SERVER === "proxy" ? " This proxy explains what it holds itself; of a topic also what the statistics of its broker tell." : ""
    }</p>
    <form class="line" role="search" onSubmit=${submit} key=${of}>
      <label class="wide">Tenant, tenant/namespace, or topic<input name="of" defaultValue=${of} list="tenants" placeholder="everything" /></label>
      <datalist id="tenants">${who.tenants.map((one) => html`<option key=${one} value=${one}></option>`)}</datalist>
      <button type="submit">Explain</button>
    </form>
    <${Waiting} ...${seen} />
    ${seen.data && html`<h2><${Name} text=${seen.data.of} /></h2><${Summary} explanation=${seen.data} /><${Chain} explanation=${seen.data} />`}`;
}

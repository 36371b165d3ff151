// SPDX-License-Identifier: Apache-2.0
// Why something is slow: of a tenant, a namespace or a topic, along the way of a message.

import { html } from "../vendor/htm-preact.js";
import { SERVER, ask, path, topicOf } from "../api.js";
import { Chain, Summary } from "../findings.js";
import { Name, Waiting, usePolled, where } from "../parts.js";

/** The route that explains what was typed: nothing, a tenant, a namespace, or the name of a topic. */
export function explained(of) {
  if (of === "") return "/admin/v3/why";
  const topic = topicOf(of);
  if (topic !== null) return topic.why;
  const parts = of.split("/");
  if (parts.length === 1) return path`/admin/v3/why/tenants/${parts[0]}`;
  if (parts.length === 2) return path`/admin/v3/why/namespaces/${parts[0]}/${parts[1]}`;
  const [tenant, namespace, ...local] = parts;
  return path`/admin/v3/why/persistent/${tenant}/${namespace}/${local.join("/")}`;
}

export function Why({ values, who }) {
  const of = values.of ?? (who.superuser ? "" : (who.tenants[0] ?? ""));
  const at = explained(of);
  const seen = usePolled((signal) => ask(at, { signal }), [at], 3_000);
  const submit = (event) => {
    event.preventDefault();
    location.hash = where("/why", { of: new FormData(event.target).get("of").trim() });
  };
  return html`<h1>Why</h1>
    <p class="quiet">What makes messages wait, on their way from a producer to a client.${
      SERVER === "proxy" ? " This proxy explains what it holds itself." : ""
    }</p>
    <form class="line" role="search" onSubmit=${submit} key=${of}>
      <label class="wide">Tenant, tenant/namespace, or topic<input name="of" defaultValue=${of} list="tenants" placeholder="everything" /></label>
      <datalist id="tenants">${who.tenants.map((one) => html`<option key=${one} value=${one}></option>`)}</datalist>
      <button type="submit">Explain</button>
    </form>
    <${Waiting} ...${seen} />
    ${seen.data && html`<h2><${Name} text=${seen.data.of} /></h2><${Summary} explanation=${seen.data} /><${Chain} explanation=${seen.data} />`}`;
}

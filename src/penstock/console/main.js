// SPDX-License-Identifier: Apache-2.0
// The console: who is signed in, which page is shown, and the overview that every page has in its head.

import { html, render, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { SERVER, VERSION, ask, askIfAllowed, listenForRefusals, signOut, signedIn } from "./api.js";
import { History } from "./history.js";
import { Messages } from "./pages/messages.js";
import { Overview } from "./pages/overview.js";
import { Settings } from "./pages/settings.js";
import { SignIn } from "./pages/sign_in.js";
import { Tenants } from "./pages/tenants.js";
import { TopicPage } from "./pages/topic.js";
import { Topics } from "./pages/topics.js";
import { Why } from "./pages/why.js";
import { Link, State, usePolled } from "./parts.js";

const PAGES = [
  ["/overview", "Overview", Overview],
  ["/topics", "Topics", Topics],
  ["/topic", null, TopicPage],
  ["/messages", null, Messages],
  ["/tenants", "Tenants and quotas", Tenants],
  ["/why", "Why", Why],
  ["/settings", "Settings", Settings],
];

// Consoles of other clusters: name and URL.
const CONSOLES = JSON.parse(document.documentElement.dataset.consoles);
// Pages that every cluster has; others name a topic or a tenant of this one.
const COMMON = new Set(["/overview", "/topics", "/tenants", "/why", "/settings"]);

/** Links to the consoles of other clusters. Each is a page of its own, with its own credentials. */
function Clusters({ page, own }) {
  if (CONSOLES.length === 0) return null;
  return html`<details class="clusters"><summary>${own ? `Cluster ${own}` : "Clusters"}</summary><ul>
    ${CONSOLES.map(([name, url]) => html`<li key=${name}><a rel="noopener noreferrer" href=${`${url}/#${COMMON.has(page) ? page : "/overview"}`}>
      <bdi>${name}</bdi></a></li>`)}</ul></details>`;
}

/** The page that the address names, and its values. */
function route() {
  const [page, query = ""] = location.hash.slice(1).split("?");
  return { page: page || "/overview", values: Object.fromEntries(new URLSearchParams(query)) };
}

function useRoute() {
  const [now, setNow] = useState(route);
  useEffect(() => {
    const changed = () => setNow(route());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return now;
}

/** Who asks. A broker that does not know this route (Apache Pulsar) answers each question by itself. */
async function asker(signal) {
  const who = await askIfAllowed("/admin/v3/who", { signal });
  return who ?? { role: null, superuser: true, tenants: [], more: false, foreign: true };
}

/** What the head and the overview show: of the proxy, if this is one, and of the brokers. */
async function look(who, history, signal) {
  const [proxy, brokers] = await Promise.all([
    SERVER === "proxy" ? askIfAllowed("/proxy-stats/overview", { signal }) : null,
    who.superuser && !who.foreign ? askIfAllowed("/admin/v3/overview", { signal }) : null,
  ]);
  const seen = { proxy, brokers: brokers?.brokers ?? [], unanswered: brokers?.unanswered ?? [] };
  history.add(seen);
  return seen;
}

/** The worst state of all that answer, in a word. */
function health(seen) {
  const states = [...seen.brokers, ...(seen.proxy ? [seen.proxy] : [])].map((one) => one.status);
  if (states.length === 0) return null;
  return states.includes("failing") ? "failing" : states.includes("degraded") ? "degraded" : "ok";
}

function Shell({ who, onSignOut }) {
  const { page, values } = useRoute();
  const history = useMemo(() => new History(), []);
  const seen = usePolled((signal) => look(who, history, signal), [who], 2_000);
  const main = useRef(null);
  const first = useRef(true);
  const [, title, Page] = PAGES.find(([path]) => path === page) ?? PAGES[0];
  useEffect(() => {
    document.title = `${title ?? values.name ?? ""} · penstock`;
    scrollTo(0, 0);
    if (!first.current) main.current.focus({ preventScroll: true });
    first.current = false;
  }, [page]);
  const state = seen.data && health(seen.data);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>To the content</a>
    <header class="head">
      <p class="brand"><b>penstock</b> ${SERVER === "proxy" ? "proxy" : ""}
        ${seen.error ? html`<${State} state="failing" />` : state && html`<${State} state=${state} />`}</p>
      <nav aria-label="Pages"><ul>${PAGES.filter(([, name]) => name).map(([path, name]) => html`<li key=${path}>
        <${Link} to=${path} aria-current=${path === page || ((page === "/topic" || page === "/messages") && path === "/topics") ? "page" : undefined}>${name}<//></li>`)}
      </ul></nav>
      <${Clusters} page=${page} own=${seen.data && (seen.data.brokers[0] ?? seen.data.proxy)?.cluster} />
      ${signedIn() && html`<p class="who"><bdi>${who.role ?? "signed in"}</bdi>
        <button type="button" class="plain" onClick=${onSignOut}>Sign out</button></p>`}
    </header>
    <main id="main" ref=${main} tabindex="-1"><${Page} ...${{ values, who, seen, history }} key=${page} /></main>
    <footer><p class="quiet">penstock ${VERSION} · <a href="metrics">metrics</a> · <a href="healthz">health</a></p></footer>`;
}

function App() {
  const [who, setWho] = useState(undefined);
  const [error, setError] = useState(null);
  const [refused, setRefused] = useState(false);
  const enter = async () => {
    try {
      setError(null);
      setWho(await asker());
      setRefused(false);
    } catch (caught) {
      if (caught.status !== 401) setError(caught);
      throw caught;
    }
  };
  const leave = () => {
    signOut();
    setWho(undefined);
    setRefused(true);
  };
  useEffect(() => {
    listenForRefusals(leave);
    enter().catch(() => {});
  }, []);
  if (refused) return html`<${SignIn} onEnter=${enter} />`;
  if (error) {
    return html`<main class="alone"><h1>penstock</h1><p class="notice bad" role="alert">${error.message}</p>
      <button type="button" onClick=${() => enter().catch(() => {})}>Ask again</button></main>`;
  }
  if (who === undefined) return html`<main class="alone"><p class="quiet" role="status">Asking …</p></main>`;
  return html`<${Shell} who=${who} onSignOut=${leave} />`;
}

render(html`<${App} />`, document.getElementById("app"));

// SPDX-License-Identifier: Apache-2.0
// Requests to the admin port that has served this page, with the credentials that the user has typed.
//
// The credentials are kept for this tab only (sessionStorage) and sent in a header. A cookie would be sent to every port
// of this host, also to programs that are not penstock, and by pages of other sites; see docs/adr/0121.

export const SERVER = document.documentElement.dataset.server; // "broker" or "proxy"
export const VERSION = document.documentElement.dataset.version;

const KEY = "penstock.authorization";
// The most of a message that is shown. The rest is not read from the socket.
export const SHOWN_BYTES_MAX = 64 * 1024;
// A broker that does not answer for so long is not waited for.
const TIMEOUT_MS = 30_000;

let onRefused = () => {};

/** Call `listener` whenever the credentials are missing or wrong. */
export function listenForRefusals(listener) {
  onRefused = listener;
}

export function signedIn() {
  return sessionStorage.getItem(KEY) !== null;
}

/** Use these credentials from now on: the value of an Authorization header. */
export function signIn(authorization) {
  sessionStorage.setItem(KEY, authorization);
}

export function signOut() {
  sessionStorage.removeItem(KEY);
}

/** The value of the header for a user and a password. */
export function basic(user, password) {
  const bytes = new TextEncoder().encode(`${user}:${password}`);
  return `Basic ${btoa(String.fromCharCode(...bytes))}`;
}

/** An answer that is an error: its `status` (0: none came), and the reason that the broker has given. */
export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

async function send(path, { method = "GET", body, signal } = {}) {
  const headers = { accept: "application/json" };
  const authorization = sessionStorage.getItem(KEY);
  if (authorization !== null) headers.authorization = authorization;
  if (body !== undefined) headers["content-type"] = "application/json";
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  let response;
  try {
    response = await fetch(new URL(path.replace(/^\//, ""), document.baseURI), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
      cache: "no-store",
      credentials: "same-origin", // the certificate of a browser that has one
      redirect: "error",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, `the ${SERVER} does not answer`);
  }
  if (response.ok) return response;
  if (response.status === 401) onRefused();
  throw new Refused(response.status, await reasonOf(response));
}

async function reasonOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).reason ?? text;
  } catch {
    // Apache Pulsar answers with a page for browsers where it has no such route.
    return text === "" || text.trimStart().startsWith("<") ? `status ${response.status}` : text.slice(0, 500);
  }
}

/** Ask, and return the JSON or the text of the answer; null if it has no body. Throws Refused. */
export async function ask(path, options) {
  const response = await send(path, options);
  const text = await response.text();
  if (text === "") return null;
  if (!(response.headers.get("content-type") ?? "").includes("json")) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text; // Apache Pulsar calls some texts JSON that are not, such as its version.
  }
}

/** As `ask`, but null for what does not exist there (404), or is not for this caller (403). */
export async function askIfAllowed(path, options) {
  try {
    return await ask(path, options);
  } catch (error) {
    if (error instanceof Refused && (error.status === 403 || error.status === 404 || error.status === 405)) return null;
    throw error;
  }
}

/** A message: what its headers say, and the first bytes of its payload. */
export async function askMessage(path, options) {
  const response = await send(path, options);
  const reader = response.body.getReader();
  const pieces = [];
  let size = 0;
  while (size < SHOWN_BYTES_MAX) {
    const { done, value } = await reader.read();
    if (done) break;
    pieces.push(value);
    size += value.length;
  }
  reader.cancel().catch(() => {});
  const bytes = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  const length = Number(response.headers.get("content-length") ?? size);
  return { headers: [...response.headers], bytes: bytes.subarray(0, SHOWN_BYTES_MAX), length: Math.max(length, size) };
}

/** A path whose values are encoded: path`/admin/v2/tenants/${tenant}`. */
export function path(texts, ...values) {
  return String.raw({ raw: texts }, ...values.map(encodeURIComponent));
}

/** The parts of the name of a topic, and its path; null if it is no name. */
export function topicOf(name) {
  const match = /^(persistent|non-persistent):\/\/([^/]+)\/([^/]+)\/(.+)$/.exec(name);
  if (match === null) return null;
  const [, domain, tenant, namespace, local] = match;
  return {
    name,
    domain,
    tenant,
    namespace,
    local,
    at: path`/admin/v2/${domain}/${tenant}/${namespace}/${local}`,
    why: path`/admin/v3/why/${domain}/${tenant}/${namespace}/${local}`,
  };
}

/** The path of a subscription. Its name is encoded twice, as brokers decode it. */
export function subscriptionAt(topic, name) {
  return `${topic.at}/subscription/${encodeURIComponent(encodeURIComponent(name))}`;
}

/** Run `work` for each of `items`, `atOnce` at a time; the results are in the order of the items. */
export async function forEach(items, work, atOnce = 6) {
  const results = new Array(items.length);
  let next = 0;
  const worker = async () => {
    while (next < items.length) {
      const index = next++;
      results[index] = await work(items[index]);
    }
  };
  await Promise.all(Array.from({ length: Math.min(atOnce, items.length) }, worker));
  return results;
}

// SPDX-License-Identifier: Apache-2.0
// What may be done to a subscription: look at its messages, skip some, clear it, reset it to a time. Each says first what
// it will do, in numbers of this moment, and does nothing until it is confirmed.

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { ask, askMessage, forEach, subscriptionAt, topicOf } from "../api.js";
import * as format from "../format.js";
import { Dialog, Name, Table } from "../parts.js";

/** Run one request at a time; its error is shown in the dialog. */
function useRequest() {
  const [state, setState] = useState({ busy: false, error: null });
  const run = async (work) => {
    setState({ busy: true, error: null });
    try {
      await work();
      setState({ busy: false, error: null });
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return { ...state, run };
}

const entries = (number) => format.many(number, "entry", "entries");

export function Confirmed({ title, children, ready = true, danger, verb, onClose, onConfirm }) {
  const { busy, error, run } = useRequest();
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form onSubmit=${(event) => { event.preventDefault(); run(onConfirm); }}>
      ${children}
      ${error && html`<p class="notice bad" role="alert">${error.message}</p>`}
      <p><button type="submit" class=${danger && "danger"} disabled=${busy || !ready}>${busy ? "Asking …" : verb}</button></p>
    </form>
  <//>`;
}

export function SkipDialog({ topic, stats, subscription, onClose, onDone }) {
  const backlog = stats.subscriptions[subscription]?.msgBacklog ?? 0;
  const [text, setText] = useState("1");
  const number = Number(text);
  const valid = Number.isInteger(number) && number > 0;
  const skipped = Math.min(number, backlog);
  return html`<${Confirmed} title="Skip entries" verb="Skip" danger ready=${valid} onClose=${onClose} onConfirm=${async () => {
    await ask(`${subscriptionAt(topic, subscription)}/skip/${number}`, { method: "POST" });
    onDone(`Skipped ${entries(number)} of subscription ${subscription}.`);
  }}>
    <label>Entries to skip<input inputmode="numeric" required value=${text} onInput=${(event) => setText(event.target.value)} /></label>
    <p>${valid
      ? html`The next ${entries(skipped)} of ${format.count(backlog)} in the backlog of <${Name} text=${subscription} /> will
          not be delivered to it. An entry may be a batch of many messages.`
      : "How many entries shall be skipped?"}</p>
  <//>`;
}

export function ClearDialog({ topic, stats, subscription, onClose, onDone }) {
  const one = stats.subscriptions[subscription];
  return html`<${Confirmed} title="Clear the backlog" verb="Clear" danger onClose=${onClose} onConfirm=${async () => {
    await ask(`${subscriptionAt(topic, subscription)}/skip_all`, { method: "POST" });
    onDone(`The backlog of subscription ${subscription} is cleared.`);
  }}>
    <p>All ${entries(one?.msgBacklog ?? 0)} in the backlog of <${Name} text=${subscription} /> ${" "}
      ${one?.backlogSize > 0 ? `(${format.bytes(one.backlogSize)}) ` : ""}will not be delivered to it: it continues with
      messages that are published from now on. Other subscriptions keep theirs.</p>
  <//>`;
}

/** `datetime-local` of a moment, in the time zone of the browser. */
function local(ms) {
  return format.moment(ms).replace(" ", "T");
}

/** What a reset to this time reads: of each partition, the position, and how much there is behind it. */
async function readAgain(topic, partitions, ms, signal) {
  const names = partitions > 0 ? Array.from({ length: partitions }, (_none, index) => `${topic.name}-partition-${index}`) : [topic.name];
  const found = await forEach(names, async (name) => {
    const { at } = topicOf(name);
    try {
      const position = await ask(`${at}/messageid/${ms}`, { signal });
      const size = await ask(`${at}/backlogSize`, { method: "PUT", body: position, signal });
      const last = await ask(`${at}/lastMessageId`, { signal });
      const number = last.ledgerId === position.ledgerId ? Math.max(0, last.entryId - position.entryId + 1) : null;
      return { name, position, size, number };
    } catch (error) {
      if (error.status === 404) return { name, position: null, size: 0, number: 0 }; // a partition that was never used
      throw error;
    }
  });
  return {
    first: found.length === 1 ? found[0].position : null,
    size: found.reduce((sum, one) => sum + one.size, 0),
    number: found.some((one) => one.number === null) ? null : found.reduce((sum, one) => sum + one.number, 0),
  };
}

export function ResetDialog({ topic, partitions, stats, subscription, onClose, onDone }) {
  const one = stats.subscriptions[subscription];
  const [text, setText] = useState(local(Date.now() - 3_600_000));
  const [found, setFound] = useState({});
  const ms = new Date(text).getTime();
  const valid = Number.isFinite(ms) && ms >= 0;
  useEffect(() => {
    if (!valid) return undefined;
    const ended = new AbortController();
    setFound({});
    const timer = setTimeout(() => {
      readAgain(topic, partitions, ms, ended.signal).then(
        (reading) => ended.signal.aborted || setFound({ reading }),
        (error) => ended.signal.aborted || setFound({ error }),
      );
    }, 300);
    return () => {
      clearTimeout(timer);
      ended.abort();
    };
  }, [text]);
  const { reading, error } = found;
  return html`<${Confirmed} title="Reset to a time" verb="Reset" danger ready=${valid && reading !== undefined} onClose=${onClose} onConfirm=${async () => {
    await ask(`${subscriptionAt(topic, subscription)}/resetcursor/${ms}`, { method: "POST" });
    onDone(`Subscription ${subscription} is reset to ${format.moment(ms)}.`);
  }}>
    <label>Time, as of this browser's clock<input type="datetime-local" step="1" required value=${text}
      onInput=${(event) => setText(event.target.value)} /></label>
    <p>It continues with the first message that was published at this time or later. Messages since then are delivered
      again, also those that were acknowledged; older ones are not.</p>
    ${error && html`<p class="notice bad" role="alert">${error.message}</p>`}
    ${valid && !reading && !error && html`<p class="quiet" role="status">Looking for that message …</p>`}
    ${reading && html`<p class="notice" role="status">
      ${reading.first && html`It begins with message ${reading.first.ledgerId}:${reading.first.entryId}. `}
      <b>${reading.number === null ? "Everything behind it" : entries(reading.number)}${reading.size > 0 ? `, ${format.bytes(reading.size)},` : ""}</b>
      ${" "}will be delivered to <${Name} text=${subscription} />. Its backlog is ${entries(one?.msgBacklog ?? 0)} now.
      ${(one?.consumers?.length ?? 0) > 0 && ` ${format.many(one.consumers.length, "consumer")} will be disconnected, and connect again.`}</p>`}
  <//>`;
}

const HEX_BYTES_MAX = 4 * 1024;

/** Bytes as text, if they are UTF-8; else null. The last character may have been cut. */
function textOf(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: true });
  } catch {
    return null;
  }
}

function hexOf(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_BYTES_MAX); at += 16) {
    const row = [...bytes.subarray(at, Math.min(at + 16, HEX_BYTES_MAX))];
    const hex = row.map((one) => one.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  if (bytes.length > HEX_BYTES_MAX) lines.push("…");
  return lines.join("\n");
}

const HEADER = /^x-pulsar-(.+)$/i;
const PROPERTY = /^property($|-)/i;

/** What a message says of itself, and its properties, from the headers of the answer. */
function described(headers) {
  const facts = [];
  let properties = {};
  for (const [name, value] of headers) {
    const fact = HEADER.exec(name)?.[1];
    if (fact === undefined) continue;
    if (fact.toLowerCase() === "property") properties = JSON.parse(value);
    else if (!PROPERTY.test(fact)) facts.push([fact, value]);
  }
  return { facts, properties: Object.entries(properties) };
}

/** Messages of a subscription's backlog, or of the whole topic; nothing is acknowledged by looking. */
export function PeekDialog({ topic, partitions, subscription, onClose }) {
  const [partition, setPartition] = useState(0);
  const [from, setFrom] = useState("latest");
  const [nth, setNth] = useState(1);
  const [kind, setKind] = useState("text");
  const [state, setState] = useState({});
  const at = partitions > 0 ? topicOf(`${topic.name}-partition-${partition}`) : topic;
  const url = subscription === null
    ? `${at.at}/examinemessage?initialPosition=${from}&messagePosition=${nth}`
    : `${subscriptionAt(at, subscription)}/position/${nth}`;
  useEffect(() => {
    const ended = new AbortController();
    setState({});
    askMessage(url, { signal: ended.signal }).then(
      (message) => ended.signal.aborted || setState({ message }),
      (error) => ended.signal.aborted || setState({ error }),
    );
    return () => ended.abort();
  }, [url]);
  const title = subscription === null ? "Messages of the topic" : "Messages of the backlog";
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <div class="line">
      ${subscription !== null && html`<p>Not acknowledged by <${Name} text=${subscription} />, the next one first.</p>`}
      ${partitions > 0 && html`<label>Partition<select onChange=${(event) => { setPartition(Number(event.target.value)); setNth(1); }}>
        ${Array.from({ length: partitions }, (_none, index) => html`<option key=${index} value=${index}>${index}</option>`)}</select></label>`}
      ${subscription === null && html`<label>Counted from<select onChange=${(event) => { setFrom(event.target.value); setNth(1); }}>
        <option value="latest">the last</option><option value="earliest">the first</option></select></label>`}
      <button type="button" disabled=${nth <= 1} onClick=${() => setNth(nth - 1)}>Previous</button>
      <b role="status">${`Number ${nth}`}</b>
      <button type="button" disabled=${state.error?.status === 404} onClick=${() => setNth(nth + 1)}>Next</button>
    </div>
    ${state.error && html`<p class="notice" role="alert">${state.error.message}</p>`}
    ${!state.error && !state.message && html`<p class="quiet" role="status">Asking …</p>`}
    ${state.message && html`<${Message} ...${state.message} kind=${kind} onKind=${setKind} />`}
  <//>`;
}

function Message({ headers, bytes, length, kind, onKind }) {
  const { facts, properties } = described(headers);
  const text = textOf(bytes);
  const shown = kind === "text" && text !== null ? format.visibleLines(text) : hexOf(bytes);
  return html`
    <fieldset class="line"><legend>${`Payload, ${format.bytes(length)}${bytes.length < length ? `; the first ${format.bytes(bytes.length)}` : ""}`}</legend>
      ${[["text", "Text"], ["hex", "Bytes"]].map(([value, label]) => html`<label class="choice" key=${value}>
        <input type="radio" name="kind" value=${value} checked=${kind === value} onChange=${() => onKind(value)} /> ${label}</label>`)}
      ${kind === "text" && text === null && html`<span class="quiet">It is no text.</span>`}
    </fieldset>
    <pre class="payload" tabindex="0"><bdi>${shown}</bdi></pre>
    ${properties.length > 0 && html`<h3>Properties</h3><${Table} label="Properties" rows=${properties} rowKey=${([name]) => name} columns=${[
      { head: "Name", cell: ([name]) => html`<${Name} text=${name} />` },
      { head: "Value", cell: ([, value]) => html`<${Name} text=${value.length > 2_000 ? `${value.slice(0, 2_000)} …` : value} />` },
    ]} />`}
    <h3>Metadata</h3><${Table} label="Metadata" rows=${facts} columns=${[
      { head: "Name", cell: ([name]) => name },
      { head: "Value", cell: ([, value]) => html`<${Name} text=${value} />` },
    ]} />`;
}

// SPDX-License-Identifier: Apache-2.0
// Messages of a topic: pages of them, a live tail, an export, and what may be sent. The broker decodes, masks and chooses
// them; here is text. A tail asks for the page behind the last one, so it costs nothing while nobody sees this page.

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { ask, path, topicOf } from "../api.js";
import * as format from "../format.js";
import { Dialog, Link, Name, Panel, Table, Waiting, usePolled, where } from "../parts.js";
import { Confirmed } from "./topic_actions.js";

const ROWS = 50;
const TAIL_EVERY_MS = 1_000;
// Messages that a tail shows; older ones leave the page.
const TAIL_ROWS_MAX = 500;
// A tail that is further behind begins anew at the end.
const TAIL_BEHIND_MAX = 1_000;
// Bytes of a value in the list, and in the dialog of one message.
const SHOWN_BYTES = 300;
const SHOWN_BYTES_MAX = 64 * 1024;
// An export ends here: it is kept in the memory of the browser until it is saved.
const EXPORT_BYTES_MAX = 64 * 1024 * 1024;

const BEGINNINGS = [["latest", "the end"], ["earliest", "the beginning"], ["time", "a time"], ["position", "a position"]];

function messagesAt(topic) {
  return path`/admin/v3/messages/${topic.domain}/${topic.tenant}/${topic.namespace}/${topic.local}`;
}

/** Why something is refused, in words for whoever sees the topic. */
function reason(error, needed) {
  return error?.status === 403 ? `You may see this topic, but not ${needed}. (${error.message})` : error?.message;
}

const MAY_READ = "its messages: that needs the permission to consume from it";
const MAY_SEND = "send to it: that needs the permission to produce to it";

export function Messages({ values, who }) {
  const topic = topicOf(values.name ?? "");
  if (topic === null) return html`<h1>Messages</h1><p class="notice bad" role="alert">${values.name ?? ""} is not the name of a topic.</p>`;
  return html`<${OfTopic} topic=${topic} values=${values} who=${who} key=${JSON.stringify(values)} />`;
}

function filters(values) {
  return Object.fromEntries(["key", "property", "text"].filter((name) => values[name]).map((name) => [name, values[name]]));
}

/** The query of the first page that these values name. */
function beginning(values) {
  if (values.from === "time") return { since: new Date(values.at).getTime() };
  if (values.from === "position") return { from: values.at, back: values.back ?? 0 };
  const latest = (values.from ?? "latest") === "latest";
  return latest ? { from: "latest", back: ROWS } : { from: "earliest" };
}

function OfTopic({ topic, values }) {
  const [dialog, setDialog] = useState(null);
  const [done, setDone] = useState(null);
  const [tailing, setTailing] = useState(false);
  const seen = usePolled(async (signal) => {
    const partitions = (await ask(`${topic.at}/partitions`, { signal })).partitions;
    if (partitions > 0) return { partitions };
    const query = new URLSearchParams({ ...beginning(values), ...filters(values), limit: ROWS, shown: SHOWN_BYTES, decoded: true });
    return { partitions, page: await ask(`${messagesAt(topic)}?${query}`, { signal }) };
  }, [topic.name], 3_600_000);
  const finish = (sentence) => {
    setDialog(null);
    setDone(sentence);
    seen.again();
  };
  const open = (kind, row) => {
    setDone(null);
    setDialog({ kind, row });
  };
  const { partitions, page } = seen.data ?? {};
  const first = page?.messages[0]?.id;
  const Shown = { one: OneDialog, send: SendDialog, redrive: RedriveDialog, export: ExportDialog }[dialog?.kind];
  const to = (more) => where("/messages", { name: topic.name, ...filters(values), from: "position", ...more });
  return html`<h1>Messages of <${Name} text=${topic.local} /></h1>
    <p class="quiet"><${Link} to=${where("/topic", { name: topic.name })}><${Name} text=${topic.name} /><//></p>
    ${seen.error ? html`<p class="notice bad" role="alert">${reason(seen.error, MAY_READ)}</p>` : html`<${Waiting} ...${seen} />`}
    <p class="done" role="status">${done}</p>
    ${partitions > 0 && html`<${Panel} id="partitions" title="Partitions"><ul class="line">${Array.from({ length: partitions }, (_none, index) => html`<li key=${index}>
      <${Link} to=${where("/messages", { ...values, name: `${topic.name}-partition-${index}` })}>Messages of partition ${index}<//></li>`)}</ul><//>`}
    ${!partitions && html`<${Question} values=${values} topic=${topic} />`}
    <p class="line">
      ${page && html`<button type="button" aria-pressed=${tailing} onClick=${() => setTailing(!tailing)}>${tailing ? "Stop the live tail" : "Live tail"}</button>
        <button type="button" onClick=${() => open("export")}>Export</button>
        <button type="button" onClick=${() => open("redrive")}>Redrive</button>`}
      <button type="button" onClick=${() => open("send")}>Send a message</button></p>
    ${tailing && html`<${Tail} topic=${topic} values=${values} onOpen=${(row) => open("one", row)} />`}
    ${page && !tailing && html`
      <p>${`${format.many(page.messages.length, "message")} of ${format.count(page.lookedAt)} looked at; `}
        ${page.atEnd ? "nothing is behind them." : `${format.many(page.behind, "entry", "entries")} behind them.`}
        ${page.unreadable > 0 && html` <span class="state warn">${`${format.many(page.unreadable, "entry", "entries")} cannot be read`}</span>`}</p>
      <${Rows} rows=${page.messages} onOpen=${(row) => open("one", row)} />
      <nav class="pager" aria-label="Pages of messages">
        ${first && html`<${Link} to=${to({ at: first, back: ROWS })}>Older<//>`}
        ${!page.atEnd && html`<${Link} to=${to({ at: page.next })}>${page.messages.length < ROWS ? "Look further" : "Newer"}<//>`}
      </nav>`}
    ${Shown && html`<${Shown} topic=${topic} values=${values} row=${dialog.row} onClose=${() => setDialog(null)} onDone=${finish} />`}`;
}

function Question({ values, topic }) {
  const [from, setFrom] = useState(values.from ?? "latest");
  const submit = (event) => {
    event.preventDefault();
    const given = Object.fromEntries([...new FormData(event.target)].map(([name, value]) => [name, value.trim()]));
    location.hash = where("/messages", { name: topic.name, ...given });
  };
  return html`<form class="line" role="search" onSubmit=${submit}>
    <label>From<select name="from" value=${from} onChange=${(event) => setFrom(event.target.value)}>
      ${BEGINNINGS.map(([value, label]) => html`<option key=${value} value=${value} selected=${value === from}>${label}</option>`)}</select></label>
    ${from === "time" && html`<label>Time<input name="at" type="datetime-local" step="1" required
      defaultValue=${values.from === "time" ? values.at : format.moment(Date.now() - 3_600_000).replace(" ", "T")} /></label>`}
    ${from === "position" && html`<label>Position<input name="at" required pattern="\\d+:\\d+(:\\d+)?" placeholder="LEDGER:ENTRY"
      defaultValue=${values.from === "position" ? values.at : ""} /></label>`}
    <label>Key<input name="key" maxlength="256" defaultValue=${values.key ?? ""} placeholder="* and ? stand for others" /></label>
    <label>Property<input name="property" maxlength="256" defaultValue=${values.property ?? ""} placeholder="NAME=VALUE" /></label>
    <label>Text<input name="text" type="search" maxlength="256" defaultValue=${values.text ?? ""} placeholder="of the value" /></label>
    <button type="submit">Show</button>
  </form>`;
}

/** A few words of a value, in one line. */
function brief(row) {
  if (row.encrypted) return html`<span class="quiet">encrypted</span>`;
  if (row.valueBase64 !== undefined) return html`<span class="quiet">no text</span> <code>${row.valueBase64.slice(0, 40)}</code>`;
  if (row.value === null) return html`<span class="quiet">none: it deletes its key</span>`;
  return html`<bdi class="brief">${format.visible(row.value.slice(0, SHOWN_BYTES))}</bdi>${row.cut ? " …" : ""}`;
}

function Rows({ rows, onOpen }) {
  return html`<${Table} label="Messages" rows=${rows} rowKey=${(row) => row.id} empty="No message is found here." columns=${[
    { head: "Position", cell: (row) => html`<button type="button" class="plain" aria-label=${`Message ${row.id}`} onClick=${() => onOpen(row)}>${row.id}</button>` },
    { head: "Published", cell: (row) => format.moment(row.publishTime) },
    { head: "Key", cell: (row) => html`<${Name} text=${(row.key ?? row.keyBase64 ?? "–").slice(0, 80)} />` },
    { head: "Properties", number: true, cell: (row) => format.count(Object.keys(row.properties ?? {}).length) },
    { head: "Value", cell: brief },
    { head: "Size", number: true, cell: (row) => format.bytes(row.size) },
  ]} />`;
}

/** What is published from now on, the newest first. One request at a time; none while nobody sees it. */
function Tail({ topic, values, onOpen }) {
  const [state, setState] = useState({ rows: [], skipped: 0, looked: 0 });
  const from = useRef("latest");
  const { error } = usePolled(async (signal) => {
    const query = new URLSearchParams({ from: from.current, ...filters(values), limit: 200, shown: SHOWN_BYTES, decoded: true });
    const page = await ask(`${messagesAt(topic)}?${query}`, { signal });
    const far = page.behind > TAIL_BEHIND_MAX;
    from.current = far ? "latest" : page.next;
    setState((before) => ({
      rows: [...page.messages.reverse(), ...before.rows].slice(0, TAIL_ROWS_MAX),
      skipped: before.skipped + (far ? page.behind : 0),
      looked: before.looked + page.lookedAt,
    }));
  }, [topic.name], TAIL_EVERY_MS);
  return html`<${Panel} id="tail" title="Live tail" note=${`${format.many(state.looked, "message")} looked at since it began`}>
    ${error && html`<p class="notice bad" role="alert">${reason(error, MAY_READ)}</p>`}
    ${state.skipped > 0 && html`<p class="notice" role="status">${`${format.many(state.skipped, "entry", "entries")} came faster than this page reads, and are not shown.`}</p>`}
    <${Rows} rows=${state.rows} onOpen=${onOpen} /><//>`;
}

/** One message, as far as the page shows values at all. */
function OneDialog({ topic, row, onClose }) {
  const [state, setState] = useState({});
  useEffect(() => {
    const ended = new AbortController();
    const query = new URLSearchParams({ from: row.id, limit: 1, shown: SHOWN_BYTES_MAX, decoded: true });
    ask(`${messagesAt(topic)}?${query}`, { signal: ended.signal }).then(
      (page) => ended.signal.aborted || setState({ one: page.messages[0] }),
      (error) => ended.signal.aborted || setState({ error }),
    );
    return () => ended.abort();
  }, [row.id]);
  const { one, error } = state;
  const facts = one && [
    ["Published", format.moment(one.publishTime)], ["Event time", one.eventTime && format.moment(one.eventTime)],
    ["Deliver at", one.deliverAt && format.moment(one.deliverAt)], ["Key", one.key ?? (one.keyBase64 && `${one.keyBase64} (base64)`)],
    ["Producer", one.producer],
    ["Schema", one.schemaType && `${one.schemaType}, version ${one.schemaVersion}${one.undecoded ? `; not decoded: ${one.undecoded}` : ""}`],
  ].filter(([, value]) => value);
  return html`<${Dialog} title=${`Message ${row.id}`} onClose=${onClose}>
    ${error && html`<p class="notice bad" role="alert">${reason(error, MAY_READ)}</p>`}
    ${!one && !error && html`<p class="quiet" role="status">Asking …</p>`}
    ${one && html`
      <h3>${`Value, ${format.bytes(one.size)}${one.cut ? `; the first ${format.bytes(SHOWN_BYTES_MAX)}` : ""}${one.encrypted ? "; encrypted" : ""}${one.chunk ? "; a chunk of a larger message" : ""}${one.valueBase64 !== undefined ? "; no text, shown in base64" : ""}`}</h3>
      <pre class="payload" tabindex="0"><bdi>${one.value === null ? "none: it deletes its key" : format.visibleLines(one.cut ? (one.value ?? one.valueBase64) : format.indented(one.value ?? one.valueBase64))}</bdi></pre>
      ${one.properties && html`<h3>${`Properties${one.propertiesBytes ? `, the first of ${format.bytes(one.propertiesBytes)}` : ""}`}</h3>
        <${Table} label="Properties" rows=${Object.entries(one.properties)} rowKey=${([name]) => name} columns=${[
          { head: "Name", cell: ([name]) => html`<${Name} text=${name} />` },
          { head: "Value", cell: ([, value]) => html`<${Name} text=${value.length > 2_000 ? `${value.slice(0, 2_000)} …` : value} />` },
        ]} />`}
      <h3>Metadata</h3><${Table} label="Metadata" rows=${facts} rowKey=${([name]) => name} columns=${[
        { head: "Name", cell: ([name]) => name },
        { head: "Value", cell: ([, value]) => html`<${Name} text=${String(value)} />` },
      ]} />`}
  <//>`;
}

/** Lines of NAME=VALUE as properties. Throws Error. */
function propertiesOf(text) {
  return Object.fromEntries(text.split("\n").filter((line) => line.trim() !== "").map((line) => {
    const [name, ...value] = line.split("=");
    if (value.length === 0 || name.trim() === "") throw new Error(`Property ${line} has no name or no value: want NAME=VALUE`);
    return [name.trim(), value.join("=")];
  }));
}

function SendDialog({ topic, onClose, onDone }) {
  const [as, setAs] = useState("value");
  const form = useRef(null);
  const send = async () => {
    const given = Object.fromEntries(new FormData(form.current.closest("form")));
    const body = { [as]: given.payload, properties: propertiesOf(given.properties) };
    if (given.key !== "") body.key = given.key;
    if (given.eventTime !== "") body.eventTime = new Date(given.eventTime).getTime();
    if (given.deliverAt !== "") body.deliverAt = new Date(given.deliverAt).getTime();
    try {
      const sent = await ask(messagesAt(topic), { method: "POST", body });
      onDone(`Message ${sent.id} is stored in ${sent.topic}.`);
    } catch (error) {
      throw new Error(reason(error, MAY_SEND));
    }
  };
  return html`<${Confirmed} title="Send a message" verb="Send" onClose=${onClose} onConfirm=${send}>
    <p ref=${form}>To <${Name} text=${topic.name} />. It is stored for all subscriptions, and cannot be taken back.</p>
    <fieldset class="line"><legend>Payload is</legend>
      ${[["value", "text"], ["valueBase64", "base64"]].map(([value, label]) => html`<label class="choice" key=${value}>
        <input type="radio" name="as" value=${value} checked=${as === value} onChange=${() => setAs(value)} /> ${label}</label>`)}</fieldset>
    <label>Payload<textarea name="payload" rows="6" spellcheck="false"></textarea></label>
    <label>Key (may be empty)<input name="key" autocomplete="off" /></label>
    <label>Properties, one NAME=VALUE a line<textarea name="properties" rows="3" spellcheck="false"></textarea></label>
    <label>Event time (may be empty)<input name="eventTime" type="datetime-local" step="1" /></label>
    <label>Do not deliver before (may be empty)<input name="deliverAt" type="datetime-local" step="1" /></label>
  <//>`;
}

function RedriveDialog({ topic, onClose, onDone }) {
  const [into, setInto] = useState("");
  const run = async () => {
    const query = into.trim() === "" ? "" : `?${new URLSearchParams({ into: into.trim() })}`;
    const sent = {};
    for (let left = 1; left > 0; ) {
      const done = await ask(`${messagesAt(topic)}/redrive${query}`, { method: "POST" });
      Object.entries(done.sent).forEach(([name, number]) => (sent[name] = (sent[name] ?? 0) + number));
      if (done.stopped !== null) throw new Error(`${told(sent)} Then it stopped: ${done.stopped}`);
      left = done.left;
    }
    onDone(told(sent));
  };
  return html`<${Confirmed} title="Redrive dead letters" verb="Redrive" onClose=${onClose} onConfirm=${run}>
    <p>Sends the messages of <${Name} text=${topic.name} /> once more to the topics that they came from, without what clients
      added to dead letters, and acknowledges them in the subscription penstock-redrive. What it has acknowledged before is not sent again.</p>
    <label>Into this topic instead (may be empty)<input value=${into} onInput=${(event) => setInto(event.target.value)} placeholder="persistent://tenant/namespace/topic" /></label>
  <//>`;
}

function told(sent) {
  const lines = Object.entries(sent).map(([name, number]) => `${format.many(number, "message")} sent to ${name}.`);
  return lines.length === 0 ? "There is nothing to send." : lines.join(" ");
}

/** Write what the page asks for, from its beginning to the end of now, into a file of JSON lines. */
function ExportDialog({ topic, values, onClose, onDone }) {
  const [count, setCount] = useState(0);
  const stop = useRef(false);
  useEffect(() => () => (stop.current = true), []);
  const run = async () => {
    const lines = [];
    let [number, size, full] = [0, 0, false];
    let query = beginning(values);
    const end = (await ask(`${messagesAt(topic)}?from=latest`)).next.split(":").map(Number);
    for (let behind = 1; behind > 0 && !stop.current && !full; ) {
      const page = await ask(`${messagesAt(topic)}?${new URLSearchParams({ ...query, ...filters(values), limit: 200 })}`);
      for (const row of page.messages.filter((one) => Number(one.id.split(":")[1]) < end[1])) {
        const line = `${JSON.stringify({ topic: topic.name, ...row })}\n`;
        lines.push(line);
        size += line.length;
        number += 1;
      }
      query = { from: page.next };
      behind = page.atEnd ? 0 : end[1] - Number(page.next.split(":")[1]);
      full = size > EXPORT_BYTES_MAX;
      setCount(number);
    }
    if (stop.current) return;
    const url = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
    Object.assign(document.createElement("a"), { href: url, download: `${topic.local}.jsonl` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    onDone(`${format.many(number, "message")} exported${full ? `; it ends at ${format.bytes(EXPORT_BYTES_MAX)}: \`penstock export\` has no such limit` : ""}.`);
  };
  return html`<${Confirmed} title="Export" verb="Export" onClose=${onClose} onConfirm=${run}>
    <p>Saves the messages that the page asks for, from its beginning to the last one of now, as JSON lines, as \`penstock export\`
      does; \`penstock import\` reads them. At most ${format.bytes(EXPORT_BYTES_MAX)}.</p>
    ${count > 0 && html`<p role="status">${`${format.many(count, "message")} so far …`}</p>`}
  <//>`;
}

// SPDX-License-Identifier: Apache-2.0
// What the pages are made of. Everything that comes from a broker is text here: Preact never reads it as HTML.

import { html, useCallback, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import * as format from "./format.js";

/**
 * Ask again and again while the page is seen. `load` gets a signal that ends with the page.
 * Returns what came last, the last error, and a function that asks at once.
 * At most a fifth of the time goes into asking, however slow the answers are.
 */
export function usePolled(load, inputs, everyMs = 5_000) {
  const [state, setState] = useState({ data: undefined, error: null, of: null });
  const again = useRef(() => {});
  useEffect(() => {
    const ended = new AbortController();
    let timer;
    let busy = false;
    setState({ data: undefined, error: null });
    const next = async () => {
      clearTimeout(timer);
      if (busy || ended.signal.aborted) return;
      if (document.hidden) return; // `visibilitychange` asks again
      busy = true;
      const began = performance.now();
      try {
        const data = await load(ended.signal);
        if (!ended.signal.aborted) setState({ data, error: null });
      } catch (error) {
        if (!ended.signal.aborted) setState((before) => ({ ...before, error }));
      }
      busy = false;
      const took = performance.now() - began;
      if (!ended.signal.aborted) timer = setTimeout(next, Math.max(everyMs, 4 * took));
    };
    const seen = () => !document.hidden && next();
    again.current = next;
    document.addEventListener("visibilitychange", seen);
    next();
    return () => {
      ended.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, inputs);
  return { ...state, again: useCallback(() => again.current(), []) };
}

/** An error, or that an answer is awaited; nothing once there is one. */
export function Waiting({ data, error }) {
  if (error) return html`<p class="notice bad" role="alert">${error.message}</p>`;
  return data === undefined ? html`<p class="quiet" role="status">Asking …</p>` : null;
}

export function Panel({ title, note, children, id }) {
  return html`<section class="panel" aria-labelledby=${id && `${id}-title`}>
    <header><h2 id=${id && `${id}-title`}>${title}</h2>${note && html`<p class="quiet">${note}</p>`}</header>
    ${children}
  </section>`;
}

/** A few figures that are seen first. `items`: [label, value, hint]. */
export function Tiles({ items }) {
  return html`<dl class="tiles">
    ${items.map(([label, value, hint]) => html`<div key=${label}><dt>${label}</dt><dd>${value}</dd>${
      hint && html`<dd class="quiet">${hint}</dd>`
    }</div>`)}
  </dl>`;
}

/**
 * A table that becomes a list of cards on a telephone.
 * `columns`: { head, cell(row), number?: aligned to the right }; `rows` with `key(row)`.
 */
export function Table({ label, columns, rows, rowKey, empty = "Nothing." }) {
  if (rows.length === 0) return html`<p class="quiet">${empty}</p>`;
  return html`<div class="scrolls" tabindex="0" role="group" aria-label=${label}>
    <table>
      <caption class="unseen">${label}</caption>
      <thead><tr>${columns.map((one) => html`<th scope="col" class=${one.number && "number"}>${one.head}</th>`)}</tr></thead>
      <tbody>${rows.map((row, index) => html`<tr key=${rowKey ? rowKey(row) : index}>
        ${columns.map((one) => {
          const content = one.cell(row);
          const kind = `${one.number ? "number" : ""} ${content === "" ? "none" : ""}`.trim();
          return html`<td data-head=${one.head} class=${kind || undefined}><div>${content}</div></td>`;
        })}
      </tr>`)}</tbody>
    </table>
  </div>`;
}

/** How much of a limit is used, as a bar; the figures stand beside it as text. */
export function Meter({ used, limit, label }) {
  const part = limit > 0 ? Math.min(1, used / limit) : 0;
  const level = part > 0.9 ? "bad" : part > 0.7 ? "warn" : "good";
  return html`<span class="meter" role="img" aria-label=${`${label}: ${limit > 0 ? format.percent(part) : "no limit"}`}>
    <span class=${level} style=${{ width: `${100 * part}%` }}></span>
  </span>`;
}

const SCHEME = matchMedia("(prefers-color-scheme: dark)");

/** Lines over time, with their table. `lines`: { label, values, token: a colour of the style sheet }. */
export function Chart({ label, times, lines, show = format.compact }) {
  const box = useRef(null);
  const plot = useRef(null);
  const [scheme, setScheme] = useState(SCHEME.matches);
  const ready = times.length > 1;
  const data = [times.map((ms) => ms / 1_000), ...lines.map((one) => one.values)];
  useEffect(() => {
    const changed = () => setScheme(SCHEME.matches);
    SCHEME.addEventListener("change", changed);
    return () => SCHEME.removeEventListener("change", changed);
  }, []);
  useLayoutEffect(() => {
    if (!ready) return undefined;
    const style = getComputedStyle(box.current);
    const colour = (token) => style.getPropertyValue(token).trim();
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const options = {
      width: box.current.clientWidth || 300,
      height: 180,
      legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      scales: { y: { range: (_plot, _least, most) => [0, most > 0 ? most * 1.1 : 1] } },
      axes: [
        { ...axis, space: 80, values: (_plot, seconds) => seconds.map((one) => format.clock(one * 1_000)) },
        { ...axis, size: 60, values: (_plot, values) => values.map(show) },
      ],
      series: [{}, ...lines.map((one) => ({ label: one.label, stroke: colour(one.token), width: 2, points: { show: false } }))],
    };
    plot.current = new window.uPlot(options, data, box.current);
    const resized = new ResizeObserver(() => {
      plot.current?.setSize({ width: box.current.clientWidth, height: 180 });
    });
    resized.observe(box.current);
    return () => {
      resized.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [scheme, lines.length, ready]);
  useEffect(() => plot.current?.setData(data));
  const last = times.length - 1;
  const shown = times.map((_time, index) => index).slice(-60).reverse();
  return html`<figure class="chart">
    <figcaption>
      <span>${label}</span>
      ${lines.map((one) => html`<span class="key"><i class=${one.token.slice(2)}></i>${one.label}
        ${" "}<b>${last >= 0 ? show(one.values[last]) : "–"}</b></span>`)}
    </figcaption>
    <div ref=${box} aria-hidden="true" class="plot">${!ready && html`<p class="quiet">Collecting …</p>`}</div>
    <details><summary>As a table</summary>
      <${Table} label=${label} rows=${shown} empty="No figures yet." rowKey=${(index) => times[index]} columns=${[
        { head: "Time", cell: (index) => format.clock(times[index]) },
        ...lines.map((one) => ({ head: one.label, number: true, cell: (index) => show(one.values[index]) })),
      ]} />
    </details>
  </figure>`;
}

/** A dialog over the page; Escape and the first button close it. */
export function Dialog({ title, onClose, children }) {
  const dialog = useRef(null);
  useEffect(() => {
    dialog.current.showModal();
  }, []);
  return html`<dialog ref=${dialog} onClose=${onClose} aria-labelledby="dialog-title">
    <header><h2 id="dialog-title">${title}</h2>
      <button type="button" class="plain" onClick=${() => dialog.current.close()}>Close</button></header>
    ${children}
  </dialog>`;
}

const STATES = { ok: "good", ready: "good", degraded: "warn", failing: "bad" };

export function State({ state }) {
  return html`<span class=${`state ${STATES[state] ?? "warn"}`}>${state}</span>`;
}

/** A link to another page of the console. */
export function Link({ to, children, ...rest }) {
  return html`<a href=${`#${to}`} ...${rest}>${children}</a>`;
}

/** The address of a page: where("/topics", { search: "x" }). Values that are empty are left out. */
export function where(page, values = {}) {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== undefined && value !== null));
  const text = query.toString();
  return text ? `${page}?${text}` : page;
}

/** A name that may be long, of any characters, all of which are seen. */
export function Name({ text }) {
  return html`<bdi class="name">${format.visible(text)}</bdi>`;
}

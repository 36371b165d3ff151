// SPDX-License-Identifier: Apache-2.0
// The answers of `/admin/v3/why`, in the order in which a message passes: producer, limits, log, dispatch, permits, client.

import { html } from "./vendor/htm-preact.js";
import * as format from "./format.js";
import { Name, Table } from "./parts.js";

export const STAGES = [
  ["producer", "Producer"],
  ["limit", "Limits"],
  ["log", "Log"],
  ["dispatch", "Dispatch"],
  ["permits", "Permits"],
  ["client", "Client"],
];

const STAGE_OF = {
  "exclusive-access": "producer",
  commands: "producer",
  upstream: "producer",
  stopping: "producer",
  "request-memory": "limit",
  "request-count": "limit",
  "backlog-quota": "limit",
  "publish-rate": "limit",
  "adaptive-publish-rate": "limit",
  "would-refuse-producers": "limit",
  "topic-list-memory": "limit",
  "memory-row": "limit",
  "another-tenant": "limit",
  "log-read-only": "log",
  "catalog-read-only": "log",
  "disk-full": "log",
  storage: "log",
  "no-permits": "permits",
  "queue-full": "permits",
  "unacked-messages": "permits",
  outbound: "client",
};
const DISPATCH = /^(subscription|consumer)\b/;

/** Where a finding belongs. A quota is of publishing or of dispatch: what waits for it tells. */
export function stageOf(finding) {
  return STAGE_OF[finding.reason] ?? (finding.reason === "group-quota" && !DISPATCH.test(finding.what) ? "limit" : "dispatch");
}

const EFFECTS = { slows: ["bad", "slows"], waits: ["good", "waits as asked"], "would-refuse": ["warn", "would refuse"] };
const LEVELS = ["good", "warn", "bad"];
// Numbers of each that waits, and their heads; other numbers are of the limit.
const OF_EACH = {
  held_percent: "Of the time",
  wanted_messages_per_s: "Wanted / s",
  got_messages_per_s: "Got / s",
  waiting_entries: "Entries wait",
  held_messages: "Held",
  held_bytes: "Held bytes",
  unacked: "Unacked",
  unsent_bytes: "Unsent",
  delayed_entries: "Delayed",
};
// What ends a wait may begin with how long it lasts, which differs between those that wait for the same limit.
const WAIT = /^wait \d+ ms for its turn, or /;

const effectOf = (finding) => EFFECTS[finding.effect ?? "slows"] ?? EFFECTS.slows;
const worst = (found) => LEVELS[Math.max(0, ...found.map((one) => LEVELS.indexOf(effectOf(one)[0])))];

/** Findings that name the same limit, together. */
function grouped(findings) {
  const groups = new Map();
  for (const finding of findings) {
    const key = JSON.stringify([finding.reason, finding.limit, finding.effect, finding.liftedBy.replace(WAIT, "")]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(finding);
  }
  return [...groups.values()];
}

/** The numbers that are the same for all of a group. */
function shared(group) {
  return Object.entries(group[0].numbers ?? {}).filter(
    ([name, value]) => !(name in OF_EACH) && group.every((one) => one.numbers?.[name] === value),
  );
}

/** One limit, in the words of `penstock why`, and everything that it holds: since when, what it wanted, what it got. */
function Limit({ group }) {
  const [level, effect] = effectOf(group[0]);
  const common = shared(group);
  const own = Object.keys(OF_EACH).filter((name) => group.some((one) => one.numbers?.[name] !== undefined));
  return html`<article class=${`finding ${level}`}>
    <h4><${Name} text=${group[0].limit} /> <span class=${`state ${level}`}>${effect}</span> <span class="quiet">${group[0].reason}</span></h4>
    ${common.length > 0 && html`<dl class="numbers">${common.map(
      ([name, value]) => html`<div key=${name}><dt>${format.words(name)}</dt><dd>${format.figure(name, value)}</dd></div>`,
    )}</dl>`}
    <${Table} label=${`Held by ${group[0].limit}`} rows=${group} columns=${[
      { head: "What", cell: (one) => html`<${Name} text=${one.what} />` },
      { head: "Since", number: true, cell: (one) => (one.forMs === null || one.forMs === undefined ? "–" : format.duration(one.forMs)) },
      ...own.map((name) => ({
        head: OF_EACH[name],
        number: true,
        cell: (one) => (one.numbers?.[name] === undefined ? "–" : format.figure(name, one.numbers[name])),
      })),
    ]} />
    ${group[0].liftedBy && html`<p class="quiet">Lifted when: <${Name} text=${group[0].liftedBy.replace(WAIT, "its turn comes, or ")} />.</p>`}
  </article>`;
}

/** The chain of stages, each with what holds there, and below it the limits, in the order of the stages. */
export function Chain({ explanation }) {
  const of = Object.fromEntries(STAGES.map(([stage]) => [stage, []]));
  for (const finding of explanation.findings) of[stageOf(finding)].push(finding);
  return html`<ol class="chain">
      ${STAGES.map(([stage, title]) => {
        const found = of[stage];
        const level = worst(found);
        return html`<li key=${stage} class=${level}><b>${title}</b>
          <span class=${`state ${level}`}>${found.length === 0 ? "nothing waits" : level === "bad" ? `${found.length} held` : level === "warn" ? "would refuse" : `${found.length} wait`}</span></li>`;
      })}
    </ol>
    ${STAGES.filter(([stage]) => of[stage].length > 0).map(([stage, title]) => html`<section key=${stage} class="stage">
      <h3>${title}</h3>${grouped(of[stage]).map((group) => html`<${Limit} key=${group[0].limit + group[0].reason + group[0].what} group=${group} />`)}
    </section>`)}`;
}

/** What was looked at, and what is missing. */
export function Summary({ explanation }) {
  const { producers, subscriptions, unanswered = [], more, slowed, findings } = explanation;
  const first = slowed ? "Something is slowed." : findings.length > 0 ? "Nothing is slowed now." : "Nothing is slowed, and nothing waits.";
  return html`<p>${first} ${format.many(producers, "producer")} and ${format.many(subscriptions, "subscription")} were looked at.
    ${more && " There are more findings than are shown."}
    ${unanswered.length > 0 && html` <span class="state warn">${`no answer from broker ${unanswered.join(", ")}`}</span>`}</p>`;
}

// SPDX-License-Identifier: Apache-2.0
// What this page has seen since it was opened: rates of the last minutes, made of counters.

// A quarter of an hour at one look every two seconds.
const LOOKS_MAX = 450;
const COUNTERS = ["messagesIn", "bytesIn", "messagesOut", "bytesOut"];

function sums(seen) {
  const of = seen.brokers.length > 0 ? seen.brokers : seen.proxy ? [seen.proxy] : [];
  const total = (name) => of.reduce((sum, one) => sum + (one[name] ?? 0), 0);
  const histogram = [];
  let boundsMs = [];
  for (const one of of) {
    boundsMs = one.publishTimes?.boundsMs ?? boundsMs;
    (one.publishTimes?.counts ?? []).forEach((count, index) => (histogram[index] = (histogram[index] ?? 0) + count));
  }
  return {
    atMs: Math.max(0, ...of.map((one) => one.takenAtMs)),
    members: of.map((one) => one.name).join(),
    counters: Object.fromEntries(COUNTERS.map((name) => [name, total(name)])),
    backlog: total("msgBacklog"),
    groups: groupSums(of),
    histogram,
    boundsMs,
  };
}

/** The key of a group and a kind of traffic. */
export function groupKey({ group, traffic }) {
  return `${traffic} ${group}`;
}

function groupSums(of) {
  const sums = new Map();
  for (const one of of.flatMap((member) => member.groups)) {
    const [messages, bytes] = sums.get(groupKey(one)) ?? [0, 0];
    sums.set(groupKey(one), [messages + one.messages, bytes + one.bytes]);
  }
  return sums;
}

export class History {
  constructor() {
    this.times = [];
    this.lines = Object.fromEntries([...COUNTERS, "backlog"].map((name) => [name, []]));
    this.publishTimes = null; // how long publishes took lately: { boundsMs, counts }
    this.before = null;
    this.window = [];
    this.groupRates = new Map(); // of each group and kind of traffic, in all processes: messages and bytes per second
  }

  /** Add a look. One that is no newer than the last is the same look. */
  add(seen) {
    const now = sums(seen);
    const before = this.before;
    if (before !== null && now.atMs <= before.atMs) return;
    this.before = now;
    if (before === null || before.members !== now.members) return;
    const seconds = (now.atMs - before.atMs) / 1_000;
    this.times.push(now.atMs);
    for (const name of COUNTERS) {
      // A counter becomes smaller when a topic is deleted or a broker starts again.
      this.lines[name].push(Math.max(0, now.counters[name] - before.counters[name]) / seconds);
    }
    this.lines.backlog.push(now.backlog);
    this.groupRates = new Map(
      [...now.groups].map(([key, [messages, bytes]]) => {
        const [messagesBefore, bytesBefore] = before.groups.get(key) ?? [messages, bytes];
        return [key, [Math.max(0, messages - messagesBefore) / seconds, Math.max(0, bytes - bytesBefore) / seconds]];
      }),
    );
    if (this.times.length > LOOKS_MAX) {
      this.times.shift();
      Object.values(this.lines).forEach((line) => line.shift());
    }
    this.window.push(now);
    if (this.window.length > 30) this.window.shift();
    const first = this.window[0];
    const counts = now.histogram.map((count, index) => Math.max(0, count - (first.histogram[index] ?? 0)));
    this.publishTimes = { boundsMs: now.boundsMs, counts };
  }

  /** The latest rate; null before there are two looks. */
  last(name) {
    return this.lines[name].at(-1) ?? null;
  }
}

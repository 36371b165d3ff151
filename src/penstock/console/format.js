// SPDX-License-Identifier: Apache-2.0
// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function count(value) {
  return value === null || value === undefined || Number.isNaN(value) ? "–" : whole.format(value);
}

/** A number and what it counts. */
export function many(value, noun, plural = `${noun}s`) {
  return `${count(value)} ${value === 1 ? noun : plural}`;
}

/** A rate per second, with a digit behind the point where it is small. */
export function rate(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return value >= 100 ? whole.format(value) : tenths.format(value);
}

/** A large number in a few characters: 12.3K. */
export function compact(value) {
  return value === null || value === undefined ? "–" : value < 10_000 ? rate(value) : short.format(value);
}

export function bytes(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? whole.format(value) : tenths.format(value)} ${units[unit]}`;
}

export function percent(part) {
  return `${tenths.format(100 * part)} %`;
}

/** A duration in its two largest units. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1_000) return `${ms < 10 && ms % 1 ? tenths.format(ms) : whole.format(ms)} ms`;
  const s = ms / 1_000;
  if (s < 60) return `${tenths.format(s)} s`;
  if (s < 3_600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86_400) return `${Math.floor(s / 3_600)} h ${Math.floor((s % 3_600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3_600)} h`;
}

/** A moment, in the time zone of the browser. */
export function moment(ms) {
  if (!ms || ms <= 0) return "–";
  const at = new Date(ms);
  const two = (value) => String(value).padStart(2, "0");
  return (
    `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ` +
    `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`
  );
}

export function clock(ms) {
  return moment(ms).slice(11);
}

/** The members of `numbers` of a finding, as text: its names say their units. */
export function figure(name, value) {
  if (/bytes(_max|_per_s|_left)?$/.test(name) || name.endsWith("_bytes_per_s")) return bytes(value);
  if (name.endsWith("_percent")) return `${tenths.format(value)} %`;
  if (name.endsWith("_s") && !name.endsWith("_per_s")) return duration(value * 1_000);
  return tenths.format(value);
}

/** A name with underscores, as words. */
export function words(name) {
  return name
    .replace(/_per_s$/, " per second")
    .replace(/_(s|bytes|percent)$/, "")
    .replaceAll("_", " ");
}

// Characters that show nothing, or turn the text around them.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const code = (character) => `\u27e8${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`;

/** A text in which every character can be seen: those that would deceive are shown as their number. */
export function visible(text) {
  return text.replace(HIDDEN, code);
}

/** The same for texts of several lines. */
export function visibleLines(text) {
  return text.replace(HIDDEN, (character) => ("\n\t\r".includes(character) ? character : code(character)));
}

/** The upper bound of the bucket that a part of all falls into, in ms; null without any. */
export function quantile(boundsMs, counts, part) {
  const total = counts.reduce((sum, one) => sum + one, 0);
  if (total === 0) return null;
  let seen = 0;
  for (let index = 0; index < counts.length; index += 1) {
    seen += counts[index];
    if (seen >= part * total) return boundsMs[index] ?? Infinity;
  }
  return Infinity;
}

// Lists in lists are not indented further: a thousand of them would be mostly blanks.
const INDENTED_MAX = 30;

/** JSON in lines; other texts as they are. Numbers and names stay as they were written: nothing is parsed and written anew. */
export function indented(text) {
  if (!/^\s*[{[]/.test(text)) return text;
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, INDENTED_MAX))}`;
  return text.replace(/"(?:[^"\\]|\\.)*"|[{[]\s*[}\]]|\s+|[{[\]},:]/g, (token) => {
    if (token[0] === '"') return token;
    if (token.trim() === "") return "";
    if (token.length > 1) return token[0] + token.at(-1); // an empty object or list
    if (token === "{" || token === "[") {
      depth += 1;
      return token + line();
    }
    if (token === "}" || token === "]") {
      depth -= 1;
      return line() + token;
    }
    return token === "," ? token + line() : ": ";
  });
}

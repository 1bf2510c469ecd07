// Helpers: elements, number formats, colours by key, and texts with highlighted spans.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

// Text always becomes a text node, so nothing in a document can become markup.
function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value == null) continue;
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== false));
  return node;
}

export const el = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

// Like node.replaceChildren, but without null and false, which that would print.
export function replace(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child != null && child !== false));
}

export function show(node, visible) {
  node.hidden = !visible;
}

export const whole = (value) => Number(value).toLocaleString("en");
export const fixed = (value, digits = 2) => Number(value).toFixed(digits);
export const percent = (share) => (share == null ? "–" : `${(100 * share).toFixed(1)} %`);
export const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

// A text with at most `limit` letters.
export function shorten(text, limit = 60) {
  const letters = Array.from(text.slice(0, 2 * limit + 2));
  return letters.length > limit ? `${letters.slice(0, limit - 1).join("")}…` : text;
}

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) [count, unit] = [count / 1000, unit + 1];
  return `${count < 10 && unit ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

export const milliseconds = (value) => `${value < 10 ? value.toFixed(2) : Math.round(value)} ms`;

// ---- colours: the golden angle separates neighbouring hues for any number of keys

export const label = (match) => match.name ?? `key ${match.key}`;

export function hues(explanation) {
  const order = [...new Set(explanation.matches.map(label))];
  return explanation.matches.map((match) => Math.round(order.indexOf(label(match)) * 137.508) % 360);
}

const clamp = (value) => Math.min(Math.max(value, 0), 1);
export const strength = (value, largest) => 0.15 + (largest > 0 ? 0.85 * clamp(value / largest) : 0);

// The query words of a match as typed; the vocabulary's token where it has no letters in the query.
export function queryWords(explanation, match) {
  const letters = Array.from(explanation.query ?? "");
  const tokens = new Map(explanation.query_tokens.map((token) => [token.position, token]));
  const words = match.query_tokens.map((id) => tokens.get(id)).filter(Boolean).map((token) =>
    token.start == null ? token.token : letters.slice(token.start, token.end).join(""));
  return [...new Set(words.map((word) => word.toLowerCase()))].join(" ");
}

// ---- texts with spans; offsets count code points, while JavaScript's strings count UTF-16 units

export function highlight(text, spans, explanation, largest) {
  const letters = Array.from(text), colours = hues(explanation), parts = [];
  let end = 0;
  for (const span of spans.toSorted((a, b) => a.start - b.start)) {
    if (span.start < end || span.end > letters.length) continue;
    parts.push(letters.slice(end, span.start).join(""));
    const keys = span.matches.map((number) => label(explanation.matches[number])).join(", ");
    parts.push(el("mark", {
      class: span.faint ? "faint" : null,
      "--h": colours[span.matches[0]],
      "--a": (0.75 * strength(span.gain, largest)).toFixed(2),
      title: span.faint ? `${keys}: matched, but a stronger match counted` : `${keys}: ${fixed(span.gain, 3)}`,
    }, letters.slice(span.start, span.end).join("")));
    end = span.end;
  }
  return [...parts, letters.slice(end).join("")];
}

// Words that matched without counting, because a stronger match did.
export function faint(explanation, field) {
  const tokens = new Map(explanation.document_tokens.map((token) => [token.position, token]));
  const counted = new Set(explanation.matches.flatMap((match) => match.postings[0]?.document_tokens ?? []));
  const spans = new Map();
  for (const [number, match] of explanation.matches.entries())
    for (const id of match.postings.slice(1).flatMap((posting) => posting.document_tokens))
      if (!counted.has(id) && tokens.get(id)?.field === field)
        spans.set(id, { ...tokens.get(id), gain: 0, faint: true, matches: [number] });
  return [...spans.values()];
}

export const largestGain = (explanation) =>
  Math.max(0, ...[...explanation.title_spans, ...explanation.text_spans].map((span) => span.gain));

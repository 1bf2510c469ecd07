// Small helpers: elements, numbers for readers, colours by key, and texts with coloured parts.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

// Text always becomes a text node, so nothing in a document can become markup.
function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== false));
  return node;
}

export const el = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

export function show(node, visible) {
  node.hidden = !visible;
}

export const whole = (value) => Number(value).toLocaleString("en");
export const fixed = (value, digits = 2) => Number(value).toFixed(digits);
export const percent = (share) => (share == null ? "–" : `${(100 * share).toFixed(1)} %`);
export const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  while (count >= 1000 && place < units.length - 1) [count, place] = [count / 1000, place + 1];
  return `${count < 10 && place ? count.toFixed(1) : Math.round(count)} ${units[place]}`;
}

export const milliseconds = (value) => `${value < 10 ? value.toFixed(2) : Math.round(value)} ms`;

// ---- colours: the golden angle keeps neighbours apart, however many keys a query has

export const label = (match) => match.name ?? `key ${match.key}`;

export function hues(explanation) {
  const order = [...new Set(explanation.matches.map(label))];
  return explanation.matches.map((match) => Math.round(order.indexOf(label(match)) * 137.508) % 360);
}

export const strength = (value, largest) => (largest > 0 ? 0.15 + 0.85 * Math.min(Math.max(value / largest, 0), 1) : 0.15);

// The query's words behind a match, as they were typed; a vocabulary's piece where a token stands for no letters.
export function askedWords(explanation, match) {
  const letters = Array.from(explanation.query ?? "");
  const known = new Map(explanation.query_tokens.map((token) => [token.place, token]));
  const words = match.query_tokens.map((place) => known.get(place)).map((token) =>
    token.start == null ? token.token : letters.slice(token.start, token.end).join(""));
  return [...new Set(words.map((word) => word.toLowerCase()))].join(" ");
}

// ---- texts with spans; offsets count code points, which JavaScript's strings do not

export function marked(text, spans, explanation, largest) {
  const letters = Array.from(text), colours = hues(explanation), parts = [];
  let end = 0;
  for (const span of spans.toSorted((a, b) => a.start - b.start)) {
    if (span.start < end || span.end > letters.length) continue;
    parts.push(letters.slice(end, span.start).join(""));
    const keys = span.matches.map((place) => label(explanation.matches[place])).join(", ");
    parts.push(el("mark", {
      class: span.faint ? "faint" : null,
      "--h": colours[span.matches[0]],
      "--a": (0.75 * strength(span.gain, largest)).toFixed(2),
      title: span.faint ? `${keys}: met, but a stronger one counted` : `${keys}: ${fixed(span.gain, 3)}`,
    }, letters.slice(span.start, span.end).join("")));
    end = span.end;
  }
  return [...parts, letters.slice(end).join("")];
}

// Words that a query token met without counting, because another gave more.
export function faint(explanation, field) {
  const known = new Map(explanation.document_tokens.map((token) => [token.place, token]));
  const counted = new Set(explanation.matches.flatMap((match) => match.postings[0]?.document_tokens ?? []));
  const found = new Map();
  for (const [place, match] of explanation.matches.entries())
    for (const token of match.postings.slice(1).flatMap((posting) => posting.document_tokens))
      if (!counted.has(token) && known.get(token)?.field === field)
        found.set(token, { ...known.get(token), gain: 0, faint: true, matches: [place] });
  return [...found.values()];
}

export const largestGain = (explanation) =>
  Math.max(0, ...[...explanation.title_spans, ...explanation.text_spans].map((span) => span.gain));

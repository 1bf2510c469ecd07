// The Index view: sizes, list lengths, largest keys, memory, and the latency of the last query.

import { byId, bytes, el, milliseconds, show, svg, whole } from "./dom.js";
import { instructionName, routerName, routerNote } from "./terms.js";
import { keyName } from "./words.js";

export function showStats(state, error) {
  byId("index-problem").textContent = error?.message ?? "";
  show(byId("index-problem"), Boolean(error));
  if (error || !state.stats) return;
  const { index, list_sizes, largest_keys, memory, model, server } = state.stats;
  byId("stats").replaceChildren(...[
    ["documents", whole(index.documents)],
    ["keys in use", whole(index.lists), "words or topics that have a list"],
    ["postings", whole(index.postings), "words filed under keys"],
    ["postings per document", index.documents ? (index.postings / index.documents).toFixed(1) : "–"],
    ["size on disk", bytes(index.bytes)],
    ["matching", routerName(model.router), routerNote(model.router)],
    ...(model.router === "dynamic" ? [["smallest weight kept (τ)", index.tau, "Keys with less weight were left out."]] : []),
    ["vectors stored as", index.codecs?.join(", ") || "–", CODECS[index.codecs?.[0]]],
    ["processor instructions", instructionName(server.instruction_set), "used to compare vectors"],
  ].map(([name, value, note]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, String(value)), note && el("dd", { class: "note-line" }, note))));
  byId("chart-sizes").replaceChildren(sizes(list_sizes));
  byId("chart-keys").replaceChildren(keys(largest_keys.slice(0, 20)));
  byId("chart-memory").replaceChildren(memoryBars(memory, index));
  byId("chart-latency").replaceChildren(latency(state.lastTimings));
}

const CODECS = {
  fp32: "four bytes per number",
  fp16: "two bytes per number",
  int8: "one byte per number",
  pq1: "compressed, one byte per group of numbers",
  pq2: "compressed, two bytes per group of numbers",
  residual4: "the nearest centroid, and four bits per number",
  residual2: "the nearest centroid, and two bits per number",
  residual1: "the nearest centroid, and one bit per number",
};

// ---- charts ----------------------------------------------------------------------------------------------------------

const MAX_LABELS = 8;  // more would overlap on a narrow screen

function sizes(bins) {
  if (!bins.length) return el("p", { class: "dim" }, "This index has no lists.");
  const [width, height, low, left] = [420, 220, 34, 44];
  const largest = Math.max(...bins.map((bin) => bin.lists)), step = (width - left) / bins.length;
  const every = Math.ceil(bins.length / MAX_LABELS);
  const bars = bins.map((bin, number) => {
    const size = ((height - low - 28) * bin.lists) / largest, x = left + number * step;
    const range = bin.from === bin.to ? `${bin.from}` : `${whole(bin.from)}–${whole(bin.to)}`;
    return svg("g", {},
      svg("rect", { x: x + 1, y: height - low - size, width: Math.max(step - 2, 1), height: size, class: "fill" }),
      number % every === 0 && svg("text", { x: x + step / 2, y: height - low + 14, "text-anchor": "middle" }, compact(bin.from)),
      svg("title", {}, `${whole(bin.lists)} keys have ${range} postings, ${whole(bin.postings)} in total`));
  });
  const ticks = [0, 0.5, 1].map((part) => {
    const y = height - low - (height - low - 28) * part;
    return svg("g", {}, svg("line", { x1: left, x2: width, y1: y, y2: y, class: "grid" }),
      svg("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, compact(Math.round(largest * part))));
  });
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": describe(bins) },
    ...ticks, ...bars,
    svg("text", { x: left + (width - left) / 2, y: height - 4, "text-anchor": "middle" }, "postings per list, lower bound of each bar"),
    svg("text", { x: 0, y: 10 }, "keys"));
}

const describe = (bins) => bins.map((bin) => `${bin.lists} keys with ${bin.from} to ${bin.to} postings`).join("; ");
const compact = (value) => Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);

function keys(largest) {
  if (!largest.length) return el("p", { class: "dim" }, "This index has no keys.");
  const { postings: longest } = largest[0];
  return bars(largest.map(({ key, word, postings }) => [keyName(word) ?? `key ${key}`, postings / longest, whole(postings)]));
}

function memoryBars(memory, index) {
  const rows = [["memory of the server", memory.resident_bytes], ["index files", memory.index_bytes],
    ["lists in the index", index.lexical_bytes], ["model file", memory.model_bytes]].filter(([, size]) => size);
  const largest = Math.max(...rows.map(([, size]) => size), 1);
  return bars(rows.map(([name, size]) => [name, size / largest, bytes(size)]));
}

const STAGES = [["queue_ms", "waiting"], ["encode_ms", "encoding the query"], ["scan_ms", "scanning the lists"],
  ["documents_ms", "reading documents"], ["explain_ms", "explaining"]];

function latency(timings) {
  if (!timings) return el("p", { class: "dim" }, "Search for something first.");
  const rest = Math.max(timings.total_ms - STAGES.reduce((sum, [name]) => sum + (timings[name] ?? 0), 0), 0);
  const rows = [...STAGES.map(([name, text]) => [text, timings[name] ?? 0]), ["other", rest]];
  return el("div", {}, bars(rows.map(([text, time]) => [text, time / (timings.total_ms || 1), milliseconds(time)])),
    el("p", { class: "dim small" }, `${milliseconds(timings.total_ms)} in the server in total`));
}

// One line per row: name, bar and value.
function bars(rows) {
  return el("dl", { class: "bars" }, ...rows.flatMap(([name, share, value]) => [
    el("dt", {}, name), el("dd", {}, el("i", { "--w": Math.min(share, 1) }), el("span", {}, value))]));
}

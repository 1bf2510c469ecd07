// The index in numbers: what it holds, how its lists are spread, and where the last query's time went.

import { byId, bytes, el, milliseconds, show, svg, whole } from "./dom.js";

export function showFigures(state, error) {
  byId("index-problem").textContent = error?.message ?? "";
  show(byId("index-problem"), Boolean(error));
  if (error || !state.stats) return;
  const { index, list_sizes, largest_keys, memory, model, server } = state.stats;
  byId("figures").replaceChildren(...[
    ["documents", whole(index.documents)],
    ["keys in use", whole(index.lists)],
    ["postings", whole(index.postings), "entries of words under keys"],
    ["postings a document", index.documents ? (index.postings / index.documents).toFixed(1) : "–"],
    ["on disk", bytes(index.bytes)],
    ["router", model.router, ROUTERS[model.router]],
    ...(model.router === "dynamic" ? [["τ", index.tau, "weaker keys were left out"]] : []),
    ["stored as", index.codecs?.join(", ") || "–"],
    ["runs on", server.instruction_set],
  ].map(([name, value, title]) => el("div", { title }, el("dt", {}, name), el("dd", {}, String(value)))));
  byId("chart-sizes").replaceChildren(sizes(list_sizes));
  byId("chart-keys").replaceChildren(keys(largest_keys.slice(0, 20)));
  byId("chart-memory").replaceChildren(memoryBars(memory, index));
  byId("chart-latency").replaceChildren(latency(state.lastTimings));
}

const ROUTERS = {
  bm25: "words are their own keys, weighted by how rare they are",
  dynamic: "a model chooses a few keys for every word (CITADEL)",
  static: "every word is its own key (COIL)",
  all_to_all: "every word meets every word (ColBERT)",
  sparse: "a text has weighted keys and no vectors (SPLADE)",
  none: "only the overall meaning is compared (DPR)",
};

// ---- charts ----------------------------------------------------------------------------------------------------------

function sizes(bins) {
  if (!bins.length) return el("p", { class: "dim" }, "This index has no lists.");
  const [width, height, low, left] = [420, 220, 34, 44];
  const most = Math.max(...bins.map((bin) => bin.lists)), step = (width - left) / bins.length;
  const bars = bins.map((bin, place) => {
    const size = ((height - low - 28) * bin.lists) / most, x = left + place * step;
    const range = bin.from === bin.to ? `${bin.from}` : `${whole(bin.from)}–${whole(bin.to)}`;
    return svg("g", {},
      svg("rect", { x: x + 1, y: height - low - size, width: Math.max(step - 2, 1), height: size, class: "fill" }),
      svg("text", { x: x + step / 2, y: height - low + 14, "text-anchor": "middle" }, compact(bin.from)),
      svg("title", {}, `${whole(bin.lists)} keys have ${range} postings, ${whole(bin.postings)} together`));
  });
  const ticks = [0, 0.5, 1].map((part) => {
    const y = height - low - (height - low - 28) * part;
    return svg("g", {}, svg("line", { x1: left, x2: width, y1: y, y2: y, class: "grid" }),
      svg("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, compact(Math.round(most * part))));
  });
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": described(bins) },
    ...ticks, ...bars,
    svg("text", { x: left + (width - left) / 2, y: height - 4, "text-anchor": "middle" }, "postings in a list, from …"),
    svg("text", { x: 0, y: 10 }, "keys"));
}

const described = (bins) => bins.map((bin) => `${bin.lists} keys with ${bin.from} to ${bin.to} postings`).join("; ");
const compact = (value) => Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);

function keys(largest) {
  if (!largest.length) return el("p", { class: "dim" }, "This index has no keys.");
  const most = largest[0].postings;
  return bars(largest.map((one) => [one.word ?? `key ${one.key}`, one.postings / most, whole(one.postings)]));
}

function memoryBars(memory, index) {
  const rows = [["process, resident", memory.resident_bytes], ["index files", memory.index_bytes], ["model", memory.model_bytes],
    ["of the index: lists", index.lexical_bytes]].filter(([, size]) => size);
  const most = Math.max(...rows.map(([, size]) => size), 1);
  return bars(rows.map(([name, size]) => [name, size / most, bytes(size)]));
}

const STAGES = [["queue_ms", "waiting"], ["encode_ms", "reading the query"], ["scan_ms", "searching the lists"],
  ["documents_ms", "reading documents"], ["explain_ms", "explaining"]];

function latency(timings) {
  if (!timings) return el("p", { class: "dim" }, "Search for something first.");
  const rest = Math.max(timings.total_ms - STAGES.reduce((sum, [name]) => sum + (timings[name] ?? 0), 0), 0);
  const rows = [...STAGES.map(([name, text]) => [text, timings[name] ?? 0]), ["the rest", rest]];
  return el("div", {}, bars(rows.map(([text, time]) => [text, time / (timings.total_ms || 1), milliseconds(time)])),
    el("p", { class: "dim small" }, `${milliseconds(timings.total_ms)} in the server altogether`));
}

// Name, bar and value, one line each.
function bars(rows) {
  return el("dl", { class: "bars" }, ...rows.flatMap(([name, share, value]) => [
    el("dt", {}, name), el("dd", {}, el("i", { "--w": Math.min(share, 1) }), el("span", {}, value))]));
}

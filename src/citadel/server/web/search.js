// The Search view: hits while you type, then an explanation of each.

import { newest, post } from "./api.js";
import {
  byId, el, faint, fixed, highlight, hues, label, largestGain, milliseconds, plural, queryWords, replace, show,
} from "./dom.js";
import { facts } from "./facts.js";
import { closeWhy, openWhy } from "./why.js";
import { wholeWords } from "./words.js";

const SEARCH_DELAY = 120;   // milliseconds after the last key press
const EXPLAIN_DELAY = 250;  // more, because each explanation runs the model
const CONCURRENT = 2;       // explanations requested at a time
const HITS = 10;
const PREVIEW = 240;        // letters of a text until its snippet is known

const INTRO = {
  dynamic: byId("intro-keys").textContent,
  bm25: "Every word is its own key, reduced to its stem. A word of your query matches the same word in a document. Rare words add more than common ones, and repeated words add more again.",
  static: "Every word is its own key. A word of your query matches the same word in a document, and the closer the two are in meaning, the more it adds to the document’s score.",
  all_to_all: "Every word of your query is matched with the word of a document that is nearest in meaning; the nearer it is, the more it adds to the document’s score.",
  sparse: "Every text is filed under keys: words that say what it is about, each with a weight. A key that your query and a document share adds to the document’s score.",
  none: "Your query and every document are compared by their overall meaning. Single words are not compared, so this index can say how close two texts are, but not which words made it so.",
};

export function startSearch(state) {
  const input = byId("query");
  let timer = 0, shown = null, answer = null;

  const run = newest(async (signal, query) => {
    answer = await post("v1/search", { query, k: HITS }, signal);
    state.lastTimings = answer.timings;
    shown = query;
    renderStatus(state, answer);
    renderHits(query, answer.hits);
    await explainAll(signal, query, answer.hits);
  });

  async function search(query) {
    closeWhy();
    show(byId("problem"), false);
    show(byId("query-cut"), false);
    const empty = !query.trim();
    show(byId("intro"), empty);
    if (empty) return clear();
    try {
      await run(query);
    } catch (error) {
      report(error, () => search(query));
    }
  }

  function clear() {
    run.cancel();
    shown = answer = null;
    byId("hits").replaceChildren();
    byId("legend").replaceChildren();
    byId("status").textContent = "";
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      history.replaceState(null, "", link() || "#");
      search(input.value);
    }, SEARCH_DELAY);
  });
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    history.replaceState(null, "", link() || "#");
    if (input.value !== shown) search(input.value);
    else byId("hits").querySelector("button")?.focus();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") move(event, null, 1);
  });
  byId("hits").addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) move(event, event.target.closest("li"), step);
    if (event.key === "Escape") input.focus();
  });

  const link = () => (input.value.trim() ? `#${new URLSearchParams({ q: input.value })}` : "");

  function runExample(query) {
    input.value = query;
    history.pushState(null, "", link());
    search(query);
    input.focus();
  }

  return {
    link,
    show(query) {
      if (query === input.value && shown === query) return;
      input.value = query;
      search(query);
    },
    // Called whenever the statistics have arrived, which may be after the first answer.
    ready() {
      const { model, example_queries: examples } = state.stats;
      byId("intro-keys").textContent = INTRO[model.router] ?? INTRO.dynamic;
      byId("examples").replaceChildren(...examples.map((query) =>
        el("li", {}, el("button", { type: "button", onclick: () => runExample(query) }, query))));
      show(byId("examples-box"), examples.length > 0);
      if (answer) renderStatus(state, answer);
      if (model.has_text) return;
      input.disabled = true;
      input.placeholder = "Vectors only: search through the API";
    },
  };
}

// Moves the focus between hits; up from the first hit leads to the query.
function move(event, item, step) {
  const items = [...byId("hits").children];
  const next = items[(item ? items.indexOf(item) : -1) + step];
  event.preventDefault();
  (next?.querySelector("button") ?? (step < 0 ? byId("query") : null))?.focus();
}

function renderStatus(state, { hits, timings, query_cut: isCut }) {
  const of = state.stats ? ` of ${plural(state.stats.index.documents, "document")}` : "";
  byId("status").textContent = hits.length
    ? `The best ${hits.length}${of} in ${milliseconds(timings.total_ms)}`
    : "No document matches this query. Try other words.";
  show(byId("query-cut"), isCut);
}

function renderHits(query, hits) {
  const top = hits[0]?.score ?? 0;
  byId("legend").replaceChildren();
  for (const id of ["hits", "legend"]) byId(id).classList.remove("stale");
  byId("hits").replaceChildren(...hits.map((hit) => item(query, hit, top)));
}

function item(query, hit, top) {
  const letters = Array.from(hit.text);
  const preview = letters.slice(0, PREVIEW).join("") + (letters.length > PREVIEW ? " …" : "");
  return el("li", { "data-id": hit.id },
    el("div", { class: "head" },
      el("button", { class: "title", onclick: (event) => openWhy(query, hit, event.currentTarget) }, hit.title || hit.id),
      el("span", { class: "score" }, el("span", {}, "score "), fixed(hit.score))),
    el("div", { class: "bar", "aria-hidden": "true", "--w": top > 0 ? Math.max(hit.score / top, 0) : 0 }),
    el("p", { class: "snippet" }, preview || el("span", { class: "dim" }, "(no text)")),
    facts(hit));
}

async function explainAll(signal, query, hits) {
  await new Promise((resolve) => setTimeout(resolve, EXPLAIN_DELAY));
  const waiting = [...hits];
  const worker = async () => {
    while (waiting.length && !signal.aborted) {
      const hit = waiting.shift();
      const { explanation } = await post("v1/explain", { query, id: hit.id }, signal);
      hit.explanation = wholeWords(explanation);
      renderExplained(hit);
    }
  };
  await Promise.all(Array.from({ length: CONCURRENT }, worker));
  if (!signal.aborted) drawAboveCommon(hits);
}

// Where the overall meaning makes up most of every score, all bars would be grey and equally long. The part that all
// hits share does not change their order: bars show what is above it, and the legend gives its amount.
function drawAboveCommon(hits) {
  const common = Math.min(...hits.map((hit) => hit.explanation?.semantic?.gain ?? 0)), top = hits[0]?.score;
  if (hits.length < 2 || !(common > top / 2)) return;
  for (const hit of hits) {
    hit.common = common;
    const bar = listItem(hit)?.querySelector(".bar");
    bar?.style.setProperty("--w", Math.max((hit.score - common) / (top - common), 0));
    bar?.replaceChildren(...segments(hit.explanation, common));
  }
  const meaning = byId("legend").querySelector(".meaning");
  if (meaning) meaning.textContent = `overall meaning, above the ${fixed(common)} that all these hits share`;
}

const listItem = (hit) => [...byId("hits").children].find((item) => item.dataset.id === hit.id);

function renderExplained(hit) {
  const { explanation } = hit, item = listItem(hit);
  if (!item || explanation.score == null) return;
  const largest = largestGain(explanation), { snippet } = explanation;
  if (hit.title) {
    const spans = [...explanation.title_spans, ...faint(explanation, "title")];
    replace(item.querySelector(".title"), highlight(hit.title, spans, explanation, largest));
  }
  const shift = (span) => ({ ...span, start: span.start - snippet.start, end: span.end - snippet.start });
  const body = highlight(snippet.text, [...snippet.spans, ...faint(explanation, "text").map(shift)], explanation, largest);
  const isCut = explanation.text_cut || snippet.end < Array.from(explanation.text).length;
  const startsLater = explanation.text_start + snippet.start > 0;
  if (explanation.text) replace(item.querySelector(".snippet"), startsLater && "… ", body, isCut && " …");
  replace(item.querySelector(".bar"), segments(explanation));
  if (!byId("legend").children.length) replace(byId("legend"), legend(explanation));
}

// The bar of a hit: a segment per query word and a grey one for the overall meaning, in percent of the bar. Sums below
// 1 would leave a part of a flex container empty, so gains are not used as they are.
function segments(explanation, common = 0) {
  const colours = hues(explanation);
  const parts = explanation.matches.map((match, number) => ({ gain: match.gain, hue: colours[number], name: label(match) }));
  const { semantic } = explanation;
  if (semantic) parts.push({ gain: semantic.gain - common, total: semantic.gain, name: "overall meaning" });
  const positive = parts.filter(({ gain }) => gain > 0);
  const sum = positive.reduce((total, { gain }) => total + gain, 0);
  return positive.map(({ gain, hue, name, total = gain }) => el("i", {
    class: hue === undefined ? "meaning" : null, "--h": hue, "--g": (100 * gain) / sum, title: `${name}: ${fixed(total)}`,
  }));
}

// One entry per word and key; a word that is repeated in the query has one entry.
function legend(explanation) {
  const colours = hues(explanation), entries = new Map();
  for (const [number, match] of explanation.matches.entries()) {
    const key = label(match), word = queryWords(explanation, match) || key, isSame = word === key;
    entries.set(`${word} ${key}`, el("li", {
      "--h": colours[number], title: isSame ? null : `“${word}” is looked up under the key “${key}”`,
    }, isSame ? word : `${word} → ${key}`));
  }
  const keys = [...entries.values()];
  if (keys.length) keys.unshift(el("li", { class: "caption" }, "query word → key"));
  if (explanation.semantic) keys.push(el("li", { class: "meaning" }, "overall meaning"));
  if (explanation.matches.some((match) => match.postings.length > 1))
    keys.push(el("li", { class: "also" }, "matched, but a stronger match counted"));
  return keys;
}

function report(error, retry) {
  const box = byId("problem");
  byId("status").textContent = "";
  for (const id of ["hits", "legend"]) byId(id).classList.add("stale");  // of an older query
  if (error.status === 503) setTimeout(retry, 1000 * error.retryAfter);
  box.replaceChildren(`${error.message} `, el("button", { onclick: retry }, "Try again"));
  show(box, true);
}

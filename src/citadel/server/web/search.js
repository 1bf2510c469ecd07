// Search as you type: hits at once, then what made each of them match.

import { newest, post } from "./api.js";
import { askedWords, byId, el, faint, fixed, hues, label, largestGain, marked, milliseconds, plural, show } from "./dom.js";
import { closeWhy, openWhy } from "./why.js";

const PAUSE = 120;          // milliseconds without a key before a search
const CALM = 250;           // and before the hits are explained, which costs a model run each
const AT_ONCE = 2;          // explanations asked for side by side
const HITS = 10;
const PLAIN = 240;          // letters shown until a hit is explained

const INTRO = {
  dynamic: byId("intro-keys").textContent,
  bm25: "Every word is its own key, brought to its stem. A word of your query meets the same word in a document; rare words add more than common ones, and words that a document repeats add more again.",
  static: "Every word is its own key. A word of your query meets the same word in a document, and the better the two fit in meaning, the more that adds to the document’s score.",
  all_to_all: "Every word of your query looks for the word of a document that is nearest to it in meaning, and adds how near that is to the document’s score.",
  sparse: "Every text is filed under keys, words that say what it is about, with a weight each. A key that your query and a document share adds to the document’s score.",
  none: "Your query and every document are compared by their overall meaning. Single words are not looked at, so this index can say how near two texts are, but not which words made it so.",
};

export function startSearch(state) {
  const input = byId("query");
  let timer = 0, shown = null;

  const run = newest(async (signal, query) => {
    const answer = await post("v1/search", { query, k: HITS }, signal);
    state.lastTimings = answer.timings;
    shown = query;
    render(state, query, answer);
    await explainAll(signal, query, answer.hits);
  });

  async function search(query) {
    closeWhy();
    show(byId("problem"), false);
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
    shown = null;
    byId("hits").replaceChildren();
    byId("legend").replaceChildren();
    byId("status").textContent = "";
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      history.replaceState(null, "", address() || "#");
      search(input.value);
    }, PAUSE);
  });
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    history.replaceState(null, "", address() || "#");
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

  const address = () => (input.value.trim() ? `#${new URLSearchParams({ q: input.value })}` : "");

  return {
    address,
    ask(query) {
      if (query === input.value && shown === query) return;
      input.value = query;
      search(query);
    },
    ready() {
      byId("intro-keys").textContent = INTRO[state.stats.model.router] ?? INTRO.dynamic;
      if (state.stats.model.has_text) return;
      input.disabled = true;
      input.placeholder = "This index holds given vectors: search it through the API";
    },
  };
}

// From hit to hit; up from the first goes back to the query.
function move(event, item, step) {
  const items = [...byId("hits").children];
  const next = items[(item ? items.indexOf(item) : -1) + step];
  event.preventDefault();
  (next?.querySelector("button") ?? (step < 0 ? byId("query") : null))?.focus();
}

function render(state, query, answer) {
  const { hits, timings } = answer;
  const of = state.stats ? ` of ${plural(state.stats.index.documents, "document")}` : "";
  byId("status").textContent = hits.length
    ? `The best ${hits.length}${of} in ${milliseconds(timings.total_ms)}`
    : "No document has anything in common with this query. Try other or fewer words.";
  const top = hits[0]?.score ?? 0;
  byId("legend").replaceChildren();
  byId("hits").classList.remove("stale");
  byId("hits").replaceChildren(...hits.map((hit) => item(query, hit, top)));
}

function item(query, hit, top) {
  const letters = Array.from(hit.text);
  const start = letters.slice(0, PLAIN).join("") + (letters.length > PLAIN ? " …" : "");
  return el("li", { "data-id": hit.id },
    el("div", { class: "head" },
      el("button", { class: "title", onclick: (event) => openWhy(query, hit, event.currentTarget) }, hit.title || hit.id),
      el("span", { class: "score", title: "score" }, fixed(hit.score))),
    el("div", { class: "bar", "aria-hidden": "true", "--w": top > 0 ? Math.max(hit.score / top, 0) : 0 }),
    el("p", { class: "snippet" }, start || el("span", { class: "dim" }, "(no text)")),
    hit.title ? el("p", { class: "id dim" }, hit.id) : null);
}

async function explainAll(signal, query, hits) {
  await new Promise((resolve) => setTimeout(resolve, CALM));
  const waiting = [...hits];
  const worker = async () => {
    while (waiting.length && !signal.aborted) {
      const hit = waiting.shift();
      const { explanation } = await post("v1/explain", { query, id: hit.id }, signal);
      hit.explanation = explanation;
      colour(hit);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  if (!signal.aborted) compare(hits);
}

// Where the overall meaning is most of every score, its bars are all grey and of one length. What every hit shown has
// tells none of them apart: the bars are drawn above it then, and the legend says how much it is.
function compare(hits) {
  const common = Math.min(...hits.map((hit) => hit.explanation?.semantic?.gain ?? 0)), top = hits[0]?.score;
  if (hits.length < 2 || !(common > top / 2)) return;
  for (const hit of hits) {
    hit.common = common;
    const bar = [...byId("hits").children].find((one) => one.dataset.id === hit.id)?.querySelector(".bar");
    bar?.style.setProperty("--w", Math.max((hit.score - common) / (top - common), 0));
    bar?.replaceChildren(...segments(hit.explanation, common));
  }
  const meaning = byId("legend").querySelector(".meaning");
  if (meaning) meaning.textContent = `overall meaning, above the ${fixed(common)} that every hit shown has`;
}

function colour(hit) {
  const found = hit.explanation;
  const item = [...byId("hits").children].find((one) => one.dataset.id === hit.id);
  if (!item || found.score == null) return;
  const largest = largestGain(found), { snippet } = found;
  const inside = faint(found, "text").map((one) => ({ ...one, start: one.start - snippet.start, end: one.end - snippet.start }));
  const title = item.querySelector(".title");
  if (hit.title) title.replaceChildren(...marked(hit.title, [...found.title_spans, ...faint(found, "title")], found, largest));
  const body = marked(snippet.text, [...snippet.spans, ...inside], found, largest);
  const cut = found.text_cut || snippet.end < Array.from(found.text).length;
  const later = found.text_start + snippet.start > 0;
  if (found.text) item.querySelector(".snippet").replaceChildren(later ? "… " : "", ...body, cut ? " …" : "");
  item.querySelector(".bar").replaceChildren(...segments(found));
  if (!byId("legend").children.length) byId("legend").replaceChildren(...legend(found));
}

// The bar of a hit: one part for each match, the semantic part in grey, without what all hits have in common.
function segments(found, common = 0) {
  const colours = hues(found), parts = [];
  for (const [place, match] of found.matches.entries())
    if (match.gain > 0)
      parts.push(el("i", { "--h": colours[place], "--g": match.gain, title: `${label(match)}: ${fixed(match.gain)}` }));
  if (found.semantic?.gain > common)
    parts.push(el("i", { class: "meaning", "--g": found.semantic.gain - common, title: `overall meaning: ${fixed(found.semantic.gain)}` }));
  return parts;
}

function legend(found) {
  const colours = hues(found);
  const keys = found.matches.map((match, place) => {
    const asked = askedWords(found, match) || label(match);
    const same = asked === label(match);
    return el("li", { "--h": colours[place] }, same ? asked : `${asked} → ${label(match)}`);
  });
  if (found.semantic) keys.push(el("li", { class: "meaning" }, "overall meaning"));
  if (found.matches.some((match) => match.postings.length > 1)) keys.push(el("li", { class: "also" }, "met too, but another counted"));
  return keys;
}

function report(error, again) {
  const box = byId("problem");
  byId("status").textContent = "";
  byId("hits").classList.add("stale");  // they answer an older query
  if (error.status === 503) setTimeout(again, 1000 * error.retryAfter);
  box.replaceChildren(`${error.message} `, el("button", { onclick: again }, "Try again"));
  show(box, true);
}

// The Search view: hits while you type, then an explanation of each. The filter lies in facets.js.

import { newest, post } from "./api.js";
import { byId, el, milliseconds, plural, show } from "./dom.js";
import { startFilter } from "./facets.js";
import { FilterProblem } from "./filter.js";
import { appendHits, drawAboveCommon, isPoor, renderExplained, renderHits } from "./hits.js";
import { INTRO } from "./terms.js";
import { closeWhy } from "./why.js";
import { wholeWords } from "./words.js";

const SEARCH_DELAY = 120;   // milliseconds after the last key press
const EXPLAIN_DELAY = 250;  // more, because each explanation runs the model
const CONCURRENT = 2;       // explanations requested at a time
const PAGE = 10;            // hits shown at first, and added by "more"
const MAX_RESTORED = 100;   // hits that a deep link shows at once
const MAX_HITS = 1000;      // after which "more" ends

export function startSearch(state) {
  const input = byId("query");
  let timer = 0, shown = null, answer = null, depth = PAGE;  // depth: the number of hits wanted
  const filter = startFilter(() => submit(true));

  // A request: the query and the filter, as typed and as sent.
  const typed = () => ({ query: input.value, text: filter.text() });
  const read = () => ({ ...typed(), condition: filter.read() });

  // One more hit than shown tells whether "more" has any.
  async function fetchHits(signal, { query, condition }, offset, count) {
    const body = { query, k: count + 1, ...(offset && { offset }), ...(condition && { filter: condition }) };
    const result = await post("v1/search", body, signal);
    const hasMore = result.hits.length > count && offset + count < MAX_HITS;
    return { ...result, hits: result.hits.slice(0, count), hasMore };
  }

  const run = newest(async (signal, request) => {
    answer = { ...await fetchHits(signal, request, 0, depth), request };
    state.lastTimings = answer.timings;
    renderHits(request.query, answer.hits);
    finish();
    // The hits do not need the facets.
    filter.refresh(request.condition, answer.generation).catch(() => {});
    await explainAll(signal, request.query, answer.hits);
  });

  const extend = newest(async (signal, { request, hits, generation }) => {
    const next = await fetchHits(signal, request, hits.length, PAGE);
    if (next.generation !== generation) return search();  // the order may have changed
    answer = { ...next, request, hits: [...hits, ...next.hits] };
    appendHits(request.query, next.hits, hits[0].score);
    finish();
    byId("hits").children[hits.length]?.querySelector("button").focus();
    await explainAll(signal, request.query, answer.hits);
  });

  function finish() {
    shown = link(answer.request);
    renderStatus(state, answer, filter);
    show(byId("more"), answer.hasMore);
  }

  async function search() {
    const isEmpty = !input.value.trim();
    closeWhy();
    for (const id of ["problem", "query-cut"]) show(byId(id), false);
    show(byId("intro"), isEmpty);
    filter.setQuery(input.value);
    if (isEmpty) return clear();
    await attempt(() => run(read()));
  }

  // More of the hits that are shown, whatever has been typed since.
  async function more() {
    show(byId("problem"), false);
    depth += PAGE;
    history.replaceState(null, "", link(answer.request));
    await attempt(() => extend(answer));
  }

  async function attempt(work) {
    cancel();
    try {
      await work();
    } catch (error) {
      const isFilter = error instanceof FilterProblem || error.code === "filter";
      if (isFilter) filter.problem(error);
      report(isFilter ? null : error, search);
    }
  }

  function cancel() {
    for (const job of [run, extend, filter.refresh]) job.cancel();
  }

  function clear() {
    cancel();
    shown = answer = null;
    for (const id of ["hits", "legend", "status"]) byId(id).replaceChildren();
    show(byId("more"), false);
  }

  // Hits beyond the first page are part of the link, as the offset of the last page.
  function link({ query, text } = typed()) {
    const parts = { q: query.trim() && query, filter: text, offset: depth - PAGE };
    const kept = Object.entries(parts).filter(([, value]) => value);
    return kept.length ? `#${new URLSearchParams(kept)}` : "";
  }

  // Runs what is typed. Typing replaces the entry in the history; a changed filter adds one.
  function submit(isNewEntry = false) {
    clearTimeout(timer);
    depth = PAGE;
    history[isNewEntry ? "pushState" : "replaceState"](null, "", link() || "#");
    return search();
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(submit, SEARCH_DELAY);
  });
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    if (link() !== shown) submit();
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
  byId("more").addEventListener("click", more);

  function runExample(query) {
    input.value = query;
    submit(true);
    input.focus();
  }

  return {
    link: () => link(),
    // Shows what a deep link names.
    show(hash) {
      const parts = new URLSearchParams(hash);
      input.value = parts.get("q") ?? "";
      filter.setText(parts.get("filter") ?? "");
      depth = restoredDepth(parts.get("offset"));
      if (link() !== shown) search();
    },
    // Called whenever the statistics have arrived, which may be after the first answer.
    ready() {
      const { model, example_queries: examples } = state.stats;
      byId("intro-keys").textContent = INTRO[model.router] ?? byId("intro-keys").textContent;
      byId("examples").replaceChildren(...examples.map((query) =>
        el("li", {}, el("button", { type: "button", onclick: () => runExample(query) }, query))));
      show(byId("examples-box"), examples.length > 0);
      if (answer) renderStatus(state, answer, filter);
      if (model.has_text) return void filter.readFields().catch(() => {});
      input.disabled = true;
      input.placeholder = "Vectors only: search through the API";
    },
  };
}

// The number of hits that a link's offset means: whole pages, and not too many at once.
function restoredDepth(offset) {
  const pages = /^\d{1,6}$/.test(offset ?? "") ? Math.floor(offset / PAGE) : 0;
  return Math.min((pages + 1) * PAGE, MAX_RESTORED);
}

// Moves the focus between hits; up from the first hit leads to the query.
function move(event, item, step) {
  const items = [...byId("hits").children];
  const next = items[(item ? items.indexOf(item) : -1) + step];
  event.preventDefault();
  (next?.querySelector("button") ?? (step < 0 ? byId("query") : null))?.focus();
}

function renderStatus(state, answer, filter) {
  filter.summary(answer, state.stats?.index.documents);
  const poor = isPoor(answer.hits[0]) ? "No good match. " : "";
  byId("status").textContent = answer.hits.length ? poor + hitCount(answer) : noHits(answer);
  show(byId("query-cut"), answer.query_cut);
}

// `matching` is the number of all documents where there is no filter.
function hitCount({ hits, matching, request, timings }) {
  const among = `The best ${hits.length} of ${plural(matching, "document")}`;
  const time = milliseconds(timings.total_ms);
  return request.condition ? `${among} ${matchVerb(matching)}, in ${time}` : `${among} in ${time}`;
}

const matchVerb = (count) => (count === 1 ? "that matches the filter" : "that match the filter");

function noHits({ matching, request }) {
  if (!matching && request.condition) return "No document matches the filter. Change it or clear it.";
  if (!matching) return "This index has no documents.";
  const among = request.condition ? ` among the ${plural(matching, "document")} ${matchVerb(matching)}` : "";
  return `No document matches this query${among}. Try other words.`;
}

async function explainAll(signal, query, hits) {
  await new Promise((resolve) => setTimeout(resolve, EXPLAIN_DELAY));
  const waiting = hits.filter((hit) => !hit.explanation);
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

// Marks the hits of an older query, and offers to try again.
function report(error, retry) {
  const box = byId("problem");
  byId("status").textContent = error ? "" : "The filter has an error, so nothing was searched.";
  for (const id of ["hits", "legend"]) byId(id).classList.add("stale");
  show(byId("more"), false);
  show(box, Boolean(error));
  if (!error) return;
  if (error.status === 503) setTimeout(retry, 1000 * error.retryAfter);
  box.replaceChildren(`${error.message} `, el("button", { onclick: retry }, "Try again"));
}

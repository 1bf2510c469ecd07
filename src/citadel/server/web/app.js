// Starts the page: tabs, keys, and what the address says.

import { askForToken, get } from "./api.js";
import { byId, plural, show } from "./dom.js";
import { showFigures } from "./figures.js";
import { startSearch } from "./search.js";
import { startText } from "./text.js";

const VIEWS = ["search", "text", "index"];
const state = { stats: null, lastTimings: null };
const search = startSearch(state);
const text = startText(state);

function open(view, focus = false) {
  for (const name of VIEWS) {
    const tab = byId(`tab-${name}`), chosen = name === view;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    show(byId(`view-${name}`), chosen);
    if (chosen && focus) tab.focus();
  }
  if (view === "text") text.open();
  if (view === "index") loadStats().then(() => showFigures(state), (error) => showFigures(state, error));
}

// #q=… is a query, #text and #index are the other views: an address can be kept and sent.
function follow() {
  const hash = location.hash.slice(1);
  if (hash === "text" || hash === "index") open(hash);
  else {
    open("search");
    search.ask(new URLSearchParams(hash).get("q") ?? "");
  }
}

async function loadStats() {
  state.stats = await get("v1/stats");
  const { index, model } = state.stats;
  byId("about").textContent = `${plural(index.documents, "document")} · ${model.router}`;
}

function go(view) {
  const wanted = view === "search" ? search.address() : `#${view}`;
  if (location.hash !== wanted) history.pushState(null, "", wanted || "#");
  open(view, true);
}

for (const [place, view] of VIEWS.entries()) {
  const tab = byId(`tab-${view}`);
  tab.addEventListener("click", () => go(view));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) go(VIEWS[(place + step + VIEWS.length) % VIEWS.length]);
  });
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    go("search");
    byId("query").focus();
    byId("query").select();
  }
});

addEventListener("popstate", follow);
addEventListener("hashchange", follow);

function start() {
  follow();
  loadStats().then(search.ready, () => {});  // the first search says what is wrong
}

askForToken(start);
start();

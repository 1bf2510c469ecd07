// Entry point: tabs, keyboard shortcuts and deep links.

import { askForToken, get } from "./api.js";
import { byId, plural, show } from "./dom.js";
import { showStats } from "./stats.js";
import { startSearch } from "./search.js";
import { routerName, routerNote } from "./terms.js";
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
  if (view === "index") loadStats().then(() => showStats(state), (error) => showStats(state, error));
}

// Deep links: #q=…&filter=…&offset=… is a search, #text and #index are the other views.
function followLink() {
  const hash = location.hash.slice(1);
  if (hash === "text" || hash === "index") open(hash);
  else {
    open("search");
    search.show(hash);
  }
}

async function loadStats() {
  state.stats = await get("v1/stats");
  const { index, model } = state.stats;
  byId("about").textContent = `${plural(index.documents, "document")} · ${routerName(model.router)}`;
  byId("about").title = routerNote(model.router);
  search.ready();
}

function go(view) {
  const link = view === "search" ? search.link() : `#${view}`;
  if (location.hash !== link) history.pushState(null, "", link || "#");
  open(view, true);
}

for (const [index, view] of VIEWS.entries()) {
  const tab = byId(`tab-${view}`);
  tab.addEventListener("click", () => go(view));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) go(VIEWS[(index + step + VIEWS.length) % VIEWS.length]);
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

addEventListener("popstate", followLink);  // also fired when the fragment changes

function start() {
  followLink();
  loadStats().catch(() => {});  // a failing search reports the problem
}

askForToken(start);
start();

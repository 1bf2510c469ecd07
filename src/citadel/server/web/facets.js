// The side panel: facet values to tick, and the filter box.

import { newest } from "./api.js";
import { filteredFields, loadFields, offeredFields } from "./counts.js";
import { byId, el, replace, shorten, show, whole } from "./dom.js";
import { parseFilter, toggle, writeFilter } from "./filter.js";

const MAX_VALUES = 10;   // values per field until "more"
const MAX_LISTED = 100;  // values per field after "more"
const WIDE = matchMedia("(min-width: 60rem)");

export function startFilter(changed) {
  const box = byId("filter");
  const expanded = new Set();
  let offered = [], generation = null, shown = [], current = null;
  let hasFields = true, hasQuery = false;  // as long as nothing else is known

  function tick(field, value, isOn) {
    change(() => writeFilter(toggle(parseFilter(box.value), field.name, field.kind, value, isOn)));
  }

  function change(text) {
    try {
      box.value = text();
    } catch (error) {
      problem(error);
      return render();  // ticks as before
    }
    changed();
  }

  // Without metadata there is nothing to filter.
  const showPanel = () => show(byId("side"), (hasQuery && hasFields) || box.value.trim());

  async function readFields(signal) {
    const fields = await loadFields(signal);
    hasFields = fields.length > 0;
    showPanel();
    return fields;
  }

  // Counts the values again if the filter or the index has changed.
  const refresh = newest(async (signal, filter, newGeneration) => {
    const wanted = JSON.stringify([filter, newGeneration]);
    if (wanted === current) return;
    if (newGeneration !== generation) offered = await offeredFields(signal, await readFields(signal));
    generation = newGeneration;
    shown = await filteredFields(signal, offered, filter);
    current = wanted;
    render();
  });

  function render() {
    const focused = document.activeElement?.dataset.facet;
    replace(byId("facets"), shown.map((field) => facet(field, expanded, tick, render)));
    const controls = [...byId("facets").querySelectorAll("[data-facet]")];
    if (focused) controls.find((node) => node.dataset.facet === focused)?.focus();
  }

  function problem(error) {
    byId("filter-problem").textContent = error?.message ?? "";
    byId("facets").classList.toggle("stale", Boolean(error));
    show(byId("filter-problem"), Boolean(error));
    box.setAttribute("aria-invalid", Boolean(error));
    if (!error) return;
    byId("side").open = true;
    byId("side-title").textContent = "Filter";
  }

  byId("filter-form").addEventListener("submit", (event) => {
    event.preventDefault();
    changed();
  });
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    changed();
  });
  byId("filter-clear").addEventListener("click", () => {
    change(() => "");
    box.focus();
  });
  byId("side").open = WIDE.matches;
  WIDE.addEventListener("change", () => { byId("side").open = WIDE.matches; });

  return {
    text: () => box.value.trim(),
    setText(text) { box.value = text; },
    read() {
      const filter = parseFilter(box.value);
      problem(null);
      return filter;
    },
    setQuery(query) {
      hasQuery = Boolean(query.trim());
      showPanel();
    },
    readFields,
    refresh,
    problem,
    summary({ matching, request }, documents) {
      const isOn = request.condition && documents != null;
      byId("side-title").textContent = isOn ? `Filter: ${whole(matching)} of ${whole(documents)}` : "Filter";
    },
  };
}

// An integer that JavaScript has rounded cannot be filtered for.
const isExact = ({ value }) => !Number.isInteger(value) || Number.isSafeInteger(value);

// The most frequent values, and all ticked ones, also where no document has them any more. Numbers are sorted.
function facetValues({ kind, values, ticked }, isExpanded) {
  const exact = values.filter(isExact).slice(0, MAX_LISTED), missing = new Set(ticked);
  for (const { value } of exact) missing.delete(value);
  const isListed = ({ value }, rank) => isExpanded || rank < MAX_VALUES || ticked.includes(value);
  const frequent = exact.filter(isListed);
  const listed = [...frequent, ...[...missing].map((value) => ({ value, count: 0 }))];
  if (kind === "number") listed.sort((a, b) => a.value - b.value);
  return { listed, hidden: exact.filter((row) => !frequent.includes(row)) };
}

function facet(field, expanded, tick, render) {
  const { listed, hidden } = facetValues(field, expanded.has(field.name));
  if (!listed.length) return null;
  const more = () => {
    expanded.add(field.name);
    render();
  };
  return el("fieldset", { class: "facet" },
    el("legend", {}, shorten(field.name)),
    listed.map((row) => facetValue(field, row, tick)),
    hidden.length > 0 && el("button", {
      type: "button", class: "quiet", "data-facet": facetId(field, hidden[0].value), onclick: more,
      "aria-label": `${hidden.length} more values of ${shorten(field.name)}`,
    }, `${hidden.length} more`));
}

// Names a control, which gets the focus back when it is drawn again; "more" hands it to the first new value.
const facetId = ({ name }, value) => JSON.stringify([name, value]);

const nounOf = (count) => (count === 1 ? " document" : " documents");

function facetValue(field, { value, count }, tick) {
  const text = String(value) || "(empty)", name = shorten(text);
  return el("label", { title: name === text ? null : shorten(text, 300) },
    el("input", {
      type: "checkbox", checked: field.ticked.includes(value), "data-facet": facetId(field, value),
      onchange: (event) => tick(field, value, event.target.checked),
    }),
    el("bdi", {}, name),
    el("span", { class: "count" }, whole(count), el("span", { class: "unseen" }, nounOf(count))));
}

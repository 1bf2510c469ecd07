// The id and metadata of a hit, each with its label.

import { el } from "./dom.js";

const MAX_FIELDS = 4, MAX_LETTERS = 60;

function text(value) {
  if (value == null) return "–";
  if (Array.isArray(value)) return value.map(text).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function shorten(value) {
  const letters = Array.from(text(value));
  return letters.length > MAX_LETTERS ? `${letters.slice(0, MAX_LETTERS - 1).join("")}…` : letters.join("");
}

const pairs = (hit) => [["id", hit.id], ...Object.entries(hit.metadata ?? {})];

// One line: the id and the first fields.
export function facts(hit) {
  const fields = pairs(hit), hidden = fields.length - 1 - MAX_FIELDS;
  return el("dl", { class: "facts" }, ...fields.slice(0, MAX_FIELDS + 1).map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, shorten(value)))),
  hidden > 0 && el("div", {}, el("dt", {}, `and ${hidden} more`)));
}

// A table of the id and all fields.
export const allFacts = (hit) => el("dl", { class: "plain" },
  ...pairs(hit).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, text(value))]));

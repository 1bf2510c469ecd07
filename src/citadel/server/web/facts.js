// The id and metadata of a hit, each with its label; a link where the field `url` has a web address.

import { el, plural, shorten } from "./dom.js";

const MAX_FIELDS = 4, MAX_LETTERS = 60, MAX_LETTERS_IN_TABLE = 2000;

function text(value) {
  if (value == null) return "–";
  if (Array.isArray(value)) return value.map(text).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// The address of a link, or null: only http and https, in the normal form that a browser would open.
export function webAddress(value) {
  if (typeof value !== "string" || !URL.canParse(value)) return null;
  const { protocol, href } = new URL(value);
  return ["http:", "https:"].includes(protocol) ? href : null;
}

function fact(name, value, limit) {
  const address = name === "url" ? webAddress(value) : null;
  if (!address) return el("bdi", {}, shorten(text(value), limit));
  return el("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, shorten(address, limit));
}

// The first field named "id" is the document's own. A link comes next: it must not be hidden.
function pairs(hit) {
  const fields = Object.entries(hit.metadata ?? {});
  const isLink = ([name, value]) => name === "url" && webAddress(value) !== null;
  return [["id", hit.id], ...fields.filter(isLink), ...fields.filter((field) => !isLink(field))];
}

const entry = ([name, value], limit) =>
  [el("dt", {}, el("bdi", {}, shorten(name))), el("dd", {}, fact(name, value, limit))];
const line = (field) => el("div", {}, ...entry(field, MAX_LETTERS));

// One line: the id and the first fields; a button shows the others.
export function facts(hit) {
  const fields = pairs(hit), hidden = fields.slice(MAX_FIELDS + 1);
  const list = el("dl", { class: "facts" }, ...fields.slice(0, MAX_FIELDS + 1).map(line));
  const more = el("button", { type: "button", class: "quiet", onclick: () => {
    list.append(...hidden.map(line));
    more.remove();
  } }, plural(hidden.length, "more field"));
  return el("div", { class: "facts-row" }, list, hidden.length > 0 && more);
}

// A table of the id and all fields.
export const allFacts = (hit) =>
  el("dl", { class: "plain" }, ...pairs(hit).flatMap((field) => entry(field, MAX_LETTERS_IN_TABLE)));

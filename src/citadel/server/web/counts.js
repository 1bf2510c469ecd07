// Which metadata fields can be filtered, and how many documents have each of their values.

import { get, post } from "./api.js";
import { selected, withoutEqual } from "./filter.js";

const MAX_ASKED = 16;  // fields per request
const MAX_FACETS = 8;  // fields offered
const KINDS = ["string", "date", "list", "boolean", "number"];

export const loadFields = async (signal) => (await get("v1/fields", signal)).fields;

// Facets do not depend on the query, but the API needs one.
async function countValues(signal, query, fields, filter) {
  if (!fields.length) return new Map();
  const facets = fields.map(({ name }) => name);
  const body = { query, k: 1, documents: false, facets, ...(filter && { filter }) };
  return new Map(Object.entries((await post("v1/search", body, signal)).facets));
}

const isCountable = ({ name, kind }) => KINDS.includes(kind) && name !== "url" && !name.startsWith("$");

// Fields whose values repeat, with the counts over all documents. The others would list every document.
export async function offeredFields(signal, query, fields) {
  const known = fields.filter(isCountable).slice(0, MAX_ASKED);
  const counts = await countValues(signal, query, known, null);
  const repeats = ({ name }) => counts.get(name)?.some(({ count }) => count > 1);
  const offered = known.filter(repeats).slice(0, MAX_FACETS);
  return offered.map((field) => ({ ...field, values: counts.get(field.name), ticked: [] }));
}

// The same fields with the counts over the documents that match a filter. Where values of a field are ticked,
// its counts leave that condition out, so that further values can be added.
export async function filteredFields(signal, query, offered, filter) {
  if (!filter) return offered;
  const counts = await countValues(signal, query, offered, filter);
  const fields = offered.map((field) => ({ ...field, ticked: selected(filter, field.name, field.kind) }));
  for (const field of fields.filter(({ kind, ticked }) => kind !== "list" && ticked.length)) {
    const others = await countValues(signal, query, [field], withoutEqual(filter, field.name));
    counts.set(field.name, others.get(field.name));
  }
  return fields.map((field) => ({ ...field, values: counts.get(field.name) ?? [] }));
}

// Which metadata fields can be filtered, and how many documents have each of their values.

import { get, post } from "./api.js";
import { selected, withoutEqual } from "./filter.js";

const MAX_ASKED = 16;  // fields per request
const MAX_FACETS = 8;  // fields offered
const KINDS = ["string", "date", "list", "boolean", "number"];

export const loadFields = async (signal) => (await get("v1/fields", signal)).fields;

async function countValues(signal, fields, filter) {
  if (!fields.length) return new Map();
  const { facets } = await post("v1/facets", { fields: fields.map(({ name }) => name), filter }, signal);
  return new Map(Object.entries(facets));
}

const isCountable = ({ name, kind }) => KINDS.includes(kind) && name !== "url" && !name.startsWith("$");

// Fields whose values repeat, with the counts over all documents. The others would list every document.
export async function offeredFields(signal, fields) {
  const known = fields.filter(isCountable).slice(0, MAX_ASKED);
  const counts = await countValues(signal, known, null);
  const repeats = ({ name }) => counts.get(name)?.some(({ count }) => count > 1);
  const offered = known.filter(repeats).slice(0, MAX_FACETS);
  return offered.map((field) => ({ ...field, values: counts.get(field.name), ticked: [] }));
}

// The same fields with the counts over the documents that match a filter. Where values of a field are ticked,
// its counts leave that condition out, so that further values can be added.
export async function filteredFields(signal, offered, filter) {
  if (!filter) return offered;
  const counts = await countValues(signal, offered, filter);
  const fields = offered.map((field) => ({ ...field, ticked: selected(filter, field.name, field.kind) }));
  for (const field of fields.filter(({ kind, ticked }) => kind !== "list" && ticked.length)) {
    const others = await countValues(signal, [field], withoutEqual(filter, field.name));
    counts.set(field.name, others.get(field.name));
  }
  return fields.map((field) => ({ ...field, values: counts.get(field.name) ?? [] }));
}

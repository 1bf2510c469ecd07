// Filters (docs/guides/filter.md): the JSON of the filter box, and the conditions that facets add and remove.

export class FilterProblem extends Error {}

const NO_OBJECT = 'A filter is a JSON object such as {"year": {"$gte": 1900}}.';
const TWICE = "A field or operator occurs twice in one object: join the two conditions with $and.";
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// The filter in a text; null where it has no condition.
export function parseFilter(text) {
  if (!text.trim()) return null;
  try {
    return checked(JSON.parse(text, requireExact), text);
  } catch (error) {
    if (error instanceof SyntaxError) throw new FilterProblem(`Not valid JSON: ${error.message}.`);
    if (error instanceof RangeError) throw new FilterProblem("The filter is nested too deeply.");
    throw error;
  }
}

function checked(filter, text) {
  if (!isObject(filter)) throw new FilterProblem(NO_OBJECT);
  if (countKeys(filter) < writtenKeys(text)) throw new FilterProblem(TWICE);
  return Object.keys(filter).length ? filter : null;
}

// JavaScript rounds larger integers, which would match other documents.
function requireExact(key, value) {
  if (Number.isInteger(value) && !Number.isSafeInteger(value))
    throw new FilterProblem(`${value} has more digits than a browser can hold: send it through the API.`);
  return value;
}

// JSON.parse drops all but the last of two equal keys, so keys are counted before and after.
function writtenKeys(text) {
  const strings = text.matchAll(/"(?:[^"\\]|\\.)*"(\s*:)?/g);
  return [...strings].filter(([, colon]) => colon).length;
}

function countKeys(value) {
  if (value === null || typeof value !== "object") return 0;
  const parts = Object.values(value), keys = Array.isArray(value) ? 0 : parts.length;
  return parts.reduce((sum, part) => sum + countKeys(part), keys);
}

export const writeFilter = (filter) => (filter ? JSON.stringify(filter, null, 1).replace(/\n\s*/g, " ") : "");

// ---- conditions of one field. Names come from documents: "__proto__" must stay a plain key.

const entry = (object, name) => (Object.hasOwn(object ?? {}, name) ? object[name] : undefined);

function withEntry(object, name, value) {
  const entries = new Map(Object.entries(object ?? {}));
  if (value === undefined) entries.delete(name);
  else entries.set(name, value);
  return entries.size ? Object.fromEntries(entries) : null;
}

function operators(filter, field) {
  const condition = entry(filter, field);
  if (condition === undefined) return null;
  return isObject(condition) ? condition : { $eq: condition };
}

const isScalar = (value) => ["string", "number", "boolean"].includes(typeof value);

function equalValues(filter, field) {
  const condition = operators(filter, field);
  const members = entry(condition, "$in");
  return (Array.isArray(members) ? members : [entry(condition, "$eq")]).filter(isScalar);
}

export function withoutEqual(filter, field) {
  return withEqual(filter, field, []);
}

function withEqual(filter, field, values) {
  let condition = withEntry(withEntry(operators(filter, field), "$eq", undefined), "$in", undefined);
  if (values.length > 1) condition = withEntry(condition, "$in", values);
  if (values.length === 1) condition = condition ? withEntry(condition, "$eq", values[0]) : values[0];
  return withEntry(filter, field, condition ?? undefined);
}

// Members of a list: the first is a condition of the field, further ones are clauses of $and.
const clauses = (filter) => (Array.isArray(entry(filter, "$and")) ? filter.$and : []);
const only = (object, name) =>
  (isObject(object) && Object.keys(object).length === 1 ? entry(object, name) : undefined);
const member = (clause, field) => only(only(clause, field), "$contains");

function containedValues(filter, field) {
  const first = entry(operators(filter, field), "$contains");
  return [first, ...clauses(filter).map((clause) => member(clause, field))].filter(isScalar);
}

function addContained(filter, field, value) {
  const condition = operators(filter, field), isFirst = entry(condition, "$contains") === undefined;
  if (isFirst) return withEntry(filter, field, withEntry(condition, "$contains", value));
  return withEntry(filter, "$and", [...clauses(filter), { [field]: { $contains: value } }]);
}

function dropContained(filter, field, value) {
  const condition = operators(filter, field), isFirst = entry(condition, "$contains") === value;
  const kept = isFirst ? withEntry(condition, "$contains", undefined) : condition;
  const rest = withEntry(filter, field, kept ?? undefined);
  if (!clauses(filter).length) return rest;
  const others = clauses(filter).filter((clause) => member(clause, field) !== value);
  return withEntry(rest, "$and", others.length ? others : undefined);
}

// The values of a facet that the filter selects.
export const selected = (filter, field, kind) =>
  (kind === "list" ? containedValues(filter, field) : equalValues(filter, field));

// The filter with one value of a facet selected or not: any of several values, all of several list members.
export function toggle(filter, field, kind, value, isOn) {
  if (kind === "list") return (isOn ? addContained : dropContained)(filter, field, value);
  const others = equalValues(filter, field).filter((known) => known !== value);
  return withEqual(filter, field, isOn ? [...others, value] : others);
}

// Filters (docs/guides/filter.md): the JSON of the filter box, and the conditions that facets add and remove.

export class FilterProblem extends Error {}

const TWICE = "A field or operator occurs twice in one object: join the two conditions with $and.";
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// The filter in a text; null where it has no condition.
export function parseFilter(text) {
  if (!text.trim()) return null;
  const filter = parseJson(text);
  if (!isObject(filter)) throw new FilterProblem('A filter is a JSON object such as {"year": {"$gte": 1900}}.');
  if (countKeys(filter) < writtenKeys(text)) throw new FilterProblem(TWICE);
  return Object.keys(filter).length ? filter : null;
}

function parseJson(text) {
  try {
    return JSON.parse(text, requireExact);
  } catch (error) {
    if (error instanceof FilterProblem) throw error;
    throw new FilterProblem(error instanceof SyntaxError ? `Not valid JSON: ${error.message}.` : "The filter is nested too deeply.");
  }
}

// JavaScript rounds larger integers, which would match other documents.
function requireExact(key, value) {
  if (Number.isInteger(value) && !Number.isSafeInteger(value))
    throw new FilterProblem(`${value} has more digits than a browser can hold: send this filter through the API.`);
  return value;
}

// JSON.parse drops all but the last of two equal keys, so keys are counted before and after.
function writtenKeys(text) {
  const strings = text.matchAll(/"(?:[^"\\]|\\.)*"(\s*:)?/g);
  return [...strings].filter(([, colon]) => colon).length;
}

const countKeys = (value) => (value === null || typeof value !== "object" ? 0
  : Object.values(value).reduce((sum, part) => sum + countKeys(part), isObject(value) ? Object.keys(value).length : 0));

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
const member = (clause, field) => {
  const condition = isObject(clause) && Object.keys(clause).length === 1 ? entry(clause, field) : undefined;
  return isObject(condition) && Object.keys(condition).length === 1 ? entry(condition, "$contains") : undefined;
};

const containedValues = (filter, field) =>
  [entry(operators(filter, field), "$contains"), ...clauses(filter).map((clause) => member(clause, field))].filter(isScalar);

function addContained(filter, field, value) {
  const condition = operators(filter, field), clause = { [field]: { $contains: value } };
  if (entry(condition, "$contains") === undefined) return withEntry(filter, field, withEntry(condition, "$contains", value));
  return withEntry(filter, "$and", [...clauses(filter), clause]);
}

function dropContained(filter, field, value) {
  const condition = operators(filter, field), others = clauses(filter).filter((clause) => member(clause, field) !== value);
  const kept = entry(condition, "$contains") === value ? withEntry(condition, "$contains", undefined) : condition;
  const rest = withEntry(filter, field, kept ?? undefined);
  return clauses(filter).length ? withEntry(rest, "$and", others.length ? others : undefined) : rest;
}

// The values of a facet that the filter selects.
export const selected = (filter, field, kind) => (kind === "list" ? containedValues : equalValues)(filter, field);

// The filter with one value of a facet selected or not: any of several values, but all of several list members.
export function toggle(filter, field, kind, value, isOn) {
  if (kind === "list") return (isOn ? addContained : dropContained)(filter, field, value);
  const others = equalValues(filter, field).filter((known) => known !== value);
  return withEqual(filter, field, isOn ? [...others, value] : others);
}

// The list of hits: titles, snippets, score bars and the legend of query words.

import {
  byId, el, faint, fixed, highlight, hues, label, largestGain, queryWords, replace, whole,
} from "./dom.js";
import { facts } from "./facts.js";
import { openWhy } from "./why.js";

const POOR = 0.05;    // relevance below which a hit is faded
const PREVIEW = 240;  // letters of a text until its snippet is known

export function renderHits(query, hits) {
  byId("legend").replaceChildren();
  for (const id of ["hits", "legend"]) byId(id).classList.remove("stale");
  byId("hits").replaceChildren();
  appendHits(query, hits, hits[0]?.score ?? 0);
}

// `top` is the score of the first hit, which has the longest bar.
export function appendHits(query, hits, top) {
  byId("hits").append(...hits.map((hit) => item(query, hit, top)));
}

function item(query, hit, top) {
  const explain = (event) => openWhy(query, hit, event.currentTarget);
  return el("li", { "data-id": hit.id, class: isPoor(hit) ? "poor" : null },
    el("div", { class: "head" },
      el("button", { class: "title", onclick: explain }, hit.title || hit.id),
      el("span", { class: "score" }, el("span", {}, "score "), fixed(hit.score))),
    el("div", { class: "bar", "aria-hidden": "true", "--w": top > 0 ? Math.max(hit.score / top, 0) : 0 }),
    el("p", { class: "snippet" }, preview(hit)),
    hit.passage && el("p", { class: "passage" }, passageAt(hit.passage)),
    facts(hit));
}

// Relevance is a probability; hits without one, such as those of BM25, are never faded.
export const isPoor = (hit) => hit?.relevance != null && hit.relevance < POOR;

const passageAt = ({ start }) => `passage at character ${whole(start)} of the document`;

function preview(hit) {
  const letters = Array.from(hit.text);
  if (!letters.length) return el("span", { class: "dim" }, "(no text)");
  const isKnown = hit.passage?.start < letters.length;  // the server cuts very long texts
  const [start, last] = isKnown ? [hit.passage.start, hit.passage.end] : [0, letters.length];
  const end = Math.min(start + PREVIEW, last), part = letters.slice(start, end).join("");
  return `${start > 0 ? "… " : ""}${part}${end < letters.length ? " …" : ""}`;
}

// Where the overall meaning makes up most of every score, all bars would be grey and equally long. The part
// that all hits share does not change their order: bars show what is above it, and the legend gives its amount.
export function drawAboveCommon(hits) {
  const common = Math.min(...hits.map((hit) => hit.explanation?.semantic?.gain ?? 0)), top = hits[0]?.score;
  if (hits.length < 2 || !(common > top / 2)) return;
  for (const hit of hits) {
    hit.common = common;
    const bar = listItem(hit)?.querySelector(".bar");
    bar?.style.setProperty("--w", Math.max((hit.score - common) / (top - common), 0));
    bar?.replaceChildren(...segments(hit.explanation, common));
  }
  const meaning = byId("legend").querySelector(".meaning");
  if (meaning) meaning.textContent = `overall meaning, above the ${fixed(common)} that all these hits share`;
}

const listItem = (hit) => [...byId("hits").children].find((item) => item.dataset.id === hit.id);

export function renderExplained(hit) {
  const { explanation } = hit, item = listItem(hit);
  if (!item || explanation.score == null) return;
  const largest = largestGain(explanation);
  if (hit.title) {
    const spans = [...explanation.title_spans, ...faint(explanation, "title")];
    replace(item.querySelector(".title"), highlight(hit.title, spans, explanation, largest));
  }
  const snippet = snippetOf(hit);
  if (snippet) replace(item.querySelector(".snippet"), snippetText(explanation, snippet, largest));
  replace(item.querySelector(".bar"), segments(explanation));
  if (!byId("legend").children.length) replace(byId("legend"), legend(explanation));
}

// The part of the text to show: the snippet, or the passage's beginning if the snippet lies outside of it.
function snippetOf({ explanation, passage }) {
  const { snippet, text, text_start: first } = explanation;
  if (!text) return null;
  const [start, end] = [passage?.start - first, passage?.end - first];
  if (!passage || (snippet.start >= start && snippet.end <= end)) return snippet;
  const letters = Array.from(text), last = Math.min(end, start + PREVIEW);
  if (start < 0 || start >= letters.length) return null;
  const spans = explanation.text_spans.filter((span) => span.start >= start && span.end <= last);
  const shifted = spans.map((span) => ({ ...span, start: span.start - start, end: span.end - start }));
  return { start, end: last, text: letters.slice(start, last).join(""), spans: shifted };
}

function snippetText(explanation, snippet, largest) {
  const shift = (span) => ({ ...span, start: span.start - snippet.start, end: span.end - snippet.start });
  const others = faint(explanation, "text").map(shift).filter((span) => span.start >= 0);
  const isCut = explanation.text_cut || snippet.end < Array.from(explanation.text).length;
  const startsLater = explanation.text_start + snippet.start > 0;
  const body = highlight(snippet.text, [...snippet.spans, ...others], explanation, largest);
  return [startsLater && "… ", ...body, isCut && " …"];
}

// The bar of a hit: a segment per query word and a grey one for the overall meaning, in percent of the bar.
// Sums below 1 would leave a part of a flex container empty, so gains are not used as they are.
function segments(explanation, common = 0) {
  const colours = hues(explanation);
  const part = (match, number) => ({ gain: match.gain, hue: colours[number], name: label(match) });
  const parts = explanation.matches.map(part);
  const { semantic } = explanation;
  if (semantic) parts.push({ gain: semantic.gain - common, total: semantic.gain, name: "overall meaning" });
  const positive = parts.filter(({ gain }) => gain > 0);
  const sum = positive.reduce((total, { gain }) => total + gain, 0);
  return positive.map(({ gain, hue, name, total = gain }) => el("i", {
    class: hue === undefined ? "meaning" : null, "--h": hue, "--g": (100 * gain) / sum,
    title: `${name}: ${fixed(total)}`,
  }));
}

// One entry per word and key; a word that is repeated in the query has one entry.
function legend(explanation) {
  const colours = hues(explanation), entries = new Map();
  for (const [number, match] of explanation.matches.entries()) {
    const key = label(match), word = queryWords(explanation, match) || key, isSame = word === key;
    entries.set(`${word} ${key}`, el("li", {
      "--h": colours[number], title: isSame ? null : `“${word}” is looked up under the key “${key}”`,
    }, isSame ? word : `${word} → ${key}`));
  }
  const keys = [...entries.values()];
  if (keys.length) keys.unshift(el("li", { class: "caption" }, "query word → key"));
  if (explanation.semantic) keys.push(el("li", { class: "meaning" }, "overall meaning"));
  if (explanation.matches.some((match) => match.postings.length > 1))
    keys.push(el("li", { class: "also" }, "matched, but a stronger match counted"));
  return keys;
}
